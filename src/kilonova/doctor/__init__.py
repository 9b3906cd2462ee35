"""Compares what must agree: servers, allocations, placement, ports, guests, and unfinished operations. Reads only.

May run beside a process at work: a server is left out while an operation runs on it or has just ended, and what
stands in several tables of placement is compared by one statement each.
"""

from __future__ import annotations

from kilonova.doctor import hosts, operations, placement, ports, shares
from kilonova.doctor.facts import Finding, Guests, gather
from kilonova.hosts.heartbeat import DOWN_TIME
from kilonova.store import Reader

__all__ = ["Finding", "Guests", "examine"]


async def examine(db: Reader, guests: Guests | None = None, *, down_seconds: float = DOWN_TIME) -> list[Finding]:
    """`guests` is every guest on every host; without it guests are not compared."""
    facts = await gather(db, guests, down_seconds)
    return [
        *await operations.findings(db, facts),
        *shares.findings(facts),
        *await placement.findings(db),
        *ports.findings(facts),
        *hosts.findings(facts),
    ]
