"""Hosts with more servers of a soft affinity group come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    group = request.group
    if group is None or group.policy != "soft-affinity" or not group.members:
        return None
    return hosts.column_by_host(group.members).take(rows)
