"""Hypervisors in the database, with their services. Amounts come from placement, in one query for a whole list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct, structs

from kilonova.scheduler.filters import tenant_isolation
from kilonova.store import Reader, Row
from kilonova.store.records import Record

_SELECT = """
SELECT h.*, s.uuid AS service_uuid, s.disabled, s.disabled_reason, s.forced_down, s.last_seen_at
FROM hypervisors h JOIN services s ON s.id = h.service_id
"""


class Hypervisor(Record, frozen=True):
    table: ClassVar[str] = "hypervisors"

    id: int
    uuid: str
    service_id: int
    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str
    cpu_info: dict[str, object]
    booted_at: float | None


class Amounts(Struct):
    """The amounts of views before 2.88."""

    vcpus: int = 0
    vcpus_used: int = 0
    memory_mb: int = 0
    memory_mb_used: int = 0
    free_ram_mb: int = 0
    local_gb: int = 0
    local_gb_used: int = 0
    free_disk_gb: int = 0
    disk_available_least: int = 0
    running_vms: int = 0
    current_workload: int = 0

    def set_inventory(self, resource_class: str, total: int, used: int) -> None:
        if resource_class == "VCPU":
            self.vcpus, self.vcpus_used = total, used
        elif resource_class == "MEMORY_MB":
            self.memory_mb, self.memory_mb_used, self.free_ram_mb = total, used, total - used
        else:
            self.local_gb, self.local_gb_used = total, used
            self.free_disk_gb = self.disk_available_least = total - used


class ShownHypervisor(Struct):
    """A hypervisor with its service. Its servers are only shown if requested."""

    hypervisor: Hypervisor
    service_uuid: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    last_seen_at: float
    amounts: Amounts
    server_ids: list[str] | None = None

    @property
    def id(self) -> int:
        return self.hypervisor.id


AMOUNTS = Amounts.__struct_fields__
_CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


async def page(reader: Reader, after: int = 0, limit: int | None = None) -> list[ShownHypervisor]:
    """Hypervisors whose id is greater than `after`; all of them without a limit."""
    if limit is None:
        return await _fetch(reader, "h.id > $1 ORDER BY h.id", after)
    return await _fetch(reader, "h.id > $1 ORDER BY h.id LIMIT $2", after, limit)


async def matching(reader: Reader, pattern: str) -> list[ShownHypervisor]:
    """Hypervisors whose host name contains the pattern."""
    escaped = pattern.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    where = "LOWER(h.hypervisor_hostname) LIKE $1 ESCAPE '!' ORDER BY h.id"
    return await _fetch(reader, where, f"%{escaped.lower()}%")


async def assigned_to_project(reader: Reader, project_id: str | None) -> list[ShownHypervisor]:
    """Hypervisors of hosts in aggregates whose metadata `filter_tenant_id…` names the project."""
    if project_id is None:
        return []
    entries = await reader.fetch(_RESERVED, f"{tenant_isolation.KEY}%", f"%{project_id}%")
    hosts = {
        row["host"] for row in entries if project_id in tenant_isolation.reserved_projects(row["key"], row["value"])
    }
    return await _fetch(reader, "h.host = ANY($1) ORDER BY h.id", list(hosts)) if hosts else []


async def get(reader: Reader, column: str, value: int | str) -> ShownHypervisor | None:
    """The hypervisor by its `id`, `uuid` or `host`."""
    found = await _fetch(reader, f"h.{column} = $1 LIMIT 1", value)
    return found[0] if found else None


async def _fetch(reader: Reader, where: str, *arguments: int | str | list[str]) -> list[ShownHypervisor]:
    return [_decode(row) for row in await reader.fetch(f"{_SELECT} WHERE {where}", *arguments)]


def _decode(row: Row) -> ShownHypervisor:
    return ShownHypervisor(
        hypervisor=Hypervisor.decode(row),
        service_uuid=row["service_uuid"],
        disabled=row["disabled"],
        disabled_reason=row["disabled_reason"],
        forced_down=row["forced_down"],
        last_seen_at=row["last_seen_at"],
        amounts=Amounts(),
    )


async def add_servers(reader: Reader, found: Sequence[ShownHypervisor]) -> None:
    """Add the ids of its servers to each hypervisor."""
    by_host: dict[str, list[str]] = {shown.hypervisor.host: [] for shown in found}
    for row in await reader.fetch(
        "SELECT id, host FROM servers WHERE host = ANY($1) AND NOT deleted ORDER BY created_at, id",
        list(by_host),
    ):
        by_host[row["host"]].append(row["id"])
    for shown in found:
        shown.server_ids = by_host[shown.hypervisor.host]


async def add_amounts(reader: Reader, found: Sequence[ShownHypervisor]) -> None:
    """Set the totals and usage of each hypervisor's provider tree."""
    by_uuid = {shown.hypervisor.uuid: shown.amounts for shown in found}
    by_host = {shown.hypervisor.host: shown.amounts for shown in found}
    for row in await reader.fetch(_INVENTORIES, list(by_uuid), list(_CLASSES)):
        _add_inventory(by_uuid[row["uuid"]], row)
    for row in await reader.fetch(_RUNNING, list(by_host)):
        by_host[row["host"]].running_vms = row["number"]
    for row in await reader.fetch(_WORKLOAD, list(by_host)):
        by_host[row["host"]].current_workload = row["number"]


async def add_shared_disks(reader: Reader, found: Sequence[ShownHypervisor]) -> None:
    """Add the amounts of a shared disk provider to hosts without a disk of their own."""
    without = {shown.hypervisor.uuid: shown.amounts for shown in found if not shown.amounts.local_gb}
    for row in await reader.fetch(_SHARED_DISKS, list(without)) if without else []:
        _add_inventory(without[row["uuid"]], row)


def _add_inventory(amounts: Amounts, inventory: Row) -> None:
    used = int(inventory["reserved"]) + int(inventory["used"])
    amounts.set_inventory(inventory["resource_class"], int(inventory["total"]), used)


def totals(found: Sequence[ShownHypervisor]) -> dict[str, int]:
    amounts = [structs.asdict(shown.amounts) for shown in found]
    return {"count": len(found), **{name: sum(each[name] for each in amounts) for name in AMOUNTS}}


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
