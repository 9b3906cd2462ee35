"""Hosts with a newer hypervisor come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    if len(hosts.hypervisors.kinds) < 2:
        return None
    return hosts.hypervisors.numbers(lambda kind: kind.version).take(hosts.hypervisors.kind.take(rows))
