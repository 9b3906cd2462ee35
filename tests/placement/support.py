"""Providers to claim from, and looks at what is in the tables."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import ids
from kilonova.placement import Consumer, Inventory, ProviderFacts, sync
from kilonova.store import Database, Reader

TABLES = ("resource_providers", "inventories", "provider_traits", "provider_aggregates", "consumers", "allocations")


def provider(name: str = "host-1", traits: tuple[str, ...] = (), **inventory: Inventory) -> ProviderFacts:
    return ProviderFacts(ids.new_id(), name, inventory, traits)


def consumer(project_id: str = "project", user_id: str = "user") -> Consumer:
    return Consumer(ids.new_id(), project_id, user_id)


async def write(db: Database, *facts: ProviderFacts) -> None:
    async with db.transaction() as tx:
        await sync(tx, facts)


async def everything(reader: Reader) -> dict[str, Any]:
    """Every row of placement, so that a test can say that nothing was written."""
    found = {}
    for table in TABLES:
        rows = await reader.fetch(f"SELECT * FROM {table}")
        found[table] = sorted(rows, key=lambda row: tuple(map(str, row.values())))
    return found


async def wait_for_waiting(db: Database, number: int = 1) -> None:
    """Until so many transactions of this database, which is PostgreSQL's, wait for a lock."""
    sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while await db.fetch_value(sql) < number:
            await asyncio.sleep(0.01)


async def marks(reader: Reader, uuid: str) -> tuple[int, int, int]:
    """A provider's generation, change and facts."""
    row = await reader.fetch_one("SELECT generation, change, facts FROM resource_providers WHERE uuid = $1", uuid)
    assert row is not None
    return row["generation"], row["change"], row["facts"]
