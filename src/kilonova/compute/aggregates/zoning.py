"""The rules of zones that a change of aggregates must keep: a host is in one zone, and servers stay in theirs.

A change is made first and then looked at: who finds it against the rules raises, and the transaction undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.compute.aggregates.model import ZONE
from kilonova.placement import hosts_changed
from kilonova.store import Reader, Transaction

Zones = dict[str, set[str]]
_NAMED = 5
_LOCK_TREES = """
SELECT id FROM resource_providers
WHERE root_id IN (
    SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = ANY($1))
ORDER BY id FOR UPDATE
"""


# Those that are there, those that moves under way take there, and those that a revert can bring back.
_WITH_SERVERS = """
SELECT host FROM servers WHERE host = ANY($1) AND NOT deleted
UNION
SELECT m.dest_host FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.dest_host = ANY($1) AND o.finished_at IS NULL
UNION
SELECT m.source_host FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.source_host = ANY($1) AND m.type IN ('migration', 'resize') AND o.state = 'done' AND m.outcome IS NULL
ORDER BY 1
"""


class Refused(Exception):
    """Why the change cannot be."""


async def before(tx: Transaction, hosts: Sequence[str]) -> Zones:
    """The zones of these hosts before a change. No server comes to one of them until `tx` ends."""
    # A claim locks whatever it takes from, which need not be the root.
    await tx.fetch(_LOCK_TREES, list(hosts))
    await hosts_changed(tx, hosts)
    return await _zones(tx, hosts)


async def check(tx: Transaction, was: Zones, default: str) -> None:
    """Raise `Refused` where the change since `before` breaks a rule."""
    now = await _zones(tx, list(was))
    for host, zones in now.items():
        if len(zones) > 1:
            raise Refused(f"host {host} would be in several availability zones: {', '.join(sorted(zones))}")
    moved = [host for host in was if (was[host] or {default}) != (now[host] or {default})]
    busy = await _with_servers(tx, moved)
    if busy:
        names = ", ".join(busy[:_NAMED]) + (", …" if len(busy) > _NAMED else "")
        raise Refused(f"one or more hosts contain servers, whose availability zone would change: {names}")


async def _zones(reader: Reader, hosts: Sequence[str]) -> Zones:
    zones: Zones = {host: set() for host in hosts}
    for row in await reader.fetch(
        """
        SELECT h.host, m.value FROM aggregate_hosts h
        JOIN aggregate_metadata m ON m.aggregate_id = h.aggregate_id AND m.key = $2
        WHERE h.host = ANY($1)
        """,
        list(hosts),
        ZONE,
    ):
        zones[row["host"]].add(row["value"])
    return zones


async def _with_servers(reader: Reader, hosts: Sequence[str]) -> list[str]:
    if not hosts:
        return []
    return [row["host"] for row in await reader.fetch(_WITH_SERVERS, list(hosts))]
