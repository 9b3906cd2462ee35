"""Checks placement itself, its mirror of compute's aggregates and services, and server group policies."""

from __future__ import annotations

from collections import Counter

from kilonova.doctor.facts import Finding, join_sorted
from kilonova.store import Reader, Row


async def findings(db: Reader) -> list[Finding]:
    return [*await _wrong_providers(db), *await _wrong_mirrors(db), *await _broken_policies(db)]


async def _wrong_providers(db: Reader) -> list[Finding]:
    return [
        *(
            Finding("allocation without inventory", row["consumer_uuid"], f"{row['resource_class']} on {row['name']}")
            for row in await db.fetch(_WITHOUT_INVENTORY)
        ),
        *(_over_capacity(row) for row in await db.fetch(_OVER_CAPACITY)),
    ]


def _over_capacity(row: Row) -> Finding:
    """Either too much was claimed, or the inventory was reduced later, which is allowed; the database does not tell."""
    what = f"{row['used']} {row['resource_class']} in use on {row['name']}, which has {int(row['capacity'])}"
    formula = f"(total {row['total']} - reserved {row['reserved']}) * ratio {row['allocation_ratio']:g}"
    return Finding("provider over capacity", row["uuid"], f"{what}: {formula}")


_WITHOUT_INVENTORY = """
SELECT a.consumer_uuid, a.resource_class, COALESCE(p.name, 'an unknown provider') AS name
FROM allocations a
LEFT JOIN inventories i ON i.provider_id = a.provider_id AND i.resource_class = a.resource_class
LEFT JOIN resource_providers p ON p.id = a.provider_id
WHERE i.provider_id IS NULL ORDER BY a.consumer_uuid, a.resource_class
"""
_OVER_CAPACITY = """
SELECT p.uuid, p.name, u.resource_class, u.used, u.capacity, u.total, u.reserved, u.allocation_ratio FROM (
    SELECT i.provider_id, i.resource_class, (i.total - i.reserved) * i.allocation_ratio AS capacity,
           i.total, i.reserved, i.allocation_ratio, CAST(SUM(a.used) AS BIGINT) AS used
    FROM allocations a
    JOIN inventories i ON i.provider_id = a.provider_id AND i.resource_class = a.resource_class
    GROUP BY i.provider_id, i.resource_class, i.total, i.reserved, i.allocation_ratio
) u JOIN resource_providers p ON p.id = u.provider_id
WHERE u.used > u.capacity ORDER BY p.id, u.resource_class
"""


# Placement and compute


async def _wrong_mirrors(db: Reader) -> list[Finding]:
    return [
        *(
            Finding("aggregate not mirrored", row["uuid"], f"{row['host']} is in it, its provider is not")
            for row in await db.fetch(_NOT_IN_PLACEMENT)
        ),
        *(
            Finding("aggregate not mirrored", row["uuid"], f"the provider of {row['host']} is in it, the host is not")
            for row in await db.fetch(_ONLY_IN_PLACEMENT)
        ),
        *(_wrong_trait(row) for row in await db.fetch(_DISABLED)),
    ]


def _wrong_trait(row: Row) -> Finding:
    state = "disabled, and its provider lacks" if row["disabled"] else "enabled, and its provider has"
    return Finding("disabled service not mirrored", row["uuid"], f"{row['host']} is {state} COMPUTE_STATUS_DISABLED")


_NOT_IN_PLACEMENT = """
SELECT a.uuid, h.host FROM aggregate_hosts ah
JOIN aggregates a ON a.id = ah.aggregate_id
JOIN hypervisors h ON h.host = ah.host
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_aggregates pa ON pa.provider_id = p.id AND pa.aggregate_uuid = a.uuid
WHERE pa.provider_id IS NULL ORDER BY a.uuid, h.host
"""
# Aggregates that the host's agent has reported are not mirrored from compute.
_ONLY_IN_PLACEMENT = """
SELECT a.uuid, h.host FROM provider_aggregates pa
JOIN aggregates a ON a.uuid = pa.aggregate_uuid
JOIN resource_providers p ON p.id = pa.provider_id
JOIN hypervisors h ON h.uuid = p.uuid
LEFT JOIN aggregate_hosts ah ON ah.aggregate_id = a.id AND ah.host = h.host
WHERE ah.host IS NULL AND NOT pa.reported ORDER BY a.uuid, h.host
"""
_DISABLED = """
SELECT h.host, p.uuid, s.disabled FROM hypervisors h
JOIN services s ON s.id = h.service_id
JOIN resource_providers p ON p.uuid = h.uuid
LEFT JOIN provider_traits t ON t.provider_id = p.id AND t.trait = 'COMPUTE_STATUS_DISABLED'
WHERE s.disabled = (t.provider_id IS NULL) ORDER BY h.host
"""


# Server groups


async def _broken_policies(db: Reader) -> list[Finding]:
    groups: dict[str, list[Row]] = {}
    for row in await db.fetch(_MEMBERS):
        groups.setdefault(row["id"], []).append(row)
    return [finding for rows in groups.values() if (finding := _broken_policy(rows)) is not None]


def _broken_policy(rows: list[Row]) -> Finding | None:
    group = rows[0]
    by_host = Counter({row["host"]: row["servers"] for row in rows})
    limit = group["max_server_per_host"] or 1
    crowded = {host: number for host, number in by_host.items() if number > limit}
    if group["policy"] == "affinity" and len(by_host) > 1:
        where = f"on {len(by_host)} hosts: {join_sorted(by_host)}"
    elif group["policy"] == "anti-affinity" and crowded:
        where = ", ".join(f"{number} on {host}" for host, number in sorted(crowded.items()))
    else:
        return None
    return Finding("server group policy broken", group["id"], f"{group['policy']} of '{group['name']}': {where}")


_MEMBERS = """
SELECT g.id, g.name, g.policy, g.max_server_per_host, s.host, COUNT(*) AS servers
FROM server_groups g
JOIN server_group_members m ON m.group_id = g.id
JOIN servers s ON s.id = m.server_id
WHERE NOT s.deleted AND s.host IS NOT NULL
GROUP BY g.id, g.name, g.policy, g.max_server_per_host, s.host ORDER BY g.id, s.host
"""
