"""Services in the database. Changes of compute services are also passed on to placement and the schedulers."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.aggregates import model as aggregates
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.placement import mark_hosts_changed, mirror
from kilonova.store import Reader, Row, Transaction


async def lock(tx: Transaction, column: str, value: Any) -> Row | None:
    """The service by its `id` or `uuid`."""
    return await tx.fetch_one(f"SELECT * FROM services WHERE {column} = $1 FOR UPDATE", value)


async def lock_by_name(tx: Transaction, host: str, binary: str) -> Row | None:
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
            await mirror.set_service_disabled(tx, row["host"], row["disabled"])
        await mark_hosts_changed(tx, [row["host"]])
    return row


async def zone(reader: Reader, row: Row, default_zone: str) -> str:
    if row["program"] != COMPUTE:
        return zones.INTERNAL
    return (await zones.zone_of_hosts(reader, [row["host"]], default_zone))[row["host"]]


async def count_stale_guests(reader: Reader, host: str) -> int:
    """The number of guests that must still be removed from the host because their servers were moved away."""
    found: int = await reader.fetch_value(_STALE_GUESTS, host)
    return found


_STALE_GUESTS = "SELECT COUNT(*) FROM operations WHERE kind = 'clean_up_guest' AND host = $1 AND finished_at IS NULL"


async def has_servers(reader: Reader, row: Row) -> bool:
    sql = "SELECT id FROM servers WHERE host = $1 AND NOT deleted LIMIT 1"
    return row["program"] == COMPUTE and await reader.fetch_value(sql, row["host"]) is not None


async def delete(tx: Transaction, row: Row) -> None:
    """Delete the service with its hypervisors, their resource providers and their memberships in aggregates.

    Raises `mirror.HostInUse` if a provider still has allocations. A running agent registers itself again.
    """
    if row["program"] == COMPUTE:
        await mirror.lock_host_for_delete(tx, row["host"])
        for aggregate in await aggregates.of_host(tx, row["host"]):
            await aggregates.remove_hosts(tx, aggregate, [row["host"]])
        await mirror.delete_host(tx, row["host"])
        await tx.execute("DELETE FROM hypervisors WHERE service_id = $1", row["id"])
    await tx.execute("DELETE FROM services WHERE id = $1", row["id"])
