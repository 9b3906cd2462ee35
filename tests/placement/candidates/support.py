"""Providers in the tables, and a caller of the Placement API that knows them by name."""

from __future__ import annotations

import uuid as uuids
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kilonova.config import load
from kilonova.http import App
from kilonova.http.client import InProcess, Response
from kilonova.ids import new_id
from kilonova.placement.build import build
from kilonova.placement.candidates.model import Provider, Stock
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.store import Database
from tests.support.cloud import Tokens
from tests.support.databases import opened

SHARES = "MISC_SHARES_VIA_AGGREGATE"


def uid(name: str) -> str:
    """The same uuid for the same name."""
    return str(uuids.uuid5(uuids.NAMESPACE_DNS, name))


def provider(
    name: str, parent: Provider | None = None, *, traits: str = "", aggregates: str = "", **stocks: Stock | int
) -> Provider:
    """Classes are keywords; a number stands for that much of it. Traits and aggregates are separated by blanks."""
    own = uid(name)
    return Provider(
        own,
        parent.uuid if parent else None,
        parent.root if parent else own,
        {cls: Stock(stock, 0) if isinstance(stock, int) else stock for cls, stock in stocks.items()},
        frozenset(traits.split()),
        frozenset(uid(aggregate) for aggregate in aggregates.split()),
    )


async def store(db: Database, providers: Sequence[Provider]) -> None:
    """Parents first."""
    async with db.transaction() as tx:
        ids: dict[str, int] = {}
        await _names(tx, "resource_classes", {name for one in providers for name in one.stocks})
        await _names(tx, "traits", {name for one in providers for name in one.traits})
        for one in providers:
            ids[one.uuid] = key = await tx.fetch_value(
                "INSERT INTO resource_providers (uuid, name, parent_id, root_id, generation, change, facts, created_at,"
                " updated_at) VALUES ($1, $1, $2, $3, 0, 1, 1, 0, 0) RETURNING id",
                one.uuid,
                ids.get(one.parent or ""),
                ids.get(one.root),
            )
            await tx.execute("UPDATE resource_providers SET root_id = id WHERE root_id IS NULL")
            for name, stock in one.stocks.items():
                await _stock(tx, key, name, stock)
            await tx.execute_many(
                "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)", [(key, t) for t in one.traits]
            )
            await tx.execute_many(
                "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)",
                [(key, aggregate) for aggregate in one.aggregates],
            )


async def _names(tx: Any, table: str, names: Iterable[str]) -> None:
    await tx.execute_many(
        f"INSERT INTO {table} (name, created_at, updated_at) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING",
        [(name,) for name in names],
    )


async def _stock(tx: Any, provider_id: int, name: str, stock: Stock) -> None:
    """Written with something reserved and a ratio, so that capacity has to be reckoned."""
    await tx.execute(
        "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,"
        " allocation_ratio) VALUES ($1, $2, $3, 7, $4, $5, $6, 0.5)",
        provider_id,
        name,
        int(stock.capacity * 2) + 7,
        stock.min_unit,
        stock.max_unit,
        stock.step_size,
    )
    for _ in range(stock.used):
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

    async def get(self, path: str, version: str = "1.39", as_: str = "service") -> Response:
        headers = {"X-Auth-Token": as_, "OpenStack-API-Version": f"placement {version}"}
        return await self.caller.request("GET", f"/placement{path}", headers=headers)

    async def candidates(self, query: str, version: str = "1.39") -> Any:
        answer = await self.get(f"/allocation_candidates?{query}", version)
        assert answer.status == 200, answer.body
        return answer.json()


@asynccontextmanager
async def placement(database_url: str, *providers: Provider) -> AsyncIterator[Placement]:
    async with opened(database_url) as db:
        await store(db, providers)
        yield Placement(db)
