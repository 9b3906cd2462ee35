"""Makes hosts: as a snapshot for tests without a database, and as reports of agents for tests with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kilonova import clock
from kilonova.hosts.messages import HostFacts, Inventory, NestedProvider, SharingProvider
from kilonova.hosts.registry import register
from kilonova.placement import Consumer, mark_hosts_changed
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.placement.reshape_plan import InventoryAmounts
from kilonova.scheduler import Candidate, Plan, Request, Scheduler, claim_first
from kilonova.scheduler.provider_trees import ProviderState, ProviderVersion
from kilonova.scheduler.snapshot import Hosts, HostState
from kilonova.store import Database, Unavailable

POOL = "00000000-0000-4000-8000-00000000aaaa"
TINY = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


def amounts(total: int, **more: Any) -> InventoryAmounts:
    plain = InventoryAmounts(total, reserved=0, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)
    return plain._replace(**more)


def host(number: int, **changes: Any) -> HostState:
    """Host `h1`, `h2`, … with 8 VCPU, 8192 MB and 100 GB."""
    facts: dict[str, Any] = {
        "provider_id": number,
        "uuid": f"uuid-{number}",
        "service_id": number,
        "host": f"h{number}",
        "hypervisor_hostname": f"node{number}",
        "zone": "nova",
        "disabled": False,
        "disabled_reason": None,
        "forced_down": False,
        "inventory": {"VCPU": amounts(8), "MEMORY_MB": amounts(8192), "DISK_GB": amounts(100)},
        "used": {},
        "traits": frozenset(),
        "version": ProviderVersion(1, 1, 1),
    }
    return HostState(**facts | changes)


def provider(number: int, parent: str | None = None, root: str | None = None, **changes: Any) -> ProviderState:
    """Provider `uuid-101`, … with or without a parent; without inventory unless given."""
    facts: dict[str, Any] = {
        "provider_id": number,
        "uuid": f"uuid-{number}",
        "parent": parent,
        "root": root or f"uuid-{number}",
        "inventory": {},
        "used": {},
        "traits": frozenset(),
        "aggregates": frozenset(),
        "version": ProviderVersion(1, 1, 1),
    }
    return ProviderState(**facts | changes)


def cell(number: int, host: int, *, vcpus: int = 4, memory: int = 4096, **changes: Any) -> ProviderState:
    """A NUMA cell of a host."""
    uuid = f"uuid-{host}"
    inventory = {"VCPU": amounts(vcpus), "MEMORY_MB": amounts(memory)}
    return provider(number, uuid, uuid, **{"inventory": inventory} | changes)


def pool(number: int, disk: int, *aggregates: str, **changes: Any) -> ProviderState:
    """A sharing disk provider for hosts in the aggregates."""
    facts = {"inventory": {"DISK_GB": amounts(disk)}, "traits": frozenset({SHARING_TRAIT})}
    return provider(number, aggregates=frozenset(aggregates), **facts | changes)


def numa_host(number: int, *cells: ProviderState, disk: int = 100, **changes: Any) -> HostState:
    """A host with VCPU and memory in NUMA cells, and with disk, if any, in its root provider."""
    inventory = {"DISK_GB": amounts(disk)} if disk else {}
    return host(number, **{"inventory": inventory, "children": cells} | changes)


def snapshot(*facts: HostState | ProviderState) -> Hosts:
    hosts = Hosts()
    for one in facts:
        if isinstance(one, HostState):
            hosts.put(one)
        else:
            hosts.put_sharing_provider(one)
    return hosts


def names(hosts: Hosts, mask: Any) -> set[str]:
    return {hosts.names[row] for row in (mask & hosts.everywhere).nonzero()[0]}


def host_facts(name: str, *, vcpus: int = 8, traits: Sequence[str] = ()) -> HostFacts:
    inventories = {"VCPU": inventory(vcpus), "MEMORY_MB": inventory(16384), "DISK_GB": inventory(1000)}
    return HostFacts(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="sim",
        hypervisor_version=1,
        host_ip="192.0.2.1",
        inventory=inventories,
        traits=list(traits),
    )


def nested_host_facts(
    name: str, *cells: int, memory: int = 4096, disk: int = 0, pool: int = 0, **changes: Any
) -> HostFacts:
    """A host with NUMA cells of these VCPUs, with disk of its own, or with a pool that all such hosts share."""
    nested = [
        NestedProvider(
            name=f"NUMA{number}",
            inventory={"VCPU": inventory(vcpus), "MEMORY_MB": inventory(memory)},
            traits=["HW_NUMA_ROOT"],
        )
        for number, vcpus in enumerate(cells)
    ]
    shared = SharingProvider(name="pool", aggregate=POOL, inventory={"DISK_GB": inventory(pool)}, traits=[])
    facts = host_facts(name)
    return replace(
        facts,
        inventory={"DISK_GB": inventory(disk)} if disk else {},
        nested=nested,
        sharing=[shared] if pool else [],
        **changes,
    )


def inventory(total: int) -> Inventory:
    return Inventory(total=total, max_unit=total)


async def provider_uuids(db: Database) -> dict[str, str]:
    """Provider uuids by name."""
    return {row["name"]: row["uuid"] for row in await db.fetch("SELECT name, uuid FROM resource_providers")}


async def add_hosts(db: Database, *hosts: HostFacts) -> dict[str, str]:
    """Register hosts; return their uuids by name."""
    await register(db, hosts)
    return {row["host"]: row["uuid"] for row in await db.fetch("SELECT host, uuid FROM hypervisors")}


async def set_zone(db: Database, zone: str, *hosts: str) -> None:
    async with db.transaction() as tx:
        number = await tx.fetch_value(
            "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $1, $2) RETURNING id", zone, clock.now()
        )
        await tx.execute("INSERT INTO aggregate_metadata VALUES ($1, 'availability_zone', $2)", number, zone)
        await tx.execute_many("INSERT INTO aggregate_hosts VALUES ($1, $2)", [(number, one) for one in hosts])
        await mark_hosts_changed(tx, hosts)


async def set_disabled(db: Database, host: str, reason: str | None = None) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE services SET disabled = TRUE, disabled_reason = $2 WHERE host = $1", host, reason)
        await mark_hosts_changed(tx, [host])


async def dry_run(scheduler: Scheduler, request: Request) -> Plan:
    """Plan one request without a claim."""
    [plan] = await scheduler.dry_run(lambda taken: None if taken else request)
    return plan


class NoValidHost(Exception):
    """A plan has no candidates; the message is the sentence of its diagnosis."""


async def place(scheduler: Scheduler, db: Database, request: Request, consumer: Consumer) -> Candidate:
    """Plan and claim as a boot does; plan again after lost claims."""
    plan = await scheduler.plan(request)
    for _ in range(10):
        if not plan.candidates:
            raise NoValidHost(plan.diagnosis.sentence())
        async with db.transaction() as tx:
            taken = await claim_first(tx, plan.candidates, consumer)
        if taken is not None:
            return taken
        plan = await scheduler.plan(request, lost=plan.uuids)
    raise Unavailable("every claim was lost to faster ones")
