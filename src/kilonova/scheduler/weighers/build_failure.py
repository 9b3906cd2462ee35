"""Hosts that failed to build servers lately come last, until they build one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    return -hosts.spread(hosts.loads.failures).take(rows) if hosts.loads.failures else None
