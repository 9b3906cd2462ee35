"""Providers to claim from, and readers of the tables."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import ids
from kilonova.placement import Consumer, HostProviders, Inventory, sync_providers
from kilonova.store import Database, Reader

TABLES = ("resource_providers", "inventories", "provider_traits", "provider_aggregates", "consumers", "allocations")


def provider(name: str = "host-1", traits: tuple[str, ...] = (), **inventory: Inventory) -> HostProviders:
    return HostProviders(ids.new_id(), name, inventory, traits)


def consumer(project_id: str = "project", user_id: str = "user") -> Consumer:
    return Consumer(ids.new_id(), project_id, user_id)


async def write(db: Database, *facts: HostProviders) -> None:
    async with db.transaction() as tx:
        await sync_providers(tx, facts)


async def all_rows(reader: Reader) -> dict[str, Any]:
    """All rows of placement, to check that nothing was written."""
    found = {}
    for table in TABLES:
        rows = await reader.fetch(f"SELECT * FROM {table}")
        found[table] = sorted(rows, key=lambda row: tuple(map(str, row.values())))
    return found


async def wait_for_lock_waiters(db: Database, number: int = 1) -> None:
    """Wait until `number` transactions of this PostgreSQL database wait for a lock."""
    sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while await db.fetch_value(sql) < number:
            await asyncio.sleep(0.01)


async def counters(reader: Reader, uuid: str) -> tuple[int, int, int]:
    """Generation, change and facts of a provider."""
    row = await reader.fetch_one("SELECT generation, change, facts FROM resource_providers WHERE uuid = $1", uuid)
    assert row is not None
    return row["generation"], row["change"], row["facts"]
