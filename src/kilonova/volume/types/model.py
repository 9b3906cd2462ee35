"""Volume types in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kilonova.http.is_public import sees_all
from kilonova.ids import new_id
from kilonova.store import Reader, Transaction
from kilonova.store.access_list import AccessList
from kilonova.store.insert import insert_row
from kilonova.store.records import Record, encode_document

if TYPE_CHECKING:
    from kilonova.policy.credentials import Credentials

ACCESS = AccessList("volume_type_access", "type_id", "volume_types")
DEFAULT = "__DEFAULT__"
MULTIATTACH = "multiattach"
_TRUE = "<is> true"


class VolumeType(Record, frozen=True):
    table: ClassVar[str] = "volume_types"

    id: str
    name: str
    is_public: bool
    extra_specs: dict[str, str | None]
    created_at: float
    updated_at: float
    description: str | None = None

    @property
    def is_multiattach(self) -> bool:
        """Whether several servers may use one volume of this type."""
        return (self.extra_specs.get(MULTIATTACH) or "").strip().lower() == _TRUE


class DefaultType(Record, frozen=True):
    """The default type of a project."""

    table: ClassVar[str] = "volume_default_types"

    project_id: str
    type_id: str


async def find(reader: Reader, reference: str, token: Credentials) -> VolumeType | None:
    """The type with this id or name, if the caller may see it."""
    return await get(reader, reference, token) or await _get_visible(reader, "name", reference, token)


async def get(reader: Reader, type_id: str, token: Credentials) -> VolumeType | None:
    """The type with this id, if the caller may see it."""
    return await _get_visible(reader, "id", type_id, token)


async def get_any(reader: Reader, type_id: str) -> VolumeType | None:
    """The type with this id, without a check of visibility."""
    return VolumeType.decode_optional(await reader.fetch_one("SELECT * FROM volume_types WHERE id = $1", type_id))


async def get_default(reader: Reader, project_id: str) -> VolumeType:
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
    return VolumeType.decode(row)


async def create(
    tx: Transaction,
    name: str,
    now: float,
    *,
    description: str | None = None,
    is_public: bool = True,
    extra_specs: dict[str, str | None] | None = None,
) -> VolumeType:
    created = VolumeType(
        id=new_id(),
        name=name,
        is_public=is_public,
        extra_specs=extra_specs or {},
        created_at=now,
        updated_at=now,
        description=description,
    )
    await insert_row(tx, VolumeType.table, created.encode())
    return created


async def list_types(reader: Reader, token: Credentials, is_public: bool | None) -> list[VolumeType]:
    """Public types and those that the project has access to, private types, or (None) all types."""
    if is_public is None:
        rows = await reader.fetch("SELECT * FROM volume_types")
    elif is_public:
        rows = await reader.fetch(f"SELECT * FROM volume_types WHERE {ACCESS.condition('$1')}", token.project_id or "")
    else:
        rows = await reader.fetch("SELECT * FROM volume_types WHERE NOT is_public")
    return VolumeType.decode_all(rows)


async def lock(tx: Transaction, type_id: str) -> VolumeType | None:
    """Lock the type, without a check of visibility."""
    row = await tx.fetch_one("SELECT * FROM volume_types WHERE id = $1 FOR UPDATE", type_id)
    return VolumeType.decode_optional(row)


async def write(tx: Transaction, volume_type: VolumeType) -> None:
    await tx.execute(
        """
        UPDATE volume_types SET name = $2, description = $3, is_public = $4, extra_specs = $5, updated_at = $6
        WHERE id = $1
        """,
        volume_type.id,
        volume_type.name,
        volume_type.description,
        volume_type.is_public,
        encode_document(volume_type.extra_specs),
        volume_type.updated_at,
    )


async def delete(tx: Transaction, volume_type: VolumeType) -> None:
    """Raises `store.Conflict` if a volume has the type."""
    await tx.execute("DELETE FROM volume_types WHERE id = $1", volume_type.id)


# Default types of projects


async def project_defaults(reader: Reader) -> list[DefaultType]:
    return DefaultType.decode_all(await reader.fetch("SELECT * FROM volume_default_types ORDER BY project_id"))


async def project_default(reader: Reader, project_id: str) -> DefaultType | None:
    row = await reader.fetch_one("SELECT * FROM volume_default_types WHERE project_id = $1", project_id)
    return DefaultType.decode_optional(row)


async def is_default(reader: Reader, volume_type: VolumeType) -> bool:
    """Whether the type is the default of a project."""
    sql = "SELECT project_id FROM volume_default_types WHERE type_id = $1 LIMIT 1"
    return await reader.fetch_value(sql, volume_type.id) is not None


async def set_default(tx: Transaction, default: DefaultType) -> None:
    await tx.execute(
        """
        INSERT INTO volume_default_types (project_id, type_id) VALUES ($1, $2)
        ON CONFLICT (project_id) DO UPDATE SET type_id = excluded.type_id
        """,
        default.project_id,
        default.type_id,
    )


async def unset_default(tx: Transaction, project_id: str) -> None:
    await tx.execute("DELETE FROM volume_default_types WHERE project_id = $1", project_id)


async def _get_visible(reader: Reader, column: str, value: str, token: Credentials) -> VolumeType | None:
    if sees_all(token):
        row = await reader.fetch_one(f"SELECT * FROM volume_types WHERE {column} = $1", value)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM volume_types WHERE {column} = $1 AND {ACCESS.condition('$2')}",
            value,
            token.project_id or "",
        )
    return VolumeType.decode_optional(row)
