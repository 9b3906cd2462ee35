"""Compares what must agree: servers, allocations, placement, ports, volumes, guests, and operations. Reads only.

May run beside a process at work: a server is left out while an operation runs on it or has just ended, and what
stands in several tables of placement is compared by one statement each.
"""

from __future__ import annotations

from collections.abc import Collection

from kilonova.doctor import hosts, operations, placement, ports, shares, volumes
from kilonova.doctor.facts import Finding, Guests, Look, Unasked, gather
from kilonova.hosts.heartbeat import DOWN_TIME
from kilonova.store import Reader

__all__ = ["Finding", "Guests", "Look", "Unasked", "examine"]


async def examine(
    db: Reader,
    guests: Guests | None = None,
    look: Look | None = None,
    *,
    unasked: Collection[str] = (),
    since: float | None = None,
    down_seconds: float = DOWN_TIME,
) -> list[Finding]:
    """`guests` is every guest on every host, but for hosts that are `unasked`, and `look` asks the volume service;
    without, they are not compared. `since` is when the first host was asked, if that was before now.

    Raises Unasked if the volume service cannot be asked.
    """
    facts = await gather(db, guests, look, down_seconds, unasked, since)
    return [
        *await operations.findings(db, facts),
        *shares.findings(facts),
        *await placement.findings(db),
        *ports.findings(facts),
        *volumes.findings(facts),
        *hosts.findings(facts),
    ]
