"""Hosts with a newer hypervisor come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers | None:
    if len(hosts.machines.kinds) < 2:
        return None
    return hosts.machines.numbers(lambda machine: machine.version).take(hosts.machines.kind.take(rows))
