"""Finding the flavor that a path or a body names."""

from __future__ import annotations

from kilonova.compute.flavors import model
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Row, Transaction


async def visible(ctx: Context, flavor_id: str) -> Row:
    row = await model.get(ctx.db, flavor_id, ctx.token)
    if row is None:
        raise missing(flavor_id)
    return row


async def referred(ctx: Context, reader: Reader, reference: str) -> Row:
    """The flavor that a server shall have. Old clients send a link instead of an id."""
    flavor_id = reference.rstrip("/").rsplit("/", 1)[-1]
    row = await model.get(reader, flavor_id, ctx.token)
    if row is None or row["disabled"]:
        raise BadRequest(f"Flavor {flavor_id} could not be found.")
    return row


async def locked(tx: Transaction, flavor_id: str) -> Row:
    """The flavor, whoever may see it, until the transaction ends."""
    row = await model.lock(tx, flavor_id)
    if row is None:
        raise missing(flavor_id)
    return row


def missing(flavor_id: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} could not be found.")
