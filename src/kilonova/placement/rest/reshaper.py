"""The reshaper: moves inventories and the allocations on them between providers, all at once."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.placement import errors, names, replacing
from kilonova.placement.api import api
from kilonova.placement.changes import facts_changed
from kilonova.placement.replacing import Locked
from kilonova.placement.rest import inventories
from kilonova.placement.rest.allocations import CONSUMER, KEY, incomplete, wanted_of
from kilonova.placement.rest.common import GENERATION, canonical, closed, keyed
from kilonova.store import Row, Transaction

PATH = "/reshaper"
RESHAPE = closed(
    {
        "inventories": keyed(
            KEY,
            closed({"resource_provider_generation": GENERATION, "inventories": inventories.INVENTORIES}),
            at_least=1,
        ),
        "allocations": keyed(KEY, CONSUMER),
    }
)


@api.route("POST", PATH, policy="placement:reshaper:reshape", body=RESHAPE, query={"*": {}}, status=204)
async def reshape(ctx: Context) -> None:
    """Replace inventories of providers and what consumers hold, all at once."""
    shapes = {canonical(uuid): shape for uuid, shape in ctx.body["inventories"].items()}
    wanted = wanted_of(ctx.body["allocations"])

    async def write(tx: Transaction) -> None:
        locked = await replacing.lock(tx, wanted, list(shapes))
        providers = [_provider(locked, uuid, shape["resource_provider_generation"]) for uuid, shape in shapes.items()]
        ids = [provider["id"] for provider in providers]
        unknown = await names.unknown_classes(tx, (name for shape in shapes.values() for name in shape["inventories"]))
        if unknown:
            raise BadRequest(f"No such resource class {', '.join(unknown)}.")
        # At first providers have what they had and what they shall have, so that every allocation finds its inventory.
        for provider in providers:
            given = shapes[provider["uuid"]]["inventories"]
            rows = {name: inventories.amounts(ctx, "update", provider, name, one) for name, one in given.items()}
            await inventories.put(tx, provider["id"], rows)
        await facts_changed(tx, ids)
        await replacing.replace(tx, wanted, locked, incomplete(ctx))
        for provider in providers:
            kept = shapes[provider["uuid"]]["inventories"]
            await inventories.drop(tx, provider, await inventories.classes(tx, provider) - kept.keys())
        await facts_changed(tx, ids)

    await replacing.settled(ctx.db, write)


def _provider(locked: Locked, uuid: str, generation: int) -> Row:
    provider = locked.providers.get(uuid)
    if provider is None:
        raise BadRequest(
            f"Resource provider {uuid} in inventories not found: No resource provider with uuid {uuid} found",
            code=errors.PROVIDER_NOT_FOUND,
        )
    if provider["generation"] != generation:
        raise errors.generation_conflict(provider, generation)
    return provider
