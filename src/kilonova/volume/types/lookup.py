"""Find the volume type that a path or a body names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kilonova import store
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Transaction
from kilonova.volume.types import model
from kilonova.volume.types.model import VolumeType


async def get_visible(ctx: Context, type_id: str) -> VolumeType:
    found = await model.get(ctx.db, type_id, ctx.token)
    if found is None:
        raise not_found(type_id)
    return found


async def get_locked(tx: Transaction, type_id: str) -> VolumeType:
    """Lock the type, without a check of visibility."""
    found = await model.lock(tx, type_id)
    if found is None:
        raise not_found(type_id)
    return found


@contextmanager
def not_found_on_conflict(reference: str) -> Iterator[None]:
    """Turn a conflict into 404: the type was deleted during a transaction that refers to it."""
    try:
        yield
    except store.Conflict:
        raise not_found(reference) from None


def not_found(type_id: str) -> NotFound:
    return NotFound(f"Volume type {type_id} could not be found.")
