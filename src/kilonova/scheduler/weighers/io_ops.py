"""Hosts with more running operations come first; the default multiplier is negative and prefers idle hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts

reads = ("operations",)


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    return hosts.loads.operations_column(hosts).take(rows) if hosts.loads.operations else None
