"""Zone rules for changes of aggregates: a host is in one zone, and a host with servers does not change its zone.

A change is made first and checked then. If it breaks a rule, the check raises and the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.compute.aggregates.model import ZONE
from kilonova.placement import mark_hosts_changed
from kilonova.store import Reader, Transaction

Zones = dict[str, set[str]]
_MAX_NAMED_HOSTS = 5
_LOCK_TREES = """
SELECT id FROM resource_providers
WHERE root_id IN (
    SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = ANY($1))
ORDER BY id FOR UPDATE
"""


# Hosts of servers, destinations of running moves, and sources of resizes that may still be reverted.
_HOSTS_WITH_SERVERS = """
SELECT host FROM servers WHERE host = ANY($1) AND NOT deleted
UNION
SELECT m.dest_host FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.dest_host = ANY($1) AND o.finished_at IS NULL
UNION
SELECT m.source_host FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.source_host = ANY($1) AND m.type IN ('migration', 'resize') AND o.state = 'done' AND m.outcome IS NULL
ORDER BY 1
"""


class ZoneConflict(Exception):
    """The reason why the change is refused."""


async def zones_before_change(tx: Transaction, hosts: Sequence[str]) -> Zones:
    """The zones of these hosts before a change. No server is placed on these hosts until `tx` ends."""
    # A claim locks the providers that it allocates from, which may be children of the root.
    await tx.fetch(_LOCK_TREES, list(hosts))
    await mark_hosts_changed(tx, hosts)
    return await _zones(tx, hosts)


async def check(tx: Transaction, before: Zones, default: str) -> None:
    """Raise `ZoneConflict` if the change since `zones_before_change` breaks a rule."""
    now = await _zones(tx, list(before))
    for host, zones in now.items():
        if len(zones) > 1:
            raise ZoneConflict(f"host {host} would be in several availability zones: {', '.join(sorted(zones))}")
    moved = [host for host in before if (before[host] or {default}) != (now[host] or {default})]
    busy = await _hosts_with_servers(tx, moved)
    if busy:
        names = ", ".join(busy[:_MAX_NAMED_HOSTS]) + (", …" if len(busy) > _MAX_NAMED_HOSTS else "")
        raise ZoneConflict(f"one or more hosts contain servers, whose availability zone would change: {names}")


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


async def _hosts_with_servers(reader: Reader, hosts: Sequence[str]) -> list[str]:
    if not hosts:
        return []
    return [row["host"] for row in await reader.fetch(_HOSTS_WITH_SERVERS, list(hosts))]
