"""Resource providers as hosts describe themselves: brought up to date in batches, written only where they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from kilonova import clock
from kilonova.placement.changes import NEXT, facts_changed
from kilonova.store import Row, Transaction

SHARES = "MISC_SHARES_VIA_AGGREGATE"

_NAME = re.compile(r"[A-Z0-9_]{1,255}")


class InventoryLike(Protocol):
    """What a host says it has of one class; the agents' own message has the same fields."""

    @property
    def total(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def min_unit(self) -> int: ...
    @property
    def max_unit(self) -> int | None: ...
    @property
    def step_size(self) -> int: ...
    @property
    def allocation_ratio(self) -> float: ...


class Inventory(msgspec.Struct, frozen=True):
    """How much of one class there is. Without `max_unit` one consumer may have all of it."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


class ProviderFacts(msgspec.Struct, frozen=True):
    uuid: str
    name: str
    inventory: Mapping[str, InventoryLike]
    traits: Sequence[str] = ()


class Amounts(NamedTuple):
    """An inventory as its row has it."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class _Known(NamedTuple):
    """A provider as the database has it."""

    id: int
    name: str
    inventory: dict[str, Amounts]
    traits: set[str]


async def sync(tx: Transaction, hosts: Sequence[ProviderFacts]) -> None:
    """Make the database agree with what the hosts say. Writes nothing where it already does.

    A class that a host no longer has, but somebody still uses, stays closed to new claims until it is free.
    """
    facts = {host.uuid: host for host in hosts}
    known = await _known(tx, list(facts))
    fresh = [host for uuid, host in facts.items() if uuid not in known]
    if fresh:
        await _create(tx, fresh)
        known |= await _known(tx, [host.uuid for host in fresh])
    desired = {uuid: _desired(host) for uuid, host in facts.items()}
    await _close_used(tx, known, desired)
    changed = sorted(uuid for uuid in facts if _differs(known[uuid], facts[uuid], desired[uuid]))
    if changed:
        await _write(tx, [(known[uuid], facts[uuid], desired[uuid]) for uuid in changed])


async def _known(tx: Transaction, uuids: list[str]) -> dict[str, _Known]:
    rows = await tx.fetch("SELECT id, uuid, name FROM resource_providers WHERE uuid = ANY($1)", uuids)
    by_id = {row["id"]: _Known(row["id"], row["name"], {}, set()) for row in rows}
    if by_id:
        for row in await tx.fetch("SELECT * FROM inventories WHERE provider_id = ANY($1)", list(by_id)):
            by_id[row["provider_id"]].inventory[row["resource_class"]] = _amounts_of_row(row)
        for row in await tx.fetch(
            "SELECT provider_id, trait FROM provider_traits WHERE provider_id = ANY($1)", list(by_id)
        ):
            by_id[row["provider_id"]].traits.add(row["trait"])
    return {row["uuid"]: by_id[row["id"]] for row in rows}


async def _create(tx: Transaction, fresh: list[ProviderFacts]) -> None:
    now = clock.now()
    await tx.execute_many(_CREATE, [(host.uuid, host.name, now) for host in fresh])
    await tx.execute("UPDATE resource_providers SET root_id = id WHERE root_id IS NULL")


def _desired(host: ProviderFacts) -> dict[str, Amounts]:
    return {name: _amounts(inventory) for name, inventory in host.inventory.items()}


def _differs(known: _Known, host: ProviderFacts, desired: dict[str, Amounts]) -> bool:
    return known.inventory != desired or known.name != host.name or known.traits != set(host.traits)


async def _close_used(tx: Transaction, known: dict[str, _Known], desired: dict[str, dict[str, Amounts]]) -> None:
    """Keep, but close, the classes that a host lost while they are in use."""
    lost = {known[uuid].id: uuid for uuid in desired if known[uuid].inventory.keys() - desired[uuid].keys()}
    if not lost:
        return
    for row in await tx.fetch(_IN_USE, list(lost)):
        uuid, name = lost[row["provider_id"]], row["resource_class"]
        if name not in desired[uuid]:
            had = known[uuid].inventory[name]
            desired[uuid][name] = had._replace(reserved=had.total)


async def _write(tx: Transaction, changes: list[tuple[_Known, ProviderFacts, dict[str, Amounts]]]) -> None:
    ids = [known.id for known, _, _ in changes]
    await tx.fetch("SELECT id FROM resource_providers WHERE id = ANY($1) ORDER BY id FOR UPDATE", ids)
    await _write_inventories(tx, changes)
    await _write_traits(tx, changes)
    renamed = [(known.id, host.name) for known, host, _ in changes if known.name != host.name]
    if renamed:
        await tx.execute_many("UPDATE resource_providers SET name = $2 WHERE id = $1", renamed)
    await facts_changed(tx, ids)


async def _write_inventories(tx: Transaction, changes: list[tuple[_Known, ProviderFacts, dict[str, Amounts]]]) -> None:
    put = [
        (known.id, name, *amounts)
        for known, _, desired in changes
        for name, amounts in desired.items()
        if known.inventory.get(name) != amounts
    ]
    drop = [(known.id, name) for known, _, desired in changes for name in known.inventory.keys() - desired.keys()]
    if put:
        await ensure(tx, "resource_classes", {row[1] for row in put})
        await tx.execute_many(_PUT_INVENTORY, put)
    if drop:
        await tx.execute_many("DELETE FROM inventories WHERE provider_id = $1 AND resource_class = $2", drop)


async def _write_traits(tx: Transaction, changes: list[tuple[_Known, ProviderFacts, dict[str, Amounts]]]) -> None:
    put = [(known.id, trait) for known, host, _ in changes for trait in sorted(set(host.traits) - known.traits)]
    drop = [(known.id, trait) for known, host, _ in changes for trait in known.traits - set(host.traits)]
    if put:
        await ensure(tx, "traits", {trait for _, trait in put})
        await tx.execute_many(
            "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2) ON CONFLICT DO NOTHING", put
        )
    if drop:
        await tx.execute_many("DELETE FROM provider_traits WHERE provider_id = $1 AND trait = $2", drop)


async def ensure(tx: Transaction, table: str, names: Iterable[str]) -> None:
    """Have a row for every class or trait that a host names."""
    wanted = sorted(names)
    there = {row["name"] for row in await tx.fetch(f"SELECT name FROM {table} WHERE name = ANY($1)", wanted)}
    missing = [name for name in wanted if name not in there]
    for name in missing:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for one of {table}")
    if missing:
        now = clock.now()
        await tx.execute_many(
            f"INSERT INTO {table} (name, created_at, updated_at) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING",
            [(name, now) for name in missing],
        )


async def drop_unshared(tx: Transaction, aggregates: Sequence[str]) -> None:
    """Reported sharing providers of these aggregates go once nobody else is in them; those in use are closed."""
    if not aggregates:
        return
    rows = await tx.fetch(_UNSHARED, list(aggregates), SHARES)
    ids = [row["id"] for row in rows]
    used = {row["provider_id"] for row in await tx.fetch(_IN_USE, ids)}
    await tx.execute("DELETE FROM resource_providers WHERE id = ANY($1)", [id for id in ids if id not in used])
    closed = sorted(used)
    if closed:
        await tx.execute("UPDATE inventories SET reserved = total WHERE provider_id = ANY($1)", closed)
        await facts_changed(tx, closed)


def _amounts(inventory: InventoryLike) -> Amounts:
    unit = inventory.total if inventory.max_unit is None else inventory.max_unit
    return Amounts(
        inventory.total, inventory.reserved, inventory.min_unit, unit, inventory.step_size, inventory.allocation_ratio
    )


def _amounts_of_row(row: Row) -> Amounts:
    return Amounts(
        row["total"], row["reserved"], row["min_unit"], row["max_unit"], row["step_size"], row["allocation_ratio"]
    )


_INVENTORIES = "SELECT * FROM inventories WHERE provider_id = ANY($1)"
_TRAITS = "SELECT provider_id, trait FROM provider_traits WHERE provider_id = ANY($1)"
_CREATE = f"""
INSERT INTO resource_providers (uuid, name, generation, change, facts, created_at, updated_at)
VALUES ($1, $2, 0, {NEXT}, {NEXT}, $3, $3) ON CONFLICT (uuid) DO NOTHING
"""
_IN_USE = "SELECT DISTINCT provider_id, resource_class FROM allocations WHERE provider_id = ANY($1)"
_UNSHARED = """
SELECT id FROM resource_providers
WHERE reported
  AND id IN (SELECT t.provider_id FROM provider_traits t JOIN provider_aggregates a ON a.provider_id = t.provider_id
        WHERE t.trait = $2 AND a.reported AND a.aggregate_uuid = ANY($1))
  AND NOT EXISTS (SELECT 1 FROM provider_aggregates mine
        JOIN provider_aggregates other ON other.aggregate_uuid = mine.aggregate_uuid
        WHERE mine.provider_id = resource_providers.id AND other.provider_id <> mine.provider_id)
ORDER BY id FOR UPDATE
"""
_PUT_INVENTORY = """
INSERT INTO inventories
    (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size, allocation_ratio)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (provider_id, resource_class) DO UPDATE SET total = excluded.total, reserved = excluded.reserved,
    min_unit = excluded.min_unit, max_unit = excluded.max_unit, step_size = excluded.step_size,
    allocation_ratio = excluded.allocation_ratio
"""
