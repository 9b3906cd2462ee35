"""Checks consistency between servers, allocations, placement, ports, volumes, guests and operations. Reads only.

It may run while the cloud is at work. Servers with a running or just finished operation are skipped. Data in several
tables of placement is compared in a single statement.
"""

from __future__ import annotations

from collections.abc import Collection

from kilonova.doctor import allocations, hosts, operations, placement, ports, volumes
from kilonova.doctor.facts import Finding, Guests, VolumeReader, VolumesUnavailable, gather
from kilonova.hosts.heartbeat import DOWN_SECONDS
from kilonova.store import Reader

__all__ = ["Finding", "Guests", "VolumeReader", "VolumesUnavailable", "examine"]


async def examine(
    db: Reader,
    guests: Guests | None = None,
    read_volumes: VolumeReader | None = None,
    *,
    unreachable_hosts: Collection[str] = (),
    since: float | None = None,
    down_seconds: float = DOWN_SECONDS,
) -> list[Finding]:
    """`guests` are the guests of all hosts except `unreachable_hosts`; `read_volumes` reads from the volume service.
    Without them, guests or volumes are not checked. `since` is when the reading of guests began; default: now.

    Raises VolumesUnavailable if the volume service cannot be read.
    """
    facts = await gather(db, guests, read_volumes, down_seconds, unreachable_hosts, since)
    return [
        *await operations.findings(db, facts),
        *allocations.findings(facts),
        *await placement.findings(db),
        *ports.findings(facts),
        *volumes.findings(facts),
        *hosts.findings(facts),
    ]
