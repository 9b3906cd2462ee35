"""Finds and locks the provider that a request names."""

from __future__ import annotations

import uuid as uuids

from kilonova.http import Context
from kilonova.ids import is_uuid
from kilonova.placement import errors
from kilonova.placement.model import ResourceProvider
from kilonova.store import Reader, Row, Transaction

PROVIDER_PATH = "/resource_providers/{uuid}"


def normalize_uuid(text: str) -> str:
    """A UUID in its stored form; other text unchanged."""
    return str(uuids.UUID(text)) if is_uuid(text) else text


async def find_provider(reader: Reader, uuid: str, purpose: str = "") -> ResourceProvider:
    row = await reader.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1", normalize_uuid(uuid))
    return _found(row, uuid, purpose)


async def lock_provider(tx: Transaction, uuid: str, purpose: str = "") -> ResourceProvider:
    row = await tx.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1 FOR UPDATE", normalize_uuid(uuid))
    return _found(row, uuid, purpose)


def _found(row: Row | None, uuid: str, purpose: str) -> ResourceProvider:
    if row is None:
        raise errors.provider_not_found(uuid, purpose)
    return ResourceProvider.decode(row)


async def lock_provider_at(tx: Transaction, uuid: str, generation: int | None) -> ResourceProvider:
    """Lock the provider. Raises Conflict if its generation is not `generation`; None accepts any."""
    provider = await lock_provider(tx, uuid)
    if generation is not None and provider.generation != generation:
        raise errors.generation_conflict(provider, generation)
    return provider


async def require_provider(ctx: Context, uuid: str, **params: str) -> None:
    """Raise NotFound if there is no such provider. The `check_exists` of routes below a provider."""
    await find_provider(ctx.db, uuid)
