"""Inventories: how much of each class a provider has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kilonova.http import Answer, Context, View, col
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.placement import errors, names
from kilonova.placement.api import api, dated
from kilonova.placement.changes import facts_changed
from kilonova.placement.rest.common import (
    GENERATION,
    PROVIDER,
    Schema,
    closed,
    exists,
    find,
    keyed,
    lock,
    lock_at,
)
from kilonova.store import Reader, Row, Transaction

POLICY = "placement:resource_providers:inventories:"
ALL, ONE = f"{PROVIDER}/inventories", f"{PROVIDER}/inventories/{{resource_class}}"
RESERVED_WHOLE = "all of an inventory may be reserved"

MAXIMUM = 2**31 - 1
CLASS = "^[A-Z0-9_]+$"
AMOUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAXIMUM}
AMOUNTS: dict[str, Schema] = {
    "total": AMOUNT,
    "reserved": {"type": "integer", "minimum": 0, "maximum": MAXIMUM},
    "min_unit": AMOUNT,
    "max_unit": AMOUNT,
    "step_size": AMOUNT,
    "allocation_ratio": {"type": "number", "minimum": 0, "maximum": 3.40282e38},
}
DEFAULTS = {"reserved": 0, "min_unit": 1, "max_unit": MAXIMUM, "step_size": 1, "allocation_ratio": 1.0}
# Clients send back what they got, so a generation may stand in each of several inventories, too.
MEMBER = closed({**AMOUNTS, "resource_provider_generation": GENERATION}, ["total"])
INVENTORIES = keyed(CLASS, MEMBER)
CREATE = closed(
    {"resource_class": {"type": "string", "pattern": CLASS}, **MEMBER["properties"]}, ["resource_class", "total"]
)
REPLACE = closed({"resource_provider_generation": GENERATION, "inventories": INVENTORIES})
UPDATE = {**MEMBER, "required": ["total", "resource_provider_generation"]}

api.view(View("inventory", {name: col(name, schema) for name, schema in sorted(AMOUNTS.items())}))


@api.route("GET", ALL, policy=POLICY + "list", query={"*": {}})
async def index(ctx: Context, uuid: str) -> Answer:
    """List a provider's inventories."""
    provider = await find(ctx.db, uuid)
    return _shown(ctx, provider, await ctx.db.fetch(_ALL, provider["id"]))


@api.route("POST", ALL, policy=POLICY + "create", body=CREATE, query={"*": {}}, status=201, subject=exists)
async def create(ctx: Context, uuid: str) -> Answer:
    """Add an inventory of one more class."""
    name = ctx.body["resource_class"]
    async with ctx.db.transaction() as tx:
        provider = await lock_at(tx, uuid, ctx.body.get("resource_provider_generation"))
        await _know(tx, [name], "No such resource class {}.")
        wanted = {name: amounts(ctx, "create", provider, name, ctx.body)}
        if await _one(tx, provider, name) is not None:
            raise Conflict(f"Update conflict: resource provider {provider['uuid']} already has inventory of {name}.")
        await put(tx, provider["id"], wanted)
        row = await _after(tx, provider, name)
    location = ctx.url(f"/resource_providers/{provider['uuid']}/inventories/{name}")
    return dated(ctx, _single(ctx, row), row["updated_at"], headers={"Location": location})


@api.route("PUT", ALL, policy=POLICY + "update", body=REPLACE, query={"*": {}}, subject=exists)
async def replace(ctx: Context, uuid: str) -> Answer:
    """Replace all inventories of a provider."""
    given = ctx.body["inventories"]
    async with ctx.db.transaction() as tx:
        provider = await lock_at(tx, uuid, ctx.body["resource_provider_generation"])
        await _know(tx, given, "Unknown resource class in inventory for resource provider: No such resource class {}.")
        wanted = {name: amounts(ctx, "update", provider, name, inventory) for name, inventory in given.items()}
        await drop(tx, provider, await classes(tx, provider) - wanted.keys())
        await put(tx, provider["id"], wanted)
        await facts_changed(tx, [provider["id"]])
        provider = await find(tx, uuid)
        rows = await tx.fetch(_ALL, provider["id"])
    return _shown(ctx, provider, rows)


@api.route("DELETE", ALL, policy=POLICY + "delete", query={"*": {}}, status=204)
async def clear(ctx: Context, uuid: str) -> None:
    """Remove all inventories of a provider, if nobody uses them."""
    async with ctx.db.transaction() as tx:
        provider = await lock(tx, uuid)
        await drop(tx, provider, await classes(tx, provider))
        await facts_changed(tx, [provider["id"]])


@api.route("GET", ONE, policy=POLICY + "show", query={"*": {}}, shows=("", "inventory", False))
async def show(ctx: Context, uuid: str, resource_class: str) -> Answer:
    """Show the inventory of one class."""
    provider = await find(ctx.db, uuid)
    row = await _one(ctx.db, provider, resource_class)
    if row is None:
        raise NotFound(f"No inventory of class {resource_class[:255]} for {provider['uuid']}")
    return dated(ctx, _single(ctx, row), row["updated_at"])


@api.route("PUT", ONE, policy=POLICY + "update", body=UPDATE, query={"*": {}}, subject=exists)
async def update(ctx: Context, uuid: str, resource_class: str) -> Answer:
    """Change the inventory of one class."""
    async with ctx.db.transaction() as tx:
        provider = await lock_at(tx, uuid, ctx.body["resource_provider_generation"])
        wanted = {resource_class: amounts(ctx, "update", provider, resource_class, ctx.body)}
        if await _one(tx, provider, resource_class) is None:
            raise BadRequest(f"No inventory record with resource class for resource provider {provider['uuid']}.")
        await put(tx, provider["id"], wanted)
        row = await _after(tx, provider, resource_class)
    return dated(ctx, _single(ctx, row), row["updated_at"])


@api.route("DELETE", ONE, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, uuid: str, resource_class: str) -> None:
    """Remove the inventory of one class, if nobody uses it."""
    async with ctx.db.transaction() as tx:
        provider = await lock(tx, uuid)
        if not await drop(tx, provider, [resource_class]):
            raise NotFound(f"No inventory of class {resource_class[:255]} found for delete")
        await facts_changed(tx, [provider["id"]])


# What the reshaper uses too


def amounts(ctx: Context, verb: str, provider: Row, name: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """An inventory's columns; 400 if more is reserved than there is."""
    filled = {**DEFAULTS, **given}
    total, reserved = filled["total"], filled["reserved"]
    whole = ctx.behaves(RESERVED_WHOLE)
    if reserved > total or (reserved == total and not whole):
        raise BadRequest(
            f"Unable to {verb} inventory for resource provider {provider['uuid']}: Invalid inventory for '{name}' on "
            f"resource provider '{provider['uuid']}'. The reserved value is greater than "
            f"{'' if whole else 'or equal to '}total."
        )
    return tuple(filled[column] for column in AMOUNTS)


async def put(tx: Transaction, provider_id: int, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Write inventories of classes that exist."""
    if wanted:
        await names.ensure(tx, "resource_classes", wanted)
        await tx.execute_many(_PUT, [(provider_id, name, *columns) for name, columns in wanted.items()])


async def drop(tx: Transaction, provider: Row, classes: Iterable[str]) -> int:
    """Remove inventories; 409 if somebody uses one of them."""
    going = sorted(classes)
    if not going:
        return 0
    rows = await tx.fetch(_USED, provider["id"], going)
    if rows:
        used = ", ".join(sorted((row["resource_class"] for row in rows), key=names.class_order))
        raise Conflict(
            f"Unable to update inventory: Inventory for '{used}' on resource provider '{provider['uuid']}' in use.",
            code=errors.INVENTORY_IN_USE,
        )
    return await tx.execute(
        "DELETE FROM inventories WHERE provider_id = $1 AND resource_class = ANY($2)", provider["id"], going
    )


# Reading


async def _know(reader: Reader, classes: Iterable[str], words: str) -> None:
    unknown = await names.unknown_classes(reader, classes)
    if unknown:
        raise BadRequest(words.format(", ".join(unknown)))


async def classes(reader: Reader, provider: Row) -> set[str]:
    rows = await reader.fetch("SELECT resource_class FROM inventories WHERE provider_id = $1", provider["id"])
    return {row["resource_class"] for row in rows}


async def _one(reader: Reader, provider: Row, resource_class: str) -> Row | None:
    return await reader.fetch_one(_ONE, provider["id"], resource_class)


async def _after(tx: Transaction, provider: Row, resource_class: str) -> Row:
    """What was just written, with the provider's new generation."""
    await facts_changed(tx, [provider["id"]])
    row = await _one(tx, provider, resource_class)
    assert row is not None
    return row


def _single(ctx: Context, row: Row) -> dict[str, Any]:
    return {"resource_provider_generation": row["generation"], **ctx.render("inventory", row)}


def _shown(ctx: Context, provider: Row, rows: list[Row]) -> Answer:
    shown = {
        "resource_provider_generation": provider["generation"],
        "inventories": {row["resource_class"]: ctx.render("inventory", row) for row in rows},
    }
    return dated(ctx, shown, provider["updated_at"])


_ALL = "SELECT * FROM inventories WHERE provider_id = $1 ORDER BY resource_class"
_ONE = """
SELECT i.*, p.generation, p.updated_at FROM inventories i JOIN resource_providers p ON p.id = i.provider_id
WHERE i.provider_id = $1 AND i.resource_class = $2
"""
_USED = "SELECT DISTINCT resource_class FROM allocations WHERE provider_id = $1 AND resource_class = ANY($2)"
_PUT = """
INSERT INTO inventories
    (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size, allocation_ratio)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (provider_id, resource_class) DO UPDATE SET total = excluded.total, reserved = excluded.reserved,
    min_unit = excluded.min_unit, max_unit = excluded.max_unit, step_size = excluded.step_size,
    allocation_ratio = excluded.allocation_ratio
"""
