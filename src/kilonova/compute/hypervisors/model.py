"""Hypervisors in the database, with their services. Amounts come from placement, in one query for a whole list."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.scheduler.filters import tenant_isolation
from kilonova.store import Reader, Row

_SELECT = """
SELECT h.*, s.uuid AS service_uuid, s.disabled, s.disabled_reason, s.forced_down, s.last_seen_at
FROM hypervisors h JOIN services s ON s.id = h.service_id
"""
# Resource classes, and the fields of views before 2.88: total, used, free.
_CLASSES = {
    "VCPU": ("vcpus", "vcpus_used", None),
    "MEMORY_MB": ("memory_mb", "memory_mb_used", "free_ram_mb"),
    "DISK_GB": ("local_gb", "local_gb_used", "free_disk_gb"),
}
AMOUNTS = (
    *("vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb"),
    *("local_gb", "local_gb_used", "free_disk_gb", "disk_available_least", "running_vms", "current_workload"),
)


async def page(reader: Reader, after: int = 0, limit: int | None = None) -> list[Row]:
    """Hypervisors whose id is greater than `after`; all of them without a limit."""
    if limit is None:
        return await reader.fetch(f"{_SELECT} WHERE h.id > $1 ORDER BY h.id", after)
    return await reader.fetch(f"{_SELECT} WHERE h.id > $1 ORDER BY h.id LIMIT $2", after, limit)


async def matching(reader: Reader, pattern: str) -> list[Row]:
    """Hypervisors whose host name contains the pattern."""
    escaped = pattern.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    sql = f"{_SELECT} WHERE LOWER(h.hypervisor_hostname) LIKE $1 ESCAPE '!' ORDER BY h.id"
    return await reader.fetch(sql, f"%{escaped.lower()}%")


async def assigned_to_project(reader: Reader, project_id: str | None) -> list[Row]:
    """Hypervisors of hosts in aggregates whose metadata `filter_tenant_id…` names the project."""
    if project_id is None:
        return []
    entries = await reader.fetch(_RESERVED, f"{tenant_isolation.KEY}%", f"%{project_id}%")
    hosts = {
        row["host"] for row in entries if project_id in tenant_isolation.reserved_projects(row["key"], row["value"])
    }
    return await reader.fetch(f"{_SELECT} WHERE h.host = ANY($1) ORDER BY h.id", list(hosts)) if hosts else []


async def get(reader: Reader, column: str, value: Any) -> Row | None:
    """The hypervisor by its `id` or `uuid`."""
    return await reader.fetch_one(f"{_SELECT} WHERE h.{column} = $1", value)


async def add_servers(reader: Reader, rows: list[Row]) -> None:
    """Add `servers` to each row."""
    by_host: dict[str, list[Row]] = {row["host"]: [] for row in rows}
    for server in await reader.fetch(
        "SELECT id, name, host FROM servers WHERE host = ANY($1) AND NOT deleted ORDER BY created_at, id",
        list(by_host),
    ):
        by_host[server["host"]].append(server)
    for row in rows:
        row["servers"] = by_host[row["host"]]


async def add_amounts(reader: Reader, rows: list[Row]) -> None:
    """Add to each row the totals and usage of its provider tree, and parse its `cpu_info`."""
    by_uuid = {row["uuid"]: row for row in rows}
    by_host = {row["host"]: row for row in rows}
    for row in rows:
        row.update(dict.fromkeys(AMOUNTS, 0), cpu_info=orjson.loads(row["cpu_info"]))
    for found in await reader.fetch(_INVENTORIES, list(by_uuid), list(_CLASSES)):
        _add_inventory(by_uuid[found["uuid"]], found)
    for found in await reader.fetch(_RUNNING, list(by_host)):
        by_host[found["host"]]["running_vms"] = found["number"]
    for found in await reader.fetch(_WORKLOAD, list(by_host)):
        by_host[found["host"]]["current_workload"] = found["number"]


async def add_shared_disks(reader: Reader, rows: list[Row]) -> None:
    """Add the amounts of a shared disk provider to hosts without a disk of their own."""
    without = {row["uuid"]: row for row in rows if not row["local_gb"]}
    for found in await reader.fetch(_SHARED_DISKS, list(without)) if without else []:
        _add_inventory(without[found["uuid"]], found)


def _add_inventory(row: Row, inventory: Row) -> None:
    total, used, free = _CLASSES[inventory["resource_class"]]
    row[total] = int(inventory["total"])
    row[used] = int(inventory["reserved"]) + int(inventory["used"])
    if free is not None:
        row[free] = row[total] - row[used]
    if free == "free_disk_gb":
        row["disk_available_least"] = row[free]


def totals(rows: list[Row]) -> dict[str, int]:
    return {"count": len(rows), **{name: sum(row[name] for row in rows) for name in AMOUNTS}}


# A first selection only. The databases compare strings differently, so `tenant_isolation` decides.
_RESERVED = """
SELECT a.host, m.key, m.value FROM aggregate_metadata m JOIN aggregate_hosts a ON a.aggregate_id = m.aggregate_id
WHERE m.key LIKE $1 AND m.value LIKE $2
"""
_USED = """(
    SELECT COALESCE(SUM(a.used), 0) FROM allocations a
    WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class
)"""
_INVENTORIES = f"""
SELECT r.uuid, i.resource_class, SUM(i.total) AS total, SUM(i.reserved) AS reserved, SUM({_USED}) AS used
FROM resource_providers r JOIN resource_providers p ON p.root_id = r.id JOIN inventories i ON i.provider_id = p.id
WHERE r.uuid = ANY($1) AND i.resource_class = ANY($2)
GROUP BY r.uuid, i.resource_class
"""
_SHARED_DISKS = f"""
SELECT r.uuid, i.resource_class, SUM(i.total) AS total, SUM(i.reserved) AS reserved, SUM({_USED}) AS used
FROM resource_providers r JOIN inventories i ON i.provider_id IN (
    SELECT shared.provider_id FROM provider_aggregates own
    JOIN provider_aggregates shared ON shared.aggregate_uuid = own.aggregate_uuid
    JOIN provider_traits t ON t.provider_id = shared.provider_id AND t.trait = 'MISC_SHARES_VIA_AGGREGATE'
    WHERE own.provider_id = r.id
)
WHERE r.uuid = ANY($1) AND i.resource_class = 'DISK_GB'
GROUP BY r.uuid, i.resource_class
"""
_RUNNING = "SELECT host, COUNT(*) AS number FROM servers WHERE host = ANY($1) AND NOT deleted GROUP BY host"
_WORKLOAD = """
SELECT s.host, COUNT(*) AS number FROM operations o JOIN servers s ON s.id = o.server_id
WHERE o.finished_at IS NULL AND s.host = ANY($1) GROUP BY s.host
"""
