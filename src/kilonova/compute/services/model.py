"""Services in the database. What changes for a host is also told to the schedulers."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.placement.changes import hosts_changed
from kilonova.store import Reader, Row, Transaction


async def lock(tx: Transaction, column: str, value: Any) -> Row | None:
    """The service by its `id` or `uuid`."""
    return await tx.fetch_one(f"SELECT * FROM services WHERE {column} = $1 FOR UPDATE", value)


async def lock_named(tx: Transaction, host: str, binary: str) -> Row | None:
    return await tx.fetch_one("SELECT * FROM services WHERE host = $1 AND program = $2 FOR UPDATE", host, binary)


async def change(tx: Transaction, row: Row, **values: Any) -> Row:
    """Set any of `disabled`, `disabled_reason`, `forced_down`."""
    row = {**row, **values}
    await tx.execute(
        "UPDATE services SET disabled = $2, disabled_reason = $3, forced_down = $4, updated_at = $5 WHERE id = $1",
        row["id"],
        row["disabled"],
        row["disabled_reason"],
        row["forced_down"],
        clock.now(),
    )
    if row["program"] == COMPUTE:
        await hosts_changed(tx, [row["host"]])
    return row


async def zone(reader: Reader, row: Row, default_zone: str) -> str:
    if row["program"] != COMPUTE:
        return zones.INTERNAL
    return (await zones.zone_of_hosts(reader, [row["host"]], default_zone))[row["host"]]


async def in_use(reader: Reader, row: Row) -> bool:
    """Whether the host has servers, or holds anything for one that comes or goes."""
    if row["program"] != COMPUTE:
        return False
    servers = await reader.fetch_value("SELECT COUNT(*) FROM servers WHERE host = $1 AND NOT deleted", row["host"])
    held = await reader.fetch_value(
        """
        SELECT COUNT(*) FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
        WHERE p.root_id IN (SELECT r.id FROM resource_providers r JOIN hypervisors h ON h.uuid = r.uuid
            WHERE h.service_id = $1)
        """,
        row["id"],
    )
    return bool(servers or held)


async def delete(tx: Transaction, row: Row) -> None:
    """The service with its hypervisors, their providers and their places in aggregates."""
    if row["program"] == COMPUTE:
        await hosts_changed(tx, [row["host"]])
        await tx.execute("DELETE FROM aggregate_hosts WHERE host = $1", row["host"])
        uuids = [
            found["uuid"] for found in await tx.fetch("SELECT uuid FROM hypervisors WHERE service_id = $1", row["id"])
        ]
        await tx.execute("DELETE FROM hypervisors WHERE service_id = $1", row["id"])
        await _delete_providers(tx, uuids)
    await tx.execute("DELETE FROM services WHERE id = $1", row["id"])


async def _delete_providers(tx: Transaction, uuids: list[str]) -> None:
    """Children before their parents, which they refer to."""
    rows = await tx.fetch(
        """
        SELECT id FROM resource_providers
        WHERE root_id IN (SELECT id FROM resource_providers WHERE uuid = ANY($1)) ORDER BY id DESC
        """,
        uuids,
    )
    numbers = [row["id"] for row in rows]
    await tx.execute("UPDATE resource_providers SET parent_id = NULL, root_id = NULL WHERE id = ANY($1)", numbers)
    await tx.execute("DELETE FROM resource_providers WHERE id = ANY($1)", numbers)
