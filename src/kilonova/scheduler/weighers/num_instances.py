"""Hosts with more servers come first; a negative multiplier prefers hosts with fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts

reads = ("servers",)


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    return hosts.loads.servers.take(rows).astype(float)
