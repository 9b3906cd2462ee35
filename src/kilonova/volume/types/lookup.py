"""Finding the type that a path names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kilonova import store
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Row, Transaction
from kilonova.volume.types import model


async def visible(ctx: Context, type_id: str) -> Row:
    row = await model.get(ctx.db, type_id, ctx.token)
    if row is None:
        raise missing(type_id)
    return row


async def locked(tx: Transaction, type_id: str) -> Row:
    """The type, whoever may see it, until the transaction ends."""
    row = await model.lock(tx, type_id)
    if row is None:
        raise missing(type_id)
    return row


@contextmanager
def kept(reference: str) -> Iterator[None]:
    """Around a transaction that gives something a type: the type may be deleted at the same time."""
    try:
        yield
    except store.Conflict:
        raise missing(reference) from None


def missing(type_id: str) -> NotFound:
    return NotFound(f"Volume type {type_id} could not be found.")
