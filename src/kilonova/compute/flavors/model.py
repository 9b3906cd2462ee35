"""Flavors in the database. Rows leave here with their extra specs as a dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kilonova import clock
from kilonova.store import Reader, Row, Transaction

if TYPE_CHECKING:
    from kilonova.identity.token import Token

_SEEDS = (
    ("1", "m1.tiny", 1, 512, 1),
    ("2", "m1.small", 1, 2048, 20),
    ("3", "m1.medium", 2, 4096, 40),
    ("4", "m1.large", 4, 8192, 80),
    ("5", "m1.xlarge", 8, 16384, 160),
)


def sees_all(token: Token) -> bool:
    """Administrators see the private flavors of everybody."""
    return "admin" in token.roles


async def get(reader: Reader, flavor_id: str, token: Token) -> Row | None:
    """The flavor, if the caller may see it."""
    if sees_all(token):
        row = await reader.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1", flavor_id)
    else:
        row = await reader.fetch_one(
            f"SELECT * FROM flavors WHERE flavor_id = $1 AND {_visible_to('$2')}", flavor_id, token.project_id or ""
        )
    return dressed(row) if row else None


async def page(
    reader: Reader,
    token: Token,
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
    """`is_public`: the public ones and those the project may use, the private ones, or (None) all; `order` is SQL."""
    args: list[Any] = []

    def bind(value: Any) -> str:
        args.append(value)
        return f"${len(args)}"

    where = [f"ram >= {bind(min_ram)}", f"disk >= {bind(min_disk)}"]
    if is_public is not None:
        where.append(_visible_to(bind(token.project_id or "")) if is_public else "NOT is_public")
    if name is not None:
        where.append(f"name = {bind(name)}")
    if marker is not None:
        beyond = "<" if descending else ">"
        where.append(f"({order}, id) {beyond} (SELECT {order}, id FROM flavors WHERE id = {bind(marker['id'])})")
    way = "DESC" if descending else "ASC"
    rows = await reader.fetch(
        f"SELECT * FROM flavors WHERE {' AND '.join(where)} ORDER BY {order} {way}, id {way} LIMIT {bind(limit)}",
        *args,
    )
    return [dressed(row) for row in rows]


async def taken(reader: Reader, flavor_id: str, name: str) -> str | None:
    """Which of the two a new flavor could not have."""
    row = await reader.fetch_one("SELECT flavor_id FROM flavors WHERE flavor_id = $1 OR name = $2", flavor_id, name)
    if row is None:
        return None
    return f"ID {flavor_id}" if row["flavor_id"] == flavor_id else f"name {name}"


async def create(tx: Transaction, values: Mapping[str, Any]) -> Row:
    rows = await tx.fetch(
        """
        INSERT INTO flavors (flavor_id, name, description, vcpus, ram, disk, ephemeral, swap, rxtx_factor,
            is_public, disabled, extra_specs, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, FALSE, '{}', $11) RETURNING *
        """,
        values["flavor_id"],
        values["name"],
        values.get("description"),
        values["vcpus"],
        values["ram"],
        values["disk"],
        values.get("ephemeral", 0),
        values.get("swap", 0),
        values.get("rxtx_factor", 1.0),
        values.get("is_public", True),
        clock.now(),
    )
    return dressed(rows[0])


async def describe(tx: Transaction, row: Row, description: str | None) -> None:
    await tx.execute(
        "UPDATE flavors SET description = $2, updated_at = $3 WHERE id = $1", row["id"], description, clock.now()
    )


async def delete(tx: Transaction, flavor_id: str) -> bool:
    return await tx.execute("DELETE FROM flavors WHERE flavor_id = $1", flavor_id) > 0


async def lock(tx: Transaction, flavor_id: str) -> Row | None:
    """The flavor, whoever may see it; nobody else changes it until the transaction ends."""
    row = await tx.fetch_one("SELECT * FROM flavors WHERE flavor_id = $1 FOR UPDATE", flavor_id)
    return dressed(row) if row else None


async def write_specs(tx: Transaction, row: Row, specs: Mapping[str, str]) -> None:
    await tx.execute(
        "UPDATE flavors SET extra_specs = $2, updated_at = $3 WHERE id = $1",
        row["id"],
        orjson.dumps(specs).decode(),
        clock.now(),
    )


async def access(reader: Reader, row: Row) -> list[str]:
    """The projects that may use a private flavor."""
    rows = await reader.fetch(
        "SELECT project_id FROM flavor_access WHERE flavor_id = $1 ORDER BY project_id", row["id"]
    )
    return [found["project_id"] for found in rows]


async def grant(tx: Transaction, row: Row, project_id: str) -> bool:
    """False if the project had access already."""
    changed = await tx.execute(
        "INSERT INTO flavor_access (flavor_id, project_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        row["id"],
        project_id,
    )
    return changed > 0


async def revoke(tx: Transaction, row: Row, project_id: str) -> bool:
    changed = await tx.execute(
        "DELETE FROM flavor_access WHERE flavor_id = $1 AND project_id = $2", row["id"], project_id
    )
    return changed > 0


async def seed(tx: Transaction) -> None:
    """The flavors of a new cloud; nothing where there are any."""
    if await tx.fetch_value("SELECT COUNT(*) FROM flavors"):
        return
    for flavor_id, name, vcpus, ram, disk in _SEEDS:
        await create(tx, {"flavor_id": flavor_id, "name": name, "vcpus": vcpus, "ram": ram, "disk": disk})


def _visible_to(project: str) -> str:
    access = f"SELECT 1 FROM flavor_access a WHERE a.flavor_id = flavors.id AND a.project_id = {project}"
    return f"(is_public OR EXISTS ({access}))"


def dressed(row: Row) -> Row:
    row["extra_specs"] = orjson.loads(row["extra_specs"])
    return row
