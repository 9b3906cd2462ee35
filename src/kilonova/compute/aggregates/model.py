"""Aggregates in the database. Changes are also passed on to placement and the schedulers.

Writers hold LOCK, because some rules concern several aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from kilonova import clock
from kilonova.ids import new_id
from kilonova.placement import mark_hosts_changed, mirror
from kilonova.store import Reader, Row, Transaction

LOCK = "aggregates"
# The metadata key that makes an aggregate an availability zone.
ZONE = "availability_zone"
_COLUMNS = "id, uuid, name, created_at, updated_at"


class Aggregate(Struct, frozen=True):
    id: int
    uuid: str
    name: str
    created_at: float
    updated_at: float | None
    hosts: list[str]
    metadata: dict[str, str]


async def list_all(reader: Reader) -> list[Aggregate]:
    rows = await reader.fetch(f"SELECT {_COLUMNS} FROM aggregates ORDER BY id")
    return await _with_members(reader, rows)


async def get(reader: Reader, aggregate_id: int) -> Aggregate | None:
    rows = await reader.fetch(f"SELECT {_COLUMNS} FROM aggregates WHERE id = $1", aggregate_id)
    return (await _with_members(reader, rows))[0] if rows else None


async def name_exists(reader: Reader, name: str) -> bool:
    return await reader.fetch_value("SELECT id FROM aggregates WHERE name = $1", name) is not None


async def create(tx: Transaction, name: str, metadata: Mapping[str, str]) -> Aggregate:
    uuid, now = new_id(), clock.now()
    number = await tx.fetch_value(
        "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $2, $3) RETURNING id", uuid, name, now
    )
    await _write(tx, number, metadata)
    return Aggregate(number, uuid, name, now, None, [], dict(metadata))


async def rename(tx: Transaction, aggregate: Aggregate, name: str) -> None:
    await tx.execute("UPDATE aggregates SET name = $2 WHERE id = $1", aggregate.id, name)


async def touch(tx: Transaction, aggregate: Aggregate) -> None:
    await tx.execute("UPDATE aggregates SET updated_at = $2 WHERE id = $1", aggregate.id, clock.now())


async def delete(tx: Transaction, aggregate: Aggregate) -> None:
    await tx.execute("DELETE FROM aggregates WHERE id = $1", aggregate.id)


async def set_metadata(tx: Transaction, aggregate: Aggregate, values: Mapping[str, str | None]) -> None:
    """Merge these keys; None removes a key."""
    removed = [key for key, value in values.items() if value is None]
    if removed:
        await tx.execute(
            "DELETE FROM aggregate_metadata WHERE aggregate_id = $1 AND key = ANY($2)", aggregate.id, removed
        )
    await _write(tx, aggregate.id, {key: value for key, value in values.items() if value is not None})
    if values and aggregate.hosts:
        await mark_hosts_changed(tx, aggregate.hosts)
        await _ratios_changed(tx, aggregate.hosts, values)


async def add_hosts(tx: Transaction, aggregate: Aggregate, hosts: Sequence[str]) -> None:
    """Add hosts that are not members yet."""
    if hosts:
        members = [(aggregate.id, host) for host in hosts]
        await tx.execute_many("INSERT INTO aggregate_hosts (aggregate_id, host) VALUES ($1, $2)", members)
        await mirror.add_to_aggregate(tx, aggregate.uuid, hosts)
        await _ratios_changed(tx, hosts, aggregate.metadata)


async def remove_hosts(tx: Transaction, aggregate: Aggregate, hosts: Sequence[str]) -> None:
    sql = "DELETE FROM aggregate_hosts WHERE aggregate_id = $1 AND host = ANY($2)"
    if await tx.execute(sql, aggregate.id, list(hosts)):
        await mirror.remove_from_aggregate(tx, aggregate.uuid, hosts)
        await _ratios_changed(tx, hosts, aggregate.metadata)


async def of_host(reader: Reader, host: str) -> list[Aggregate]:
    """The aggregates that the host is a member of."""
    rows = await reader.fetch(
        f"SELECT {_COLUMNS} FROM aggregates"
        " WHERE id IN (SELECT aggregate_id FROM aggregate_hosts WHERE host = $1) ORDER BY id",
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


async def _with_members(reader: Reader, rows: list[Row]) -> list[Aggregate]:
    by_id = {row["id"]: Aggregate(**row, hosts=[], metadata={}) for row in rows}
    numbers = list(by_id)
    for found in await reader.fetch(
        "SELECT aggregate_id, host FROM aggregate_hosts WHERE aggregate_id = ANY($1) ORDER BY host", numbers
    ):
        by_id[found["aggregate_id"]].hosts.append(found["host"])
    for found in await reader.fetch(
        "SELECT aggregate_id, key, value FROM aggregate_metadata WHERE aggregate_id = ANY($1) ORDER BY key", numbers
    ):
        by_id[found["aggregate_id"]].metadata[found["key"]] = found["value"]
    return list(by_id.values())
