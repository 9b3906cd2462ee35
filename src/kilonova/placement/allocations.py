"""Reads usages and allocations. A usage is always a sum over allocations."""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.store import Reader

# The used amount of an inventory `i`.
USED_AMOUNT = """COALESCE((SELECT CAST(SUM(a.used) AS BIGINT) FROM allocations a
    WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0)"""


async def get_usages(reader: Reader, provider_uuids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Used amounts by provider uuid and class; zero for an unused inventory."""
    found: dict[str, dict[str, int]] = {}
    for row in await reader.fetch(_USAGES, list(provider_uuids)):
        found.setdefault(row["uuid"], {})[row["resource_class"]] = row["used"]
    return found


async def get_allocations(reader: Reader, consumers: Sequence[str]) -> dict[str, dict[str, dict[str, int]]]:
    """Amounts by consumer uuid, provider uuid and class."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in await reader.fetch(_ALLOCATIONS, list(consumers)):
        found.setdefault(row["consumer_uuid"], {}).setdefault(row["uuid"], {})[row["resource_class"]] = row["used"]
    return found


_USAGES = f"""
SELECT p.uuid, i.resource_class, {USED_AMOUNT} AS used
FROM resource_providers p JOIN inventories i ON i.provider_id = p.id
WHERE p.uuid = ANY($1)
"""
_ALLOCATIONS = """
SELECT a.consumer_uuid, p.uuid, a.resource_class, a.used
FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
WHERE a.consumer_uuid = ANY($1)
"""
