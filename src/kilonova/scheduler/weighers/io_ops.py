"""Hosts with more operations running; the usual negative multiplier sends servers to the idle ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers

reads = ("operations",)


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    return hosts.loads.running(hosts).take(rows) if hosts.loads.operations else None
