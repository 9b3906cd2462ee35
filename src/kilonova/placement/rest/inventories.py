"""The inventories of a provider, one for each resource class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kilonova.http import Context, Response, View, attribute
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.schema import Schema
from kilonova.placement import errors, names
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.model import Inventory, ResourceProvider
from kilonova.placement.rest.lookup import (
    PROVIDER_PATH,
    find_provider,
    lock_provider,
    lock_provider_at,
    require_provider,
)
from kilonova.placement.rest.schemas import GENERATION, keyed_object, strict_object
from kilonova.store import Reader, Transaction

POLICY = "placement:resource_providers:inventories:"
ALL_PATH, ONE_PATH = f"{PROVIDER_PATH}/inventories", f"{PROVIDER_PATH}/inventories/{{resource_class}}"
FULLY_RESERVED = api.behaviour("an inventory may be fully reserved")

MAXIMUM = 2**31 - 1
Amounts = tuple[float, ...]
"""Values of the columns in AMOUNTS."""
CLASS = "^[A-Z0-9_]+$"
AMOUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAXIMUM}
AMOUNTS: dict[str, Schema] = {
    "total": AMOUNT,
    "reserved": {"type": "integer", "minimum": 0, "maximum": MAXIMUM},
    "min_unit": AMOUNT,
    "max_unit": AMOUNT,
    "step_size": AMOUNT,
    "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 3.40282e38},
}
DEFAULTS: dict[str, float] = {
    "reserved": 0,
    "min_unit": 1,
    "max_unit": MAXIMUM,
    "step_size": 1,
    "allocation_ratio": 1.0,
}
# Clients send back what they received, so each of several inventories may have a generation too.
MEMBER = strict_object({**AMOUNTS, "resource_provider_generation": GENERATION}, ["total"])
INVENTORIES = keyed_object(CLASS, MEMBER)
CREATE = strict_object(
    {"resource_class": {"type": "string", "pattern": CLASS}, **MEMBER["properties"]}, ["resource_class", "total"]
)
REPLACE = strict_object({"resource_provider_generation": GENERATION, "inventories": INVENTORIES})
UPDATE = {**MEMBER, "required": ["total", "resource_provider_generation"]}

api.view(View("inventory", {name: attribute(name, schema) for name, schema in sorted(AMOUNTS.items())}))


@api.route("GET", ALL_PATH, policy=POLICY + "list", query={"*": {}})
async def index(ctx: Context, uuid: str) -> Response:
    """List a provider's inventories."""
    provider = await find_provider(ctx.db, uuid)
    return _render_all(ctx, provider, await _fetch_all(ctx.db, provider))


@api.route(
    "POST", ALL_PATH, policy=POLICY + "create", body=CREATE, query={"*": {}}, status=201, check_exists=require_provider
)
async def create(ctx: Context, uuid: str) -> Response:
    """Add the inventory of a class."""
    name = ctx.body["resource_class"]
    async with ctx.db.transaction() as tx:
        provider = await lock_provider_at(tx, uuid, ctx.body.get("resource_provider_generation"))
        await _check_classes_exist(tx, [name], "No such resource class {}.")
        wanted = parse_amounts(ctx, "create", provider, name, ctx.body)
        if await _find(tx, provider, name) is not None:
            raise Conflict(f"Update conflict: resource provider {provider.uuid} already has inventory of {name}.")
        written = await _write_one(tx, provider, name, wanted)
    location = ctx.url(f"/resource_providers/{provider.uuid}/inventories/{name}")
    return _render_one(ctx, *written, headers={"Location": location})


@api.route("PUT", ALL_PATH, policy=POLICY + "update", body=REPLACE, query={"*": {}}, check_exists=require_provider)
async def replace(ctx: Context, uuid: str) -> Response:
    """Replace all inventories of a provider."""
    given = ctx.body["inventories"]
    async with ctx.db.transaction() as tx:
        provider = await lock_provider_at(tx, uuid, ctx.body["resource_provider_generation"])
        await _check_classes_exist(
            tx, given, "Unknown resource class in inventory for resource provider: No such resource class {}."
        )
        wanted = {name: parse_amounts(ctx, "update", provider, name, inventory) for name, inventory in given.items()}
        await remove_inventories(tx, provider, await list_classes(tx, provider) - wanted.keys())
        await write_inventories(tx, provider.id, wanted)
        await mark_facts_changed(tx, [provider.id])
        provider = await find_provider(tx, uuid)
        inventories = await _fetch_all(tx, provider)
    return _render_all(ctx, provider, inventories)


@api.route("DELETE", ALL_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def clear(ctx: Context, uuid: str) -> None:
    """Delete all inventories of a provider, if none has allocations."""
    async with ctx.db.transaction() as tx:
        provider = await lock_provider(tx, uuid)
        await remove_inventories(tx, provider, await list_classes(tx, provider))
        await mark_facts_changed(tx, [provider.id])


@api.route("GET", ONE_PATH, policy=POLICY + "show", query={"*": {}}, shows=("", "inventory", False))
async def show(ctx: Context, uuid: str, resource_class: str) -> Response:
    """Show the inventory of a class."""
    provider = await find_provider(ctx.db, uuid)
    inventory = await _find(ctx.db, provider, resource_class)
    if inventory is None:
        raise NotFound(f"No inventory of class {resource_class[:255]} for {provider.uuid}")
    return _render_one(ctx, provider, inventory)


@api.route("PUT", ONE_PATH, policy=POLICY + "update", body=UPDATE, query={"*": {}}, check_exists=require_provider)
async def update(ctx: Context, uuid: str, resource_class: str) -> Response:
    """Update the inventory of a class."""
    async with ctx.db.transaction() as tx:
        provider = await lock_provider_at(tx, uuid, ctx.body["resource_provider_generation"])
        wanted = parse_amounts(ctx, "update", provider, resource_class, ctx.body)
        if await _find(tx, provider, resource_class) is None:
            raise BadRequest(f"No inventory record with resource class for resource provider {provider.uuid}.")
        written = await _write_one(tx, provider, resource_class, wanted)
    return _render_one(ctx, *written)


@api.route("DELETE", ONE_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, uuid: str, resource_class: str) -> None:
    """Delete the inventory of a class, if it has no allocations."""
    async with ctx.db.transaction() as tx:
        provider = await lock_provider(tx, uuid)
        if not await remove_inventories(tx, provider, [resource_class]):
            raise NotFound(f"No inventory of class {resource_class[:255]} found for delete")
        await mark_facts_changed(tx, [provider.id])


# Also used by the reshaper


def parse_amounts(
    ctx: Context, verb: str, provider: ResourceProvider, name: str, given: Mapping[str, float]
) -> Amounts:
    """The columns of an inventory. Raises BadRequest if the reserved amount is too large."""
    values = {**DEFAULTS, **given}
    total, reserved = values["total"], values["reserved"]
    whole = ctx.has_behaviour(FULLY_RESERVED)
    if reserved > total or (reserved == total and not whole):
        raise BadRequest(
            f"Unable to {verb} inventory for resource provider {provider.uuid}: Invalid inventory for '{name}' on "
            f"resource provider '{provider.uuid}'. The reserved value is greater than "
            f"{'' if whole else 'or equal to '}total."
        )
    return tuple(values[column] for column in AMOUNTS)


async def write_inventories(tx: Transaction, provider_id: int, wanted: Mapping[str, Amounts]) -> None:
    """Insert or update inventories of existing classes."""
    if wanted:
        await names.ensure_rows(tx, "resource_classes", wanted)
        await tx.execute_many(_PUT, [(provider_id, name, *columns) for name, columns in wanted.items()])


async def remove_inventories(tx: Transaction, provider: ResourceProvider, classes: Iterable[str]) -> int:
    """Delete inventories and return their number. Raises Conflict if one has allocations."""
    removed = sorted(classes)
    if not removed:
        return 0
    rows = await tx.fetch(_USED, provider.id, removed)
    if rows:
        used = ", ".join(sorted((row["resource_class"] for row in rows), key=names.class_sort_key))
        raise Conflict(
            f"Unable to update inventory: Inventory for '{used}' on resource provider '{provider.uuid}' in use.",
            code=errors.INVENTORY_IN_USE,
        )
    return await tx.execute(
        "DELETE FROM inventories WHERE provider_id = $1 AND resource_class = ANY($2)", provider.id, removed
    )


# Reading


async def _check_classes_exist(reader: Reader, classes: Iterable[str], message: str) -> None:
    unknown = await names.unknown_classes(reader, classes)
    if unknown:
        raise BadRequest(message.format(", ".join(unknown)))


async def list_classes(reader: Reader, provider: ResourceProvider) -> set[str]:
    rows = await reader.fetch("SELECT resource_class FROM inventories WHERE provider_id = $1", provider.id)
    return {row["resource_class"] for row in rows}


async def _find(reader: Reader, provider: ResourceProvider, resource_class: str) -> Inventory | None:
    return Inventory.decode_optional(await reader.fetch_one(_ONE, provider.id, resource_class))


async def _write_one(
    tx: Transaction, provider: ResourceProvider, resource_class: str, amounts: Amounts
) -> tuple[ResourceProvider, Inventory]:
    """Write an inventory. Returns the provider, with its new generation, and the inventory."""
    await write_inventories(tx, provider.id, {resource_class: amounts})
    await mark_facts_changed(tx, [provider.id])
    inventory = await _find(tx, provider, resource_class)
    assert inventory is not None
    return await find_provider(tx, provider.uuid), inventory


async def _fetch_all(reader: Reader, provider: ResourceProvider) -> list[Inventory]:
    return Inventory.decode_all(await reader.fetch(_ALL, provider.id))


def _render_one(
    ctx: Context, provider: ResourceProvider, inventory: Inventory, headers: Mapping[str, str] | None = None
) -> Response:
    shown = {"resource_provider_generation": provider.generation, **ctx.render("inventory", inventory)}
    return with_last_modified(ctx, shown, provider.updated_at, headers=headers)


def _render_all(ctx: Context, provider: ResourceProvider, inventories: list[Inventory]) -> Response:
    shown = {
        "resource_provider_generation": provider.generation,
        "inventories": {one.resource_class: ctx.render("inventory", one) for one in inventories},
    }
    return with_last_modified(ctx, shown, provider.updated_at)


_ALL = "SELECT * FROM inventories WHERE provider_id = $1 ORDER BY resource_class"
_ONE = "SELECT * FROM inventories WHERE provider_id = $1 AND resource_class = $2"
_USED = "SELECT DISTINCT resource_class FROM allocations WHERE provider_id = $1 AND resource_class = ANY($2)"
_PUT = """
INSERT INTO inventories
    (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size, allocation_ratio)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (provider_id, resource_class) DO UPDATE SET total = excluded.total, reserved = excluded.reserved,
    min_unit = excluded.min_unit, max_unit = excluded.max_unit, step_size = excluded.step_size,
    allocation_ratio = excluded.allocation_ratio
"""
