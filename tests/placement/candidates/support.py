"""Providers in the tables, and a client of the Placement API that knows them by name."""

from __future__ import annotations

import uuid as uuids
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kilonova.config import load
from kilonova.http import App
from kilonova.http.client import ClientResponse, InProcess
from kilonova.ids import new_id
from kilonova.placement.build import build
from kilonova.placement.candidates.model import InventoryUsage, Provider
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.store import Database
from tests.support.cloud import Tokens
from tests.support.databases import opened

SHARES = "MISC_SHARES_VIA_AGGREGATE"


def uuid_of(name: str) -> str:
    """The same uuid for the same name."""
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def provider(
    name: str, parent: Provider | None = None, *, traits: str = "", aggregates: str = "", **stocks: InventoryUsage | int
) -> Provider:
    """Keywords are classes, with a capacity or an InventoryUsage. Traits and aggregates are separated by blanks."""
    own = uuid_of(name)
    return Provider(
        own,
        parent.uuid if parent else None,
        parent.root if parent else own,
        {
            cls: InventoryUsage(inventory, 0) if isinstance(inventory, int) else inventory
            for cls, inventory in stocks.items()
        },
        frozenset(traits.split()),
        frozenset(uuid_of(aggregate) for aggregate in aggregates.split()),
    )


async def insert_providers(db: Database, providers: Sequence[Provider]) -> None:
    """Insert the providers, which must be ordered parents first."""
    async with db.transaction() as tx:
        ids: dict[str, int] = {}
        await _insert_names(tx, "resource_classes", {name for one in providers for name in one.inventories})
        await _insert_names(tx, "traits", {name for one in providers for name in one.traits})
        for one in providers:
            ids[one.uuid] = key = await tx.fetch_value(
                "INSERT INTO resource_providers (uuid, name, parent_id, root_id, generation, change, facts, created_at,"
                " updated_at) VALUES ($1, $1, $2, $3, 0, 1, 1, 0, 0) RETURNING id",
                one.uuid,
                ids.get(one.parent or ""),
                ids.get(one.root),
            )
            await tx.execute("UPDATE resource_providers SET root_id = id WHERE root_id IS NULL")
            for name, inventory in one.inventories.items():
                await _insert_inventory(tx, key, name, inventory)
            await tx.execute_many(
                "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)", [(key, t) for t in one.traits]
            )
            await tx.execute_many(
                "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)",
                [(key, aggregate) for aggregate in one.aggregates],
            )


async def _insert_names(tx: Any, table: str, names: Iterable[str]) -> None:
    await tx.execute_many(
        f"INSERT INTO {table} (name, created_at, updated_at) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING",
        [(name,) for name in names],
    )


async def _insert_inventory(tx: Any, provider_id: int, name: str, inventory: InventoryUsage) -> None:
    """Written with a reserved amount and a ratio, so that the capacity must be computed."""
    await tx.execute(
        "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,"
        " allocation_ratio) VALUES ($1, $2, $3, 7, $4, $5, $6, 0.5)",
        provider_id,
        name,
        int(inventory.capacity * 2) + 7,
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
    )
    for _ in range(inventory.used):
        consumer = new_id()
        await tx.execute(
            "INSERT INTO consumers (uuid, project_id, user_id, generation, created_at, updated_at)"
            " VALUES ($1, 'p', 'u', 1, 0, 0)",
            consumer,
        )
        await tx.execute(
            "INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used) VALUES ($1, $2, $3, 1)",
            consumer,
            provider_id,
            name,
        )


class Placement:
    def __init__(self, db: Database) -> None:
        self.db = db
        services = Services()
        services.db, services.config, services.policy, services.tokens = db, load(environ={}), Policy(), Tokens()
        self.caller = InProcess(App(services, [build()]))

    async def get(self, path: str, version: str = "1.39", as_: str = "service") -> ClientResponse:
        headers = {"X-Auth-Token": as_, "OpenStack-API-Version": f"placement {version}"}
        return await self.caller.request("GET", f"/placement{path}", headers=headers)

    async def candidates(self, query: str, version: str = "1.39") -> Any:
        response = await self.get(f"/allocation_candidates?{query}", version)
        assert response.status == 200, response.body
        return response.json()


@asynccontextmanager
async def placement(database_url: str, *providers: Provider) -> AsyncIterator[Placement]:
    async with opened(database_url) as db:
        await insert_providers(db, providers)
        yield Placement(db)
