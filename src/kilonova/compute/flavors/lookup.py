"""Look up the flavor of a path or a body, or raise the HTTP error."""

from __future__ import annotations

from kilonova.compute.flavors import model
from kilonova.compute.flavors.model import Flavor
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Transaction


async def get_visible(ctx: Context, flavor_id: str) -> Flavor:
    flavor = await model.get(ctx.db, flavor_id, ctx.token)
    if flavor is None:
        raise not_found(flavor_id)
    return flavor


async def get_referenced(ctx: Context, reader: Reader, reference: str) -> Flavor:
    """The flavor of a `flavorRef`, which may be an id or, from old clients, a link."""
    flavor_id = reference.rstrip("/").rsplit("/", 1)[-1]
    flavor = await model.get(reader, flavor_id, ctx.token)
    if flavor is None or flavor.disabled:
        raise BadRequest(f"Flavor {flavor_id} could not be found.")
    return flavor


async def get_locked(tx: Transaction, flavor_id: str) -> Flavor:
    """The flavor, locked until the transaction ends. Access is not checked."""
    flavor = await model.lock(tx, flavor_id)
    if flavor is None:
        raise not_found(flavor_id)
    return flavor


def not_found(flavor_id: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} could not be found.")
