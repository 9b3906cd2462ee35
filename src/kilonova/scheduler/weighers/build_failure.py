"""Hosts with failed builds, or that did not respond, come last until they build a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    failures = hosts.loads.failure_counts
    return -hosts.column_by_host(failures).take(rows) if failures else None
