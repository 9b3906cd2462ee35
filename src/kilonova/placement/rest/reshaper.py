"""The reshaper: moves inventories and their allocations between providers atomically."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.placement import allocation_update, errors, names
from kilonova.placement.allocation_update import LockedRows
from kilonova.placement.api import api
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.model import ResourceProvider
from kilonova.placement.rest import inventories
from kilonova.placement.rest.allocations import CONSUMER, KEY, incomplete_owner, parse_consumers
from kilonova.placement.rest.lookup import normalize_uuid
from kilonova.placement.rest.schemas import GENERATION, keyed_object, strict_object
from kilonova.store import Transaction

PATH = "/reshaper"
RESHAPE = strict_object(
    {
        "inventories": keyed_object(
            KEY,
            strict_object({"resource_provider_generation": GENERATION, "inventories": inventories.INVENTORIES}),
            at_least=1,
        ),
        "allocations": keyed_object(KEY, CONSUMER),
    }
)


@api.route("POST", PATH, policy="placement:reshaper:reshape", body=RESHAPE, query={"*": {}}, status=204)
async def reshape(ctx: Context) -> None:
    """Replace inventories of providers and allocations of consumers atomically."""
    shapes = {normalize_uuid(uuid): shape for uuid, shape in ctx.body["inventories"].items()}
    wanted = parse_consumers(ctx.body["allocations"])

    async def write(tx: Transaction) -> None:
        locked = await allocation_update.lock(tx, wanted, list(shapes))
        providers = [_find(locked, uuid, shape["resource_provider_generation"]) for uuid, shape in shapes.items()]
        ids = [provider.id for provider in providers]
        unknown = await names.unknown_classes(tx, (name for shape in shapes.values() for name in shape["inventories"]))
        if unknown:
            raise BadRequest(f"No such resource class {', '.join(unknown)}.")
        # Write the new inventories before deleting old ones, so that every allocation has an inventory at all times.
        for provider in providers:
            given = shapes[provider.uuid]["inventories"]
            rows = {name: inventories.parse_amounts(ctx, "update", provider, name, one) for name, one in given.items()}
            await inventories.write_inventories(tx, provider.id, rows)
        await mark_facts_changed(tx, ids)
        await allocation_update.replace(tx, wanted, locked, incomplete_owner(ctx))
        for provider in providers:
            kept = shapes[provider.uuid]["inventories"]
            await inventories.remove_inventories(
                tx, provider, await inventories.list_classes(tx, provider) - kept.keys()
            )
        await mark_facts_changed(tx, ids)

    await allocation_update.run_with_retries(ctx.db, write)


def _find(locked: LockedRows, uuid: str, generation: int) -> ResourceProvider:
    provider = locked.providers.get(uuid)
    if provider is None:
        raise BadRequest(
            f"Resource provider {uuid} in inventories not found: No resource provider with uuid {uuid} found",
            code=errors.PROVIDER_NOT_FOUND,
        )
    if provider.generation != generation:
        raise errors.generation_conflict(provider, generation)
    return provider
