"""Replacing what consumers hold, one or several at once: all of it, or nothing.

The API's counterpart to claims. The same locks in the same order make both safe beside each other: the rows of all
providers concerned, in the order of ids, then those of the consumers. See docs/decisions/0005-claims.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from kilonova import clock
from kilonova.http.errors import BadRequest, Conflict
from kilonova.placement import errors, names
from kilonova.placement.changes import allocations_changed, allocations_gone
from kilonova.placement.claims import NEW_CONSUMER, Raced
from kilonova.store import Database, Row, Transaction

ATTEMPTS = 10


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer shall hold: amounts by class by provider uuid. What is UNSET the caller does not know of."""

    uuid: str
    allocations: Mapping[str, Mapping[str, int]]
    project_id: str | msgspec.UnsetType = msgspec.UNSET
    user_id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    generation: int | msgspec.UnsetType | None = msgspec.UNSET


async def settled(db: Database, write: Callable[[Transaction], Awaitable[None]]) -> None:
    """Run `write` in a transaction, again if it was Raced."""
    for _ in range(ATTEMPTS):
        try:
            async with db.transaction() as tx:
                await write(tx)
            return
        except Raced:
            continue
    raise Conflict(
        "Unable to allocate inventory: the consumers are being changed by others all the time; try again.",
        code=errors.CONCURRENT_UPDATE,
    )


class Locked:
    """Everything that a replacement looks at, none of which can change before its transaction ends."""

    def __init__(self, providers: list[Row], consumers: list[Row], held: list[Row]) -> None:
        self.providers = {row["uuid"]: row for row in providers}
        self.consumers = {row["uuid"]: row for row in consumers}
        self.held = held

    @property
    def ids(self) -> list[int]:
        return [row["id"] for row in self.providers.values()]


async def lock(tx: Transaction, wanted: Sequence[Wanted], others: Sequence[str] = ()) -> Locked:
    """Lock the consumers, the providers they hold and shall hold from, and `others`. Raises Raced."""
    consumers = [one.uuid for one in wanted]
    uuids = sorted({*others, *(uuid for one in wanted for uuid in one.allocations)})
    providers = await tx.fetch(_LOCK_PROVIDERS, uuids, consumers)
    rows = await tx.fetch(_LOCK_CONSUMERS, consumers)
    held = await tx.fetch("SELECT * FROM allocations WHERE consumer_uuid = ANY($1)", consumers)
    locked = Locked(providers, rows, held)
    if not {row["provider_id"] for row in held}.issubset(locked.ids):
        raise Raced(*consumers)
    return locked


async def replace(tx: Transaction, wanted: Sequence[Wanted], locked: Locked, missing: Mapping[str, str]) -> None:
    """Let every consumer hold what it shall. Raises what the caller of the API is told.

    `missing` is who a new consumer belongs to if nobody says so.
    """
    for one in wanted:
        _check_generation(one, locked.consumers.get(one.uuid))
    await _check_names(tx, wanted, locked)
    await _check_room(tx, wanted, locked)
    if locked.held:
        await tx.execute("DELETE FROM allocations WHERE consumer_uuid = ANY($1)", [one.uuid for one in wanted])
    for one in wanted:
        await _write_consumer(tx, one, locked.consumers.get(one.uuid), missing)
    rows = [
        (one.uuid, locked.providers[uuid]["id"], name, amount)
        for one in wanted
        for uuid, resources in one.allocations.items()
        for name, amount in resources.items()
    ]
    if rows:
        await tx.execute_many(ALLOCATE, rows)
    used = sorted({row[1] for row in rows})
    freed = sorted({row["provider_id"] for row in locked.held}.difference(used))
    if used:
        await allocations_changed(tx, used)
    if freed:
        await allocations_gone(tx, freed)


async def remove(tx: Transaction, consumer_uuid: str) -> bool:
    """Take everything from a consumer, which then is no more; False if it held nothing. Raises Raced."""
    locked = await lock(tx, [Wanted(uuid=consumer_uuid, allocations={})])
    if not locked.held:
        return False
    await tx.execute("DELETE FROM consumers WHERE uuid = $1", consumer_uuid)  # its allocations go with it
    await allocations_gone(tx, sorted({row["provider_id"] for row in locked.held}))
    return True


def _check_generation(one: Wanted, consumer: Row | None) -> None:
    if one.generation is msgspec.UNSET:
        return
    actual = consumer["generation"] if consumer else None
    if actual != one.generation:
        raise Conflict(
            f"consumer generation conflict - expected {_spelled(actual)} but got {_spelled(one.generation)}",
            code=errors.CONCURRENT_UPDATE,
        )


def _spelled(generation: Any) -> str:
    return "null" if generation is None else str(generation)


async def _check_names(tx: Transaction, wanted: Sequence[Wanted], locked: Locked) -> None:
    for one in wanted:
        for uuid in one.allocations:
            if uuid not in locked.providers:
                raise BadRequest(f"Allocation for resource provider '{uuid}' that does not exist.")
    asked = {name for one in wanted for resources in one.allocations.values() for name in resources}
    unknown = await names.unknown_classes(tx, asked)
    if unknown:
        consumers = ", ".join(one.uuid for one in wanted[:3])
        raise BadRequest(
            f"Unable to allocate inventory for consumer {consumers}: No such resource class {', '.join(unknown)}."
        )


async def _check_room(tx: Transaction, wanted: Sequence[Wanted], locked: Locked) -> None:
    """Whether everything fits where it shall go. Where no more is used than before, too much may stay too much."""
    ids = [locked.providers[uuid]["id"] for uuid in {uuid for one in wanted for uuid in one.allocations}]
    if not ids:
        return
    stocks = {(row["provider_id"], row["resource_class"]): row for row in await tx.fetch(_STOCKS, ids)}
    growth: dict[tuple[int, str], int] = {}
    for row in locked.held:
        key = row["provider_id"], row["resource_class"]
        growth[key] = growth.get(key, 0) - row["used"]
    for one in wanted:
        for uuid, resources in one.allocations.items():
            for name, amount in resources.items():
                key = locked.providers[uuid]["id"], name
                _check_unit(stocks.get(key), uuid, name, amount)
                growth[key] = growth.get(key, 0) + amount
    uuids = {row["id"]: row["uuid"] for row in locked.providers.values()}
    for key, more in growth.items():
        stock = stocks.get(key)
        if more > 0 and stock is not None:
            capacity = (stock["total"] - stock["reserved"]) * stock["allocation_ratio"]
            if stock["used"] + more > capacity:
                raise _invalid(uuids[key[0]], key[1], "The requested amount would exceed the capacity.")


def _check_unit(stock: Row | None, uuid: str, name: str, amount: int) -> None:
    if stock is None:
        raise _invalid(uuid, name, "There is no such inventory.")
    if amount % stock["step_size"] or not stock["min_unit"] <= amount <= stock["max_unit"]:
        raise _invalid(uuid, name, "The requested amount would violate inventory constraints.")


def _invalid(uuid: str, name: str, why: str) -> Conflict:
    return Conflict(
        f"Unable to allocate inventory: Unable to create allocation for '{name}' on resource provider '{uuid}'. "
        f"{why} (Inventory for '{name}' on resource provider '{uuid}' invalid.)"
    )


async def _write_consumer(tx: Transaction, one: Wanted, consumer: Row | None, missing: Mapping[str, str]) -> None:
    """A consumer is there exactly as long as it holds something."""
    if consumer is None and not one.allocations:
        return
    if not one.allocations:
        await tx.execute("DELETE FROM consumers WHERE uuid = $1", one.uuid)
        return
    known: Mapping[str, Any] = consumer or {**missing, "type": None, "generation": 0}
    said = (one.project_id, one.user_id, one.type)
    values = [
        known[key] if value is msgspec.UNSET else value
        for key, value in zip(("project_id", "user_id", "type"), said, strict=True)
    ]
    if consumer is not None:
        await tx.execute(_CHANGE_CONSUMER, one.uuid, *values, clock.now())
    elif not await tx.execute(NEW_CONSUMER, one.uuid, *values, clock.now()):
        raise Raced(one.uuid)


_LOCK_PROVIDERS = """
SELECT id, uuid, generation FROM resource_providers
WHERE uuid = ANY($1) OR id IN (SELECT provider_id FROM allocations WHERE consumer_uuid = ANY($2))
ORDER BY id FOR UPDATE
"""
_LOCK_CONSUMERS = "SELECT * FROM consumers WHERE uuid = ANY($1) ORDER BY uuid FOR UPDATE"
_STOCKS = """
SELECT i.*, COALESCE((
    SELECT CAST(SUM(a.used) AS BIGINT) FROM allocations a
    WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0) AS used
FROM inventories i WHERE i.provider_id = ANY($1)
"""
ALLOCATE = "INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used) VALUES ($1, $2, $3, $4)"
_CHANGE_CONSUMER = """
UPDATE consumers SET project_id = $2, user_id = $3, type = $4, generation = generation + 1, updated_at = $5
WHERE uuid = $1
"""
