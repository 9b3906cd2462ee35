"""Services in the database. What changes for a host is also told to placement and the schedulers."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.aggregates import model as aggregates
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.placement import hosts_changed, mirror
from kilonova.store import Reader, Row, Transaction


async def lock(tx: Transaction, column: str, value: Any) -> Row | None:
    """The service by its `id` or `uuid`."""
    return await tx.fetch_one(f"SELECT * FROM services WHERE {column} = $1 FOR UPDATE", value)


async def lock_named(tx: Transaction, host: str, binary: str) -> Row | None:
    return await tx.fetch_one("SELECT * FROM services WHERE host = $1 AND program = $2 FOR UPDATE", host, binary)


async def change(tx: Transaction, row: Row, **values: Any) -> Row:
    """Set any of `disabled`, `disabled_reason`, `forced_down`."""
    was_disabled, row = row["disabled"], {**row, **values}
    await tx.execute(
        "UPDATE services SET disabled = $2, disabled_reason = $3, forced_down = $4, updated_at = $5 WHERE id = $1",
        row["id"],
        row["disabled"],
        row["disabled_reason"],
        row["forced_down"],
        clock.now(),
    )
    if row["program"] == COMPUTE:
        if row["disabled"] != was_disabled:
            await mirror.service_disabled(tx, row["host"], row["disabled"])
        await hosts_changed(tx, [row["host"]])
    return row


async def zone(reader: Reader, row: Row, default_zone: str) -> str:
    if row["program"] != COMPUTE:
        return zones.INTERNAL
    return (await zones.zone_of_hosts(reader, [row["host"]], default_zone))[row["host"]]


async def uncleared(reader: Reader, host: str) -> int:
    """How many guests are still to be removed from the host because their servers are not there any more."""
    found: int = await reader.fetch_value(_UNCLEARED, host)
    return found


_UNCLEARED = "SELECT COUNT(*) FROM operations WHERE kind = 'clear guest' AND host = $1 AND finished_at IS NULL"


async def has_servers(reader: Reader, row: Row) -> bool:
    sql = "SELECT id FROM servers WHERE host = $1 AND NOT deleted LIMIT 1"
    return row["program"] == COMPUTE and await reader.fetch_value(sql, row["host"]) is not None


async def delete(tx: Transaction, row: Row) -> None:
    """The service with its hypervisors, their providers and their places in aggregates.

    Raises `mirror.InUse` where something is still held there. An agent that is alive registers again.
    """
    if row["program"] == COMPUTE:
        await mirror.lock_departing(tx, row["host"])
        for aggregate in await aggregates.of_host(tx, row["host"]):
            await aggregates.leave(tx, aggregate, [row["host"]])
        await mirror.host_deleted(tx, row["host"])
        await tx.execute("DELETE FROM hypervisors WHERE service_id = $1", row["id"])
    await tx.execute("DELETE FROM services WHERE id = $1", row["id"])
