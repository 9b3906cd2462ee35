"""Volume types in the database. Functions return rows with parsed extra specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.http.is_public import sees_all
from kilonova.ids import new_id
from kilonova.store import Reader, Row, Transaction
from kilonova.store.access_list import AccessList
from kilonova.store.insert import insert_row

if TYPE_CHECKING:
    from kilonova.policy.credentials import Credentials

ACCESS = AccessList("volume_type_access", "type_id", "volume_types")
DEFAULT = "__DEFAULT__"
MULTIATTACH = "multiattach"
_TRUE = "<is> true"


async def find(reader: Reader, reference: str, token: Credentials) -> Row | None:
    """The type with this id or name, if the caller may see it."""
    return await get(reader, reference, token) or await _get_visible(reader, "name", reference, token)


async def get(reader: Reader, type_id: str, token: Credentials) -> Row | None:
    """The type with this id, if the caller may see it."""
    return await _get_visible(reader, "id", type_id, token)


async def get_default(reader: Reader, project_id: str) -> Row:
    """The default type of the project, else of the service."""
    row = await reader.fetch_one(
        """
        SELECT t.* FROM volume_types t LEFT JOIN volume_default_types d ON d.type_id = t.id AND d.project_id = $1
        WHERE d.project_id IS NOT NULL OR t.name = $2 ORDER BY d.project_id IS NULL LIMIT 1
        """,
        project_id,
        DEFAULT,
    )
    assert row is not None, f"the type {DEFAULT} is created at the start and cannot be deleted"
    return with_parsed_specs(row)


def is_multiattach(row: Row) -> bool:
    """Whether several servers may use one volume of this type."""
    return str(row["extra_specs"].get(MULTIATTACH, "")).strip().lower() == _TRUE


async def create(tx: Transaction, values: Mapping[str, Any], now: float) -> Row:
    row = {
        "id": values.get("id") or new_id(),
        "name": values["name"],
        "description": values.get("description"),
        "is_public": values.get("is_public", True),
        "extra_specs": orjson.dumps(values.get("extra_specs") or {}).decode(),
        "created_at": now,
        "updated_at": now,
    }
    return with_parsed_specs(await insert_row(tx, "volume_types", row))


async def list_types(reader: Reader, token: Credentials, is_public: bool | None) -> list[Row]:
    """Public types and those that the project has access to, private types, or (None) all types."""
    if is_public is None:
        rows = await reader.fetch("SELECT * FROM volume_types")
    elif is_public:
        rows = await reader.fetch(f"SELECT * FROM volume_types WHERE {ACCESS.condition('$1')}", token.project_id or "")
    else:
        rows = await reader.fetch("SELECT * FROM volume_types WHERE NOT is_public")
    return [with_parsed_specs(row) for row in rows]


async def lock(tx: Transaction, type_id: str) -> Row | None:
    """Lock the type, without a check of visibility."""
    row = await tx.fetch_one("SELECT * FROM volume_types WHERE id = $1 FOR UPDATE", type_id)
    return with_parsed_specs(row) if row else None


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
    """Raises `store.Conflict` if a volume has the type."""
    await tx.execute("DELETE FROM volume_types WHERE id = $1", row["id"])


# Default types of projects


async def project_defaults(reader: Reader) -> list[Row]:
    return await reader.fetch("SELECT * FROM volume_default_types ORDER BY project_id")


async def project_default(reader: Reader, project_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_default_types WHERE project_id = $1", project_id)


async def is_default(reader: Reader, row: Row) -> bool:
    """Whether the type is the default of a project."""
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


async def _get_visible(reader: Reader, column: str, value: str, token: Credentials) -> Row | None:
    if sees_all(token):
        row = await reader.fetch_one(f"SELECT * FROM volume_types WHERE {column} = $1", value)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM volume_types WHERE {column} = $1 AND {ACCESS.condition('$2')}",
            value,
            token.project_id or "",
        )
    return with_parsed_specs(row) if row else None


def with_parsed_specs(row: Row) -> Row:
    row["extra_specs"] = orjson.loads(row["extra_specs"])
    return row
