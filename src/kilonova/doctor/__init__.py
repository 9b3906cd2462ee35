"""Compares servers with allocations, placement, ports, images, volumes, guests and operations. Reads only.

It may run while the cloud is at work. Servers with a running or just finished operation are skipped. Data in several
tables of placement is compared in a single statement.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from kilonova.doctor import allocations, hosts, images, operations, placement, ports, volumes
from kilonova.doctor.facts import (
    Finding,
    Guests,
    ImageReader,
    PortReader,
    Unavailable,
    VolumeReader,
    gather,
)
from kilonova.hosts.heartbeat import DOWN_SECONDS
from kilonova.store import Reader

__all__ = [
    "Finding",
    "Guests",
    "ImageReader",
    "PortReader",
    "Unavailable",
    "VolumeReader",
    "examine",
]


async def examine(
    db: Reader,
    guests: Guests | None = None,
    read_volumes: VolumeReader | None = None,
    read_ports: PortReader | None = None,
    read_images: ImageReader | None = None,
    *,
    unreachable_hosts: Collection[str] = (),
    since: float | None = None,
    down_seconds: float = DOWN_SECONDS,
) -> list[Finding]:
    """`guests` are the guests of all hosts except `unreachable_hosts`; `read_volumes` reads from the volume service.
    Without them, guests or volumes are not checked. Ports and images are read from the built-in services by default.
    `since` is when the reading of guests began; default: now.

    Raises Unavailable if a service cannot be read.
    """
    read_ports = read_ports or partial(ports.read_built_in, db)
    read_images = read_images or partial(images.read_built_in, db)
    facts = await gather(db, guests, read_volumes, read_ports, read_images, down_seconds, unreachable_hosts, since)
    return [
        *await operations.findings(db, facts),
        *allocations.findings(facts),
        *await placement.findings(db),
        *ports.findings(facts),
        *images.findings(facts),
        *volumes.findings(facts),
        *hosts.findings(facts),
    ]
