"""Types of volumes in the database. Rows leave here with their extra specs as a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.ids import new_id
from kilonova.store import Reader, Row, Transaction

if TYPE_CHECKING:
    from kilonova.identity.token import Token

# The type of volumes for which nobody names one.
DEFAULT = "__DEFAULT__"
MULTIATTACH = "multiattach"
_TRUE = "<is> true"


def sees_all(token: Token) -> bool:
    """Administrators see the private types of everybody."""
    return "admin" in token.roles


async def find(reader: Reader, reference: str, token: Token) -> Row | None:
    """The type of this id, else of this name, if the caller may see it."""
    return await get(reader, reference, token) or await _visible(reader, "name", reference, token)


async def get(reader: Reader, type_id: str, token: Token) -> Row | None:
    """The type of this id, if the caller may see it."""
    return await _visible(reader, "id", type_id, token)


async def default_of(reader: Reader, project_id: str) -> Row:
    """The type of the project's volumes for which nobody names one."""
    row = await reader.fetch_one(
        """
        SELECT t.* FROM volume_types t LEFT JOIN volume_default_types d ON d.type_id = t.id AND d.project_id = $1
        WHERE d.project_id IS NOT NULL OR t.name = $2 ORDER BY d.project_id IS NULL LIMIT 1
        """,
        project_id,
        DEFAULT,
    )
    assert row is not None, f"the type {DEFAULT} is made at the start and cannot be deleted"
    return dressed(row)


def is_multiattach(row: Row) -> bool:
    """Whether several servers may have one volume of this type."""
    return str(row["extra_specs"].get(MULTIATTACH, "")).strip().lower() == _TRUE


async def create(tx: Transaction, values: Mapping[str, Any], now: float) -> Row:
    row = await tx.fetch_one(
        """
        INSERT INTO volume_types (id, name, description, is_public, extra_specs, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING *
        """,
        values.get("id") or new_id(),
        values["name"],
        values.get("description"),
        values.get("is_public", True),
        orjson.dumps(values.get("extra_specs") or {}).decode(),
        now,
    )
    assert row is not None
    return dressed(row)


async def _visible(reader: Reader, column: str, value: str, token: Token) -> Row | None:
    if sees_all(token):
        row = await reader.fetch_one(f"SELECT * FROM volume_types WHERE {column} = $1", value)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM volume_types WHERE {column} = $1 AND {visible_to('$2')}", value, token.project_id or ""
        )
    return dressed(row) if row else None


def visible_to(project: str) -> str:
    access = f"SELECT 1 FROM volume_type_access a WHERE a.type_id = volume_types.id AND a.project_id = {project}"
    return f"(is_public OR EXISTS ({access}))"


def dressed(row: Row) -> Row:
    row["extra_specs"] = orjson.loads(row["extra_specs"])
    return row
