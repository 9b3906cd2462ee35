"""Flavors in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from kilonova import clock
from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.http import pattern_filters
from kilonova.http.is_public import sees_all
from kilonova.http.pattern_filters import pattern_condition
from kilonova.store import Database, Reader, Transaction
from kilonova.store.access_list import AccessList
from kilonova.store.conditions import Conditions
from kilonova.store.insert import insert_row
from kilonova.store.records import Record, encode_document

if TYPE_CHECKING:
    from kilonova.policy.credentials import Credentials

ACCESS = AccessList("flavor_access", "flavor_id", "flavors")
_SEEDS = (
    ("1", "m1.tiny", 1, 512, 1),
    ("2", "m1.small", 1, 2048, 20),
    ("3", "m1.medium", 2, 4096, 40),
    ("4", "m1.large", 4, 8192, 80),
    ("5", "m1.xlarge", 8, 16384, 160),
)


class Flavor(Record, frozen=True):
    table: ClassVar[str] = "flavors"

    id: int
    flavor_id: str
    name: str
    description: str | None
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    rxtx_factor: float
    is_public: bool
    disabled: bool
    extra_specs: dict[str, str]

    def embed(self) -> EmbeddedFlavor:
        """The copy that a server keeps."""
        return EmbeddedFlavor(
            name=self.name,
            vcpus=self.vcpus,
            ram=self.ram,
            disk=self.disk,
            ephemeral=self.ephemeral,
            swap=self.swap,
            extra_specs=self.extra_specs,
        )


async def get(reader: Reader, flavor_id: str, token: Credentials) -> Flavor | None:
    """The flavor, if the caller may see it."""
    if sees_all(token):
        row = await reader.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1", flavor_id)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM flavors WHERE flavor_id = $1 AND {ACCESS.condition('$2')}",
            flavor_id,
            token.project_id or "",
        )
    return Flavor.decode_optional(row)


async def page(
    db: Database,
    token: Credentials,
    *,
    is_public: bool | None,
    min_ram: int,
    min_disk: int,
    name: str | None,
    order: str,
    descending: bool,
    marker: Flavor | None,
    limit: int,
) -> list[Flavor]:
    """`is_public`: True for public flavors and those that the project has access to, False for private ones, None for
    all. `name` is a pattern, `order` is SQL.
    """
    conditions = Conditions()
    conditions.add("ram >= ?", min_ram)
    conditions.add("disk >= ?", min_disk)
    if is_public:
        conditions.add(ACCESS.condition("?"), token.project_id or "")
    elif is_public is not None:
        conditions.add("NOT is_public")
    if name is not None:
        conditions.add(*pattern_condition("name", "name", name))
    if marker is not None:
        beyond = "<" if descending else ">"
        conditions.add(f"({order}, id) {beyond} (SELECT {order}, id FROM flavors WHERE id = ?)", marker.id)
    direction = "DESC" if descending else "ASC"
    sql = (
        f"SELECT * FROM flavors WHERE {conditions.where()}"
        f" ORDER BY {order} {direction}, id {direction} LIMIT ${len(conditions.arguments) + 1}"
    )
    return Flavor.decode_all(await pattern_filters.fetch(db, conditions, sql, *conditions.arguments, limit))


async def find_conflict(reader: Reader, flavor_id: str, name: str) -> str | None:
    """The id or name that another flavor has already, for the error message; None if both are free."""
    row = await reader.fetch_one("SELECT flavor_id FROM flavors WHERE flavor_id = $1 OR name = $2", flavor_id, name)
    if row is None:
        return None
    return f"ID {flavor_id}" if row["flavor_id"] == flavor_id else f"name {name}"


async def create(
    tx: Transaction,
    *,
    flavor_id: str,
    name: str,
    vcpus: int,
    ram: int,
    disk: int,
    ephemeral: int = 0,
    swap: int = 0,
    rxtx_factor: float = 1.0,
    is_public: bool = True,
    description: str | None = None,
) -> Flavor:
    row = {
        "flavor_id": flavor_id,
        "name": name,
        "description": description,
        "vcpus": vcpus,
        "ram": ram,
        "disk": disk,
        "ephemeral": ephemeral,
        "swap": swap,
        "rxtx_factor": rxtx_factor,
        "is_public": is_public,
        "disabled": False,
        "extra_specs": "{}",
        "created_at": clock.now(),
    }
    return Flavor.decode(await insert_row(tx, "flavors", row))


async def set_description(tx: Transaction, flavor: Flavor, description: str | None) -> None:
    await tx.execute(
        "UPDATE flavors SET description = $2, updated_at = $3 WHERE id = $1", flavor.id, description, clock.now()
    )


async def delete(tx: Transaction, flavor_id: str) -> bool:
    return await tx.execute("DELETE FROM flavors WHERE flavor_id = $1", flavor_id) > 0


async def lock(tx: Transaction, flavor_id: str) -> Flavor | None:
    """The flavor, locked until the transaction ends. Access is not checked."""
    return Flavor.decode_optional(
        await tx.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1 FOR UPDATE", flavor_id)
    )


async def write_specs(tx: Transaction, flavor: Flavor, specs: Mapping[str, str]) -> None:
    await tx.execute(
        "UPDATE flavors SET extra_specs = $2, updated_at = $3 WHERE id = $1",
        flavor.id,
        encode_document(specs),
        clock.now(),
    )


async def seed(tx: Transaction) -> None:
    """Create the default flavors if there are none."""
    if await tx.fetch_value("SELECT COUNT(*) FROM flavors"):
        return
    for flavor_id, name, vcpus, ram, disk in _SEEDS:
        await create(tx, flavor_id=flavor_id, name=name, vcpus=vcpus, ram=ram, disk=disk)
