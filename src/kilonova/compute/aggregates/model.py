"""Aggregates in the database. Changes are also passed on to placement and the schedulers.

Writers hold LOCK, because some rules concern several aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kilonova import clock
from kilonova.ids import new_id
from kilonova.placement import mark_hosts_changed, mirror
from kilonova.store import Reader, Row, Transaction

LOCK = "aggregates"
# The metadata key that makes an aggregate an availability zone.
ZONE = "availability_zone"


async def list_all(reader: Reader) -> list[Row]:
    """All aggregates, with `hosts` and `metadata`."""
    rows = await reader.fetch("SELECT * FROM aggregates ORDER BY id")
    return await _with_members(reader, rows)


async def get(reader: Reader, aggregate_id: int) -> Row | None:
    rows = await reader.fetch("SELECT * FROM aggregates WHERE id = $1", aggregate_id)
    return (await _with_members(reader, rows))[0] if rows else None


async def name_exists(reader: Reader, name: str) -> bool:
    return await reader.fetch_value("SELECT id FROM aggregates WHERE name = $1", name) is not None


async def create(tx: Transaction, name: str, metadata: Mapping[str, str]) -> Row:
    rows = await tx.fetch(
        "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $2, $3) RETURNING *", new_id(), name, clock.now()
    )
    row = {**rows[0], "hosts": [], "metadata": {}}
    await _write(tx, row["id"], metadata)
    return {**row, "metadata": dict(metadata)}


async def rename(tx: Transaction, row: Row, name: str) -> None:
    await tx.execute("UPDATE aggregates SET name = $2 WHERE id = $1", row["id"], name)


async def touch(tx: Transaction, row: Row) -> None:
    await tx.execute("UPDATE aggregates SET updated_at = $2 WHERE id = $1", row["id"], clock.now())


async def delete(tx: Transaction, row: Row) -> None:
    await tx.execute("DELETE FROM aggregates WHERE id = $1", row["id"])


async def set_metadata(tx: Transaction, row: Row, values: Mapping[str, str | None]) -> None:
    """Merge these keys; None removes a key."""
    removed = [key for key, value in values.items() if value is None]
    if removed:
        await tx.execute("DELETE FROM aggregate_metadata WHERE aggregate_id = $1 AND key = ANY($2)", row["id"], removed)
    await _write(tx, row["id"], {key: value for key, value in values.items() if value is not None})
    if values and row["hosts"]:
        await mark_hosts_changed(tx, row["hosts"])
        await _ratios_changed(tx, row["hosts"], values)


async def add_hosts(tx: Transaction, row: Row, hosts: Sequence[str]) -> None:
    """Add hosts that are not members yet."""
    if hosts:
        members = [(row["id"], host) for host in hosts]
        await tx.execute_many("INSERT INTO aggregate_hosts (aggregate_id, host) VALUES ($1, $2)", members)
        await mirror.add_to_aggregate(tx, row["uuid"], hosts)
        await _ratios_changed(tx, hosts, row["metadata"])


async def remove_hosts(tx: Transaction, row: Row, hosts: Sequence[str]) -> None:
    sql = "DELETE FROM aggregate_hosts WHERE aggregate_id = $1 AND host = ANY($2)"
    if await tx.execute(sql, row["id"], list(hosts)):
        await mirror.remove_from_aggregate(tx, row["uuid"], hosts)
        await _ratios_changed(tx, hosts, row["metadata"])


async def of_host(reader: Reader, host: str) -> list[Row]:
    """The aggregates that the host is a member of."""
    rows = await reader.fetch(
        "SELECT * FROM aggregates WHERE id IN (SELECT aggregate_id FROM aggregate_hosts WHERE host = $1) ORDER BY id",
        host,
    )
    return await _with_members(reader, rows)


async def _ratios_changed(tx: Transaction, hosts: Sequence[str], keys: Iterable[str]) -> None:
    """Update placement if any of these metadata keys is an allocation ratio."""
    if not mirror.RATIO_CLASSES.keys().isdisjoint(keys):
        await mirror.update_allocation_ratios(tx, hosts)


async def _write(tx: Transaction, aggregate_id: int, metadata: Mapping[str, str]) -> None:
    if metadata:
        await tx.execute_many(
            """
            INSERT INTO aggregate_metadata (aggregate_id, key, value) VALUES ($1, $2, $3)
            ON CONFLICT (aggregate_id, key) DO UPDATE SET value = excluded.value
            """,
            [(aggregate_id, key, value) for key, value in metadata.items()],
        )


async def _with_members(reader: Reader, rows: list[Row]) -> list[Row]:
    by_id = {row["id"]: {**row, "hosts": [], "metadata": {}} for row in rows}
    numbers = list(by_id)
    for found in await reader.fetch(
        "SELECT aggregate_id, host FROM aggregate_hosts WHERE aggregate_id = ANY($1) ORDER BY host", numbers
    ):
        by_id[found["aggregate_id"]]["hosts"].append(found["host"])
    for found in await reader.fetch(
        "SELECT aggregate_id, key, value FROM aggregate_metadata WHERE aggregate_id = ANY($1) ORDER BY key", numbers
    ):
        by_id[found["aggregate_id"]]["metadata"][found["key"]] = found["value"]
    return list(by_id.values())
