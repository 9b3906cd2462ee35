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


async def of_kind(reader: Reader, token: Token, is_public: bool | None) -> list[Row]:
    """The public ones and those that the project may use, the private ones, or (None) all."""
    if is_public is None:
        rows = await reader.fetch("SELECT * FROM volume_types")
    elif is_public:
        rows = await reader.fetch(f"SELECT * FROM volume_types WHERE {visible_to('$1')}", token.project_id or "")
    else:
        rows = await reader.fetch("SELECT * FROM volume_types WHERE NOT is_public")
    return [dressed(row) for row in rows]


async def lock(tx: Transaction, type_id: str) -> Row | None:
    """The type, whoever may see it; nobody else changes it until the transaction ends."""
    row = await tx.fetch_one("SELECT * FROM volume_types WHERE id = $1 FOR UPDATE", type_id)
    return dressed(row) if row else None


async def write(tx: Transaction, row: Row) -> None:
    await tx.execute(
        """
        UPDATE volume_types SET name = $2, description = $3, is_public = $4, extra_specs = $5, updated_at = $6
        WHERE id = $1
        """,
        row["id"],
        row["name"],
        row["description"],
        row["is_public"],
        orjson.dumps(row["extra_specs"]).decode(),
        row["updated_at"],
    )


async def delete(tx: Transaction, row: Row) -> None:
    """Raises `store.Conflict` where a volume has it."""
    await tx.execute("DELETE FROM volume_types WHERE id = $1", row["id"])


# Access to private types


async def access(reader: Reader, row: Row) -> list[str]:
    """The projects that may use a private type."""
    rows = await reader.fetch(
        "SELECT project_id FROM volume_type_access WHERE type_id = $1 ORDER BY project_id", row["id"]
    )
    return [found["project_id"] for found in rows]


async def grant(tx: Transaction, row: Row, project_id: str) -> bool:
    """False if the project had access already."""
    changed = await tx.execute(
        "INSERT INTO volume_type_access (type_id, project_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        row["id"],
        project_id,
    )
    return changed > 0


async def revoke(tx: Transaction, row: Row, project_id: str) -> bool:
    changed = await tx.execute(
        "DELETE FROM volume_type_access WHERE type_id = $1 AND project_id = $2", row["id"], project_id
    )
    return changed > 0


# Defaults of single projects


async def own_defaults(reader: Reader) -> list[Row]:
    return await reader.fetch("SELECT * FROM volume_default_types ORDER BY project_id")


async def own_default(reader: Reader, project_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_default_types WHERE project_id = $1", project_id)


async def is_default(reader: Reader, row: Row) -> bool:
    """Whether it is the default of a single project."""
    sql = "SELECT project_id FROM volume_default_types WHERE type_id = $1 LIMIT 1"
    return await reader.fetch_value(sql, row["id"]) is not None


async def set_default(tx: Transaction, project_id: str, row: Row) -> None:
    await tx.execute(
        """
        INSERT INTO volume_default_types (project_id, type_id) VALUES ($1, $2)
        ON CONFLICT (project_id) DO UPDATE SET type_id = excluded.type_id
        """,
        project_id,
        row["id"],
    )


async def unset_default(tx: Transaction, project_id: str) -> None:
    await tx.execute("DELETE FROM volume_default_types WHERE project_id = $1", project_id)


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
