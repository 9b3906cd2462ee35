"""Look up the flavor of a path or a body, or raise the HTTP error."""

from __future__ import annotations

from kilonova.compute.flavors import model
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Row, Transaction


async def get_visible(ctx: Context, flavor_id: str) -> Row:
    row = await model.get(ctx.db, flavor_id, ctx.token)
    if row is None:
        raise not_found(flavor_id)
    return row


async def get_referenced(ctx: Context, reader: Reader, reference: str) -> Row:
    """The flavor of a `flavorRef`, which may be an id or, from old clients, a link."""
    flavor_id = reference.rstrip("/").rsplit("/", 1)[-1]
    row = await model.get(reader, flavor_id, ctx.token)
    if row is None or row["disabled"]:
        raise BadRequest(f"Flavor {flavor_id} could not be found.")
    return row


async def get_locked(tx: Transaction, flavor_id: str) -> Row:
    """The flavor, locked until the transaction ends. Access is not checked."""
    row = await model.lock(tx, flavor_id)
    if row is None:
        raise not_found(flavor_id)
    return row


def not_found(flavor_id: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} could not be found.")
