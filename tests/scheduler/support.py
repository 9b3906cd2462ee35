"""Hosts as columns for pure tests, and as rows for those with a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kilonova import clock
from kilonova.hosts.messages import HostFacts as Description
from kilonova.hosts.messages import Inventory
from kilonova.hosts.registry import register
from kilonova.placement import hosts_changed
from kilonova.placement.providers import Amounts
from kilonova.scheduler.snapshot import HostFacts, Hosts, Marks
from kilonova.store import Database

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


def snapshot(*facts: HostFacts) -> Hosts:
    hosts = Hosts()
    for one in facts:
        hosts.put(one)
    return hosts


def names(hosts: Hosts, mask: Any) -> set[str]:
    return {hosts.names[row] for row in (mask & hosts.everywhere).nonzero()[0]}


def described(name: str, *, vcpus: int = 8, traits: Sequence[str] = ()) -> Description:
    inventory = {
        "VCPU": Inventory(total=vcpus, max_unit=vcpus),
        "MEMORY_MB": Inventory(total=16384, max_unit=16384),
        "DISK_GB": Inventory(total=1000, max_unit=1000),
    }
    return Description(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="sim",
        hypervisor_version=1,
        host_ip="192.0.2.1",
        inventory=inventory,
        traits=list(traits),
    )


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
