"""Replaces the allocations of one or several consumers for the API: all of them, or none.

The rows of all providers concerned are locked in the order of ids, then those of the consumers. Claims use the same
order, so both can run concurrently. See docs/decisions/0005-claims.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kilonova import clock
from kilonova.http.errors import BadRequest, Conflict
from kilonova.placement import errors, names
from kilonova.placement.allocations import USED_AMOUNT
from kilonova.placement.changes import mark_allocations_changed, mark_allocations_freed
from kilonova.placement.claims import INSERT_CONSUMER, ConcurrentUpdate
from kilonova.placement.model import Allocation, Inventory, ResourceProvider, StoredConsumer
from kilonova.store import Database, Transaction

MAX_ATTEMPTS = 10


class ConsumerAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """The new allocations of a consumer: amounts by class by provider uuid. UNSET: absent in the request."""

    uuid: str
    allocations: Mapping[str, Mapping[str, int]]
    project_id: str | msgspec.UnsetType = msgspec.UNSET
    user_id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    generation: int | msgspec.UnsetType | None = msgspec.UNSET


class Owner(NamedTuple):
    """Project, user and type of a new consumer whose request does not name them."""

    project_id: str
    user_id: str
    type: str | None = None


async def run_with_retries(db: Database, write: Callable[[Transaction], Awaitable[None]]) -> None:
    """Run `write` in a transaction, again after ConcurrentUpdate."""
    for _ in range(MAX_ATTEMPTS):
        try:
            async with db.transaction() as tx:
                await write(tx)
            return
        except ConcurrentUpdate:
            continue
    raise Conflict(
        "Unable to allocate inventory: other requests keep changing the consumers; try again.",
        code=errors.CONCURRENT_UPDATE,
    )


class LockedRows:
    """The rows that an update reads. None can change before its transaction ends."""

    def __init__(
        self, providers: list[ResourceProvider], consumers: list[StoredConsumer], allocations: list[Allocation]
    ) -> None:
        self.providers = {provider.uuid: provider for provider in providers}
        self.consumers = {consumer.uuid: consumer for consumer in consumers}
        self.allocations = allocations

    @property
    def provider_ids(self) -> list[int]:
        return [provider.id for provider in self.providers.values()]


async def lock(tx: Transaction, wanted: Sequence[ConsumerAllocations], others: Sequence[str] = ()) -> LockedRows:
    """Lock the consumers, the providers of their old and new allocations, and `others`. Raises ConcurrentUpdate."""
    consumers = [consumer.uuid for consumer in wanted]
    uuids = sorted({*others, *(uuid for consumer in wanted for uuid in consumer.allocations)})
    providers = ResourceProvider.decode_all(await tx.fetch(_LOCK_PROVIDERS, uuids, consumers))
    known = StoredConsumer.decode_all(await tx.fetch(_LOCK_CONSUMERS, consumers))
    allocations = Allocation.decode_all(await tx.fetch(_ALLOCATIONS, consumers))
    locked = LockedRows(providers, known, allocations)
    if not {allocation.provider_id for allocation in allocations}.issubset(locked.provider_ids):
        raise ConcurrentUpdate(*consumers)
    return locked


async def replace(
    tx: Transaction, wanted: Sequence[ConsumerAllocations], locked: LockedRows, default_owner: Owner
) -> None:
    """Write the new allocations. Raises the HTTP errors of the API."""
    for consumer in wanted:
        _check_generation(consumer, locked.consumers.get(consumer.uuid))
    await _check_names(tx, wanted, locked)
    await _check_capacity(tx, wanted, locked)
    if locked.allocations:
        await tx.execute(
            "DELETE FROM allocations WHERE consumer_uuid = ANY($1)", [consumer.uuid for consumer in wanted]
        )
    for consumer in wanted:
        await _write_consumer(tx, consumer, locked.consumers.get(consumer.uuid), default_owner)
    rows = [
        (consumer.uuid, locked.providers[uuid].id, name, amount)
        for consumer in wanted
        for uuid, resources in consumer.allocations.items()
        for name, amount in resources.items()
    ]
    if rows:
        await tx.execute_many(INSERT_ALLOCATION, rows)
    used = sorted({row[1] for row in rows})
    freed = sorted({allocation.provider_id for allocation in locked.allocations}.difference(used))
    if used:
        await mark_allocations_changed(tx, used)
    if freed:
        await mark_allocations_freed(tx, freed)


async def remove(tx: Transaction, consumer_uuid: str) -> bool:
    """Delete a consumer and its allocations; False if it had none. Raises ConcurrentUpdate."""
    locked = await lock(tx, [ConsumerAllocations(uuid=consumer_uuid, allocations={})])
    if not locked.allocations:
        return False
    await tx.execute("DELETE FROM consumers WHERE uuid = $1", consumer_uuid)  # cascades to its allocations
    await mark_allocations_freed(tx, sorted({allocation.provider_id for allocation in locked.allocations}))
    return True


def _check_generation(consumer: ConsumerAllocations, stored: StoredConsumer | None) -> None:
    if consumer.generation is msgspec.UNSET:
        return
    actual = stored.generation if stored else None
    if actual != consumer.generation:
        raise Conflict(
            f"consumer generation conflict - expected {_as_json(actual)} but got {_as_json(consumer.generation)}",
            code=errors.CONCURRENT_UPDATE,
        )


def _as_json(generation: int | None) -> str:
    return "null" if generation is None else str(generation)


async def _check_names(tx: Transaction, wanted: Sequence[ConsumerAllocations], locked: LockedRows) -> None:
    for consumer in wanted:
        for uuid in consumer.allocations:
            if uuid not in locked.providers:
                raise BadRequest(f"Allocation for resource provider '{uuid}' that does not exist.")
    classes = {name for consumer in wanted for resources in consumer.allocations.values() for name in resources}
    unknown = await names.unknown_classes(tx, classes)
    if unknown:
        consumers = ", ".join(consumer.uuid for consumer in wanted[:3])
        raise BadRequest(
            f"Unable to allocate inventory for consumer {consumers}: No such resource class {', '.join(unknown)}."
        )


async def _check_capacity(tx: Transaction, wanted: Sequence[ConsumerAllocations], locked: LockedRows) -> None:
    """Raise Conflict if an allocation does not fit. Usage above the capacity is accepted where it does not grow."""
    ids = [locked.providers[uuid].id for uuid in {uuid for consumer in wanted for uuid in consumer.allocations}]
    if not ids:
        return
    rows = await tx.fetch(_INVENTORIES, ids)
    inventories = {(row["provider_id"], row["resource_class"]): Inventory.decode(row) for row in rows}
    used: dict[tuple[int, str], int] = {(row["provider_id"], row["resource_class"]): row["used"] for row in rows}
    growth: dict[tuple[int, str], int] = {}
    for allocation in locked.allocations:
        key = allocation.provider_id, allocation.resource_class
        growth[key] = growth.get(key, 0) - allocation.used
    for consumer in wanted:
        for uuid, resources in consumer.allocations.items():
            for name, amount in resources.items():
                key = locked.providers[uuid].id, name
                _check_unit(inventories.get(key), uuid, name, amount)
                growth[key] = growth.get(key, 0) + amount
    uuids = {provider.id: provider.uuid for provider in locked.providers.values()}
    for key, added in growth.items():
        inventory = inventories.get(key)
        if added > 0 and inventory is not None:
            capacity = (inventory.total - inventory.reserved) * inventory.allocation_ratio
            if used[key] + added > capacity:
                raise _invalid(uuids[key[0]], key[1], "The requested amount would exceed the capacity.")


def _check_unit(inventory: Inventory | None, uuid: str, name: str, amount: int) -> None:
    if inventory is None:
        raise _invalid(uuid, name, "There is no such inventory.")
    if amount % inventory.step_size or not inventory.min_unit <= amount <= inventory.max_unit:
        raise _invalid(uuid, name, "The requested amount would violate inventory constraints.")


def _invalid(uuid: str, name: str, why: str) -> Conflict:
    return Conflict(
        f"Unable to allocate inventory: Unable to create allocation for '{name}' on resource provider '{uuid}'. "
        f"{why} (Inventory for '{name}' on resource provider '{uuid}' invalid.)"
    )


async def _write_consumer(
    tx: Transaction, consumer: ConsumerAllocations, stored: StoredConsumer | None, default_owner: Owner
) -> None:
    """Insert, update or delete the consumer. A consumer without allocations has no row."""
    if not consumer.allocations:
        if stored is not None:
            await tx.execute("DELETE FROM consumers WHERE uuid = $1", consumer.uuid)
        return
    known = stored or default_owner
    given = (consumer.project_id, consumer.user_id, consumer.type)
    old = (known.project_id, known.user_id, known.type)
    values = [before if value is msgspec.UNSET else value for value, before in zip(given, old, strict=True)]
    if stored is not None:
        await tx.execute(_CHANGE_CONSUMER, consumer.uuid, *values, clock.now())
    elif not await tx.execute(INSERT_CONSUMER, consumer.uuid, *values, clock.now()):
        raise ConcurrentUpdate(consumer.uuid)


_LOCK_PROVIDERS = """
SELECT * FROM resource_providers
WHERE uuid = ANY($1) OR id IN (SELECT provider_id FROM allocations WHERE consumer_uuid = ANY($2))
ORDER BY id FOR UPDATE
"""
_LOCK_CONSUMERS = "SELECT * FROM consumers WHERE uuid = ANY($1) ORDER BY uuid FOR UPDATE"
_ALLOCATIONS = "SELECT * FROM allocations WHERE consumer_uuid = ANY($1)"
_INVENTORIES = f"SELECT i.*, {USED_AMOUNT} AS used FROM inventories i WHERE i.provider_id = ANY($1)"
INSERT_ALLOCATION = "INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used) VALUES ($1, $2, $3, $4)"
_CHANGE_CONSUMER = """
UPDATE consumers SET project_id = $2, user_id = $3, type = $4, generation = generation + 1, updated_at = $5
WHERE uuid = $1
"""
