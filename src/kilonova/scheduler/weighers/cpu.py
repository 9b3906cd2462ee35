"""Hosts with more free VCPUs come first; a negative multiplier fills hosts up instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers:
    return hosts.inventory("VCPU").free.take(rows)
