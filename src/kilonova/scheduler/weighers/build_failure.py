"""Hosts that failed to build servers lately, or did not answer just now, come last, until they build one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    troubles = hosts.loads.troubles
    return -hosts.spread(troubles).take(rows) if troubles else None
