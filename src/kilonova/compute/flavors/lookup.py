"""Finding the flavor that a path names."""

from __future__ import annotations

from kilonova.compute.flavors import model
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Row, Transaction


async def visible(ctx: Context, flavor_id: str) -> Row:
    row = await model.get(ctx.db, flavor_id, ctx.token)
    if row is None:
        raise missing(flavor_id)
    return row


async def locked(tx: Transaction, flavor_id: str) -> Row:
    """The flavor, whoever may see it, until the transaction ends."""
    row = await model.lock(tx, flavor_id)
    if row is None:
        raise missing(flavor_id)
    return row


def missing(flavor_id: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} could not be found.")
