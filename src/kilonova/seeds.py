"""What a new cloud has to boot from, and the zones its hosts are spread over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kilonova.compute.zones import model

if TYPE_CHECKING:
    from kilonova.store import Database

_NOWHERE = ""


async def spread(db: Database, zones: Sequence[str], hosts: Sequence[str]) -> None:
    """Put every host that is in no zone into the smallest of these. A host that is in one stays there."""
    async with db.transaction() as tx:
        await tx.hold("aggregates")
        known = await model.zone_of_hosts(tx, hosts, _NOWHERE)
        members: dict[str, list[str]] = {zone: [] for zone in zones}
        for host in hosts:
            if known[host] in members:
                members[known[host]].append(host)
        for host in hosts:
            if known[host] == _NOWHERE:
                min(members.values(), key=len).append(host)
        for zone, joining in members.items():
            await model.create_zone(tx, zone, joining)
