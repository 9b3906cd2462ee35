"""Hosts as columns for pure tests, and as rows for those with a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from kilonova import clock
from kilonova.hosts.messages import HostFacts as Description
from kilonova.hosts.messages import Inventory, NestedProvider, SharingProvider
from kilonova.hosts.registry import register
from kilonova.placement import Consumer, hosts_changed
from kilonova.placement.facts import SHARES
from kilonova.placement.providers import Amounts
from kilonova.scheduler import Candidate, Plan, Request, Scheduler, claim_first
from kilonova.scheduler.snapshot import HostFacts, Hosts
from kilonova.scheduler.trees import Marks, MemberFacts
from kilonova.store import Database, Unavailable

POOL = "00000000-0000-4000-8000-00000000aaaa"
TINY = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


def amounts(total: int, **more: Any) -> Amounts:
    plain = Amounts(total, reserved=0, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)
    return plain._replace(**more)


def host(number: int, **changes: Any) -> HostFacts:
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
        "marks": Marks(1, 1, 1),
    }
    return HostFacts(**facts | changes)


def member(number: int, parent: str | None = None, root: str | None = None, **changes: Any) -> MemberFacts:
    """Provider `uuid-101`, … below another, or alone; what it has in `inventory`."""
    facts: dict[str, Any] = {
        "provider_id": number,
        "uuid": f"uuid-{number}",
        "parent": parent,
        "root": root or f"uuid-{number}",
        "inventory": {},
        "used": {},
        "traits": frozenset(),
        "aggregates": frozenset(),
        "marks": Marks(1, 1, 1),
    }
    return MemberFacts(**facts | changes)


def cell(number: int, host: int, *, vcpus: int = 4, memory: int = 4096, **changes: Any) -> MemberFacts:
    """A NUMA cell of a host."""
    uuid = f"uuid-{host}"
    inventory = {"VCPU": amounts(vcpus), "MEMORY_MB": amounts(memory)}
    return member(number, uuid, uuid, **{"inventory": inventory} | changes)


def pool(number: int, disk: int, *aggregates: str, **changes: Any) -> MemberFacts:
    """Disk that hosts in the aggregates share."""
    facts = {"inventory": {"DISK_GB": amounts(disk)}, "traits": frozenset({SHARES})}
    return member(number, aggregates=frozenset(aggregates), **facts | changes)


def numa_host(number: int, *cells: MemberFacts, disk: int = 100, **changes: Any) -> HostFacts:
    """A host whose processors and memory are in cells, and whose disk, if any, is its own."""
    inventory = {"DISK_GB": amounts(disk)} if disk else {}
    return host(number, **{"inventory": inventory, "children": cells} | changes)


def snapshot(*facts: HostFacts | MemberFacts) -> Hosts:
    hosts = Hosts()
    for one in facts:
        if isinstance(one, HostFacts):
            hosts.put(one)
        else:
            hosts.put_sharing(one)
    return hosts


def names(hosts: Hosts, mask: Any) -> set[str]:
    return {hosts.names[row] for row in (mask & hosts.everywhere).nonzero()[0]}


def described(name: str, *, vcpus: int = 8, traits: Sequence[str] = ()) -> Description:
    stocks = {"VCPU": inventory(vcpus), "MEMORY_MB": inventory(16384), "DISK_GB": inventory(1000)}
    return Description(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="sim",
        hypervisor_version=1,
        host_ip="192.0.2.1",
        inventory=stocks,
        traits=list(traits),
    )


def shaped(name: str, *cells: int, memory: int = 4096, disk: int = 0, pool: int = 0, **changes: Any) -> Description:
    """A host with NUMA cells of so many VCPU each, with disk of its own, or with a pool that all such hosts share."""
    nested = [
        NestedProvider(
            name=f"NUMA{number}",
            inventory={"VCPU": inventory(vcpus), "MEMORY_MB": inventory(memory)},
            traits=["HW_NUMA_ROOT"],
        )
        for number, vcpus in enumerate(cells)
    ]
    shared = SharingProvider(name="pool", aggregate=POOL, inventory={"DISK_GB": inventory(pool)}, traits=[])
    facts = described(name)
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
    """The uuid of every provider by its name."""
    return {row["name"]: row["uuid"] for row in await db.fetch("SELECT name, uuid FROM resource_providers")}


async def add_hosts(db: Database, *hosts: Description) -> dict[str, str]:
    """Register hosts; the uuid of each by its name."""
    await register(db, hosts)
    return {row["host"]: row["uuid"] for row in await db.fetch("SELECT host, uuid FROM hypervisors")}


async def set_zone(db: Database, zone: str, *hosts: str) -> None:
    async with db.transaction() as tx:
        number = await tx.fetch_value(
            "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $1, $2) RETURNING id", zone, clock.now()
        )
        await tx.execute("INSERT INTO aggregate_metadata VALUES ($1, 'availability_zone', $2)", number, zone)
        await tx.execute_many("INSERT INTO aggregate_hosts VALUES ($1, $2)", [(number, one) for one in hosts])
        await hosts_changed(tx, hosts)


async def set_disabled(db: Database, host: str, reason: str | None = None) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE services SET disabled = TRUE, disabled_reason = $2 WHERE host = $1", host, reason)
        await hosts_changed(tx, [host])


async def rehearsed(scheduler: Scheduler, request: Request) -> Plan:
    """A plan that nobody will claim."""
    [plan] = await scheduler.rehearse(lambda taken: None if taken else request)
    return plan


class NoValidHost(Exception):
    """A plan without candidates; its text is the diagnosis in one sentence."""


async def place(scheduler: Scheduler, db: Database, request: Request, consumer: Consumer) -> Candidate:
    """Plan and claim, again where others were faster: a boot without its other steps."""
    plan = await scheduler.plan(request)
    for _ in range(10):
        if not plan.candidates:
            raise NoValidHost(plan.diagnosis.sentence())
        async with db.transaction() as tx:
            taken = await claim_first(tx, plan.candidates, consumer)
        if taken is not None:
            return taken
        plan = await scheduler.plan(request, lost=plan.uuids)
    raise Unavailable("others were faster every time")
