"""Flavors in the database. Returned rows have their extra specs as a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kilonova import clock
from kilonova.http.is_public import sees_all
from kilonova.store import Reader, Row, Transaction
from kilonova.store.access_list import AccessList
from kilonova.store.insert import insert_row

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


async def get(reader: Reader, flavor_id: str, token: Credentials) -> Row | None:
    """The flavor, if the caller may see it."""
    if sees_all(token):
        row = await reader.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1", flavor_id)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM flavors WHERE flavor_id = $1 AND {ACCESS.condition('$2')}",
            flavor_id,
            token.project_id or "",
        )
    return with_parsed_specs(row) if row else None


async def page(
    reader: Reader,
    token: Credentials,
    *,
    is_public: bool | None,
    min_ram: int,
    min_disk: int,
    name: str | None,
    order: str,
    descending: bool,
    marker: Row | None,
    limit: int,
) -> list[Row]:
    """`is_public`: True for public flavors and those that the project has access to, False for private ones, None for
    all. `order` is SQL.
    """
    args: list[Any] = []

    def bind(value: Any) -> str:
        args.append(value)
        return f"${len(args)}"

    where = [f"ram >= {bind(min_ram)}", f"disk >= {bind(min_disk)}"]
    if is_public is not None:
        where.append(ACCESS.condition(bind(token.project_id or "")) if is_public else "NOT is_public")
    if name is not None:
        where.append(f"name = {bind(name)}")
    if marker is not None:
        beyond = "<" if descending else ">"
        where.append(f"({order}, id) {beyond} (SELECT {order}, id FROM flavors WHERE id = {bind(marker['id'])})")
    direction = "DESC" if descending else "ASC"
    rows = await reader.fetch(
        f"SELECT * FROM flavors WHERE {' AND '.join(where)}"
        f" ORDER BY {order} {direction}, id {direction} LIMIT {bind(limit)}",
        *args,
    )
    return [with_parsed_specs(row) for row in rows]


async def find_conflict(reader: Reader, flavor_id: str, name: str) -> str | None:
    """The id or name that another flavor has already, for the error message; None if both are free."""
    row = await reader.fetch_one("SELECT flavor_id FROM flavors WHERE flavor_id = $1 OR name = $2", flavor_id, name)
    if row is None:
        return None
    return f"ID {flavor_id}" if row["flavor_id"] == flavor_id else f"name {name}"


async def create(tx: Transaction, values: Mapping[str, Any]) -> Row:
    defaults = {"description": None, "ephemeral": 0, "swap": 0, "rxtx_factor": 1.0, "is_public": True}
    new = {"disabled": False, "extra_specs": "{}", "created_at": clock.now()}
    return with_parsed_specs(await insert_row(tx, "flavors", {**defaults, **values, **new}))


async def set_description(tx: Transaction, row: Row, description: str | None) -> None:
    await tx.execute(
        "UPDATE flavors SET description = $2, updated_at = $3 WHERE id = $1", row["id"], description, clock.now()
    )


async def delete(tx: Transaction, flavor_id: str) -> bool:
    return await tx.execute("DELETE FROM flavors WHERE flavor_id = $1", flavor_id) > 0


async def lock(tx: Transaction, flavor_id: str) -> Row | None:
    """The flavor, locked until the transaction ends. Access is not checked."""
    row = await tx.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1 FOR UPDATE", flavor_id)
    return with_parsed_specs(row) if row else None


async def write_specs(tx: Transaction, row: Row, specs: Mapping[str, str]) -> None:
    await tx.execute(
        "UPDATE flavors SET extra_specs = $2, updated_at = $3 WHERE id = $1",
        row["id"],
        orjson.dumps(specs).decode(),
        clock.now(),
    )


async def seed(tx: Transaction) -> None:
    """Create the default flavors if there are none."""
    if await tx.fetch_value("SELECT COUNT(*) FROM flavors"):
        return
    for flavor_id, name, vcpus, ram, disk in _SEEDS:
        await create(tx, {"flavor_id": flavor_id, "name": name, "vcpus": vcpus, "ram": ram, "disk": disk})


def with_parsed_specs(row: Row) -> Row:
    row["extra_specs"] = orjson.loads(row["extra_specs"])
    return row
