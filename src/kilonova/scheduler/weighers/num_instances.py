"""Hosts with more servers; a negative multiplier sends servers to those with fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers

reads = ("servers",)


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    return hosts.loads.servers.take(rows).astype(float)
