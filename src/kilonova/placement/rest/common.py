"""What the nouns share: finding, locking and checking a provider, and words of schemas."""

from __future__ import annotations

import uuid as uuids
from typing import Any

from kilonova.http import Context
from kilonova.ids import is_uuid
from kilonova.placement import errors
from kilonova.store import Reader, Row, Transaction

Schema = dict[str, Any]
UUID: Schema = {"type": "string", "format": "uuid"}
GENERATION: Schema = {"type": "integer"}
PROVIDER = "/resource_providers/{uuid}"


def closed(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def keyed(pattern: str, member: Schema, at_least: int = 0) -> Schema:
    """An object with keys of the callers' own."""
    return {
        "type": "object",
        "minProperties": at_least,
        "additionalProperties": False,
        "patternProperties": {pattern: member},
    }


def canonical(text: str) -> str:
    """A UUID as it is stored; other text, which names nothing, as it is."""
    return str(uuids.UUID(text)) if is_uuid(text) else text


async def find(reader: Reader, uuid: str, purpose: str = "") -> Row:
    row = await reader.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1", canonical(uuid))
    if row is None:
        raise errors.no_provider(uuid, purpose)
    return row


async def lock(tx: Transaction, uuid: str, purpose: str = "") -> Row:
    row = await tx.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1 FOR UPDATE", canonical(uuid))
    if row is None:
        raise errors.no_provider(uuid, purpose)
    return row


async def lock_at(tx: Transaction, uuid: str, generation: int | None) -> Row:
    """The provider, locked; 409 if it is no longer at the generation that the caller saw. None is any."""
    row = await lock(tx, uuid)
    if generation is not None and row["generation"] != generation:
        raise errors.generation_conflict(row, generation)
    return row


async def exists(ctx: Context, uuid: str, **params: str) -> None:
    """The `subject` of routes below a provider."""
    await find(ctx.db, uuid)
