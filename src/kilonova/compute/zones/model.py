"""Availability zones of hosts. A zone is an aggregate with the metadata key `availability_zone`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kilonova.compute.aggregates import model as aggregates
from kilonova.config_checks import INTERNAL_ZONE
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.service import Service
from kilonova.ids import new_id
from kilonova.store import Reader, Transaction

KEY = aggregates.ZONE
DEFAULT = "nova"
INTERNAL = INTERNAL_ZONE

# A host is in at most one zone. MIN keeps the result stable if there were two.
_HOST_ZONES = f"""
SELECT h.host, MIN(m.value) AS zone FROM aggregate_hosts h
JOIN aggregate_metadata m ON m.aggregate_id = h.aggregate_id AND m.key = '{KEY}'
"""


class ZonedService(NamedTuple):
    """The zone is `internal` unless the service runs servers."""

    service: Service
    zone: str

    @property
    def id(self) -> int:
        return self.service.id


async def zone_of_hosts(reader: Reader, hosts: Collection[str], default: str = DEFAULT) -> dict[str, str]:
    zones = dict.fromkeys(hosts, default)
    if zones:
        for row in await reader.fetch(f"{_HOST_ZONES} WHERE h.host = ANY($1) GROUP BY h.host", list(zones)):
            zones[row["host"]] = row["zone"]
    return zones


async def zone_names(reader: Reader, default: str = DEFAULT) -> set[str]:
    """The names of all zones that have a compute host."""
    rows = await reader.fetch(
        f"""
        SELECT DISTINCT z.zone FROM services s LEFT JOIN ({_HOST_ZONES} GROUP BY h.host) z ON z.host = s.host
        WHERE s.program = $1
        """,
        COMPUTE,
    )
    return {row["zone"] or default for row in rows}


async def services(
    reader: Reader, default: str = DEFAULT, *, host: str | None = None, program: str | None = None
) -> list[ZonedService]:
    """Services, optionally of a host or program, with their zones."""
    rows = await reader.fetch(
        f"""
        SELECT s.*, z.zone FROM services s LEFT JOIN ({_HOST_ZONES} GROUP BY h.host) z ON z.host = s.host
        WHERE (CAST($1 AS TEXT) IS NULL OR s.host = $1) AND (CAST($2 AS TEXT) IS NULL OR s.program = $2)
        ORDER BY s.id
        """,
        host,
        program,
    )
    return [
        ZonedService(Service.decode(row), (row["zone"] or default) if row["program"] == COMPUTE else INTERNAL)
        for row in rows
    ]


async def create_zone(tx: Transaction, name: str, hosts: Sequence[str]) -> None:
    """Ensure that the zone exists, and add these hosts to it, except hosts that are in a zone already."""
    await tx.lock(aggregates.LOCK)
    aggregate = await _aggregate(tx, name)
    zoned = {
        row["host"] for row in await tx.fetch(f"{_HOST_ZONES} WHERE h.host = ANY($1) GROUP BY h.host", list(hosts))
    }
    await aggregates.add_hosts(tx, aggregate, [host for host in hosts if host not in zoned])


async def _aggregate(tx: Transaction, zone: str) -> aggregates.Aggregate:
    """The aggregate of the zone, created if it does not exist."""
    number = await tx.fetch_value(
        "SELECT MIN(aggregate_id) FROM aggregate_metadata WHERE key = $1 AND value = $2", KEY, zone
    )
    if number is not None:
        found = await aggregates.get(tx, number)
        assert found is not None
        return found
    # An aggregate that is no zone may have the name already.
    name = f"{zone} {new_id()[:8]}" if await aggregates.name_exists(tx, zone) else zone
    return await aggregates.create(tx, name, {KEY: zone})
