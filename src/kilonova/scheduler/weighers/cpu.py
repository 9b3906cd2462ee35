"""Hosts with more free processors come first; a negative multiplier fills hosts up instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


def weigh(request: Request, hosts: Hosts, rows: Integers) -> Numbers:
    return hosts.stock("VCPU").free.take(rows)
