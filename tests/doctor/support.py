"""A database with a consistent server, allocation, port and guest, and functions that make it inconsistent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from sqlalchemy import BigInteger, Boolean, Double, Integer

from kilonova import clock
from kilonova.compute.servers.server import Interface
from kilonova.compute.servers.states import (
    ACTIVE,
    RUNNING,
)
from kilonova.doctor import Finding, examine
from kilonova.hosts.messages import GuestState, Power
from kilonova.store import Database
from kilonova.store.records import encode_document
from kilonova.store.schema import metadata
from tests.support import run

Opener = Callable[[], AbstractAsyncContextManager[Database]]

SERVER, OTHER, PORT = "server-1", "server-2", "port-1"


async def insert(db: Database, table: str, **values: Any) -> None:
    """Insert a row; required columns without a value get a neutral one."""
    for column in metadata.tables[table].columns:
        if not column.nullable and column.name not in values and not _is_generated(column):
            kind = column.type
            values[column.name] = (
                False if isinstance(kind, Boolean) else 0 if isinstance(kind, BigInteger | Integer | Double) else "{}"
            )
    names = ", ".join(values)
    placeholders = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    async with db.transaction() as tx:
        await tx.execute(f"INSERT INTO {table} ({names}) VALUES ({placeholders})", *values.values())


def _is_generated(column: Any) -> bool:
    return bool(column.primary_key and column.autoincrement is True)


async def add_server(db: Database, identity: str = SERVER, **values: Any) -> None:
    nics = [Interface(PORT, "network-1", "net", "", [], [], None, False)] if identity == SERVER else []
    await insert(
        db,
        "servers",
        **{
            "id": identity,
            "name": "web",
            "vm_state": ACTIVE,
            "power_state": RUNNING,
            "host": "sim-001",
            "hypervisor_hostname": "sim-001",
            "nics": encode_document(nics),
            "flavor": flavor(),
            "vcpus": 1,
            **values,
        },
    )


def flavor(vcpus: int = 1, **specs: str) -> str:
    """The flavor of a server or of a move."""
    names = {"flavor_id": "f", "name": "f"}
    sizes = {"vcpus": vcpus, "ram": 0, "disk": 0, "ephemeral": 0, "swap": 0, "extra_specs": specs}
    return orjson.dumps({**names, **sizes}).decode()


async def allocate(
    db: Database, consumer: str = SERVER, provider: int = 1, kind: str | None = "INSTANCE", used: int = 1
) -> None:
    await insert(db, "consumers", uuid=consumer, type=kind)
    await add_allocation(db, consumer, provider, "VCPU", used)


async def add_allocation(db: Database, consumer: str, provider: int, resource_class: str, used: int = 1) -> None:
    values = {"consumer_uuid": consumer, "provider_id": provider, "resource_class": resource_class, "used": used}
    await insert(db, "allocations", **values)


async def add_provider(db: Database, number: int, name: str, resource_class: str = "VCPU", **values: Any) -> None:
    await insert(db, "resource_providers", **{"id": number, "uuid": f"host-{number}", "name": name, **values})
    amounts = {"total": 8, "max_unit": 8, "step_size": 1, "allocation_ratio": 1.0}
    await insert(db, "inventories", provider_id=number, resource_class=resource_class, **amounts)


async def add_hosts(db: Database) -> None:
    for name in ("VCPU", "DISK_GB"):
        await insert(db, "resource_classes", name=name)
    for number in (1, 2):
        name = f"sim-00{number}"
        await add_provider(db, number, name, change=5, facts=1)
        await insert(db, "services", id=number, uuid=f"service-{number}", host=name, program="nova-compute")
        names = {"host": name, "hypervisor_hostname": name}
        await insert(db, "hypervisors", uuid=f"host-{number}", service_id=number, **names)


async def add_port(db: Database, identity: str = PORT, device: str = SERVER, host: str = "sim-001") -> None:
    if not await db.fetch_value("SELECT COUNT(*) FROM networks"):
        await insert(db, "networks", id="network-1")
    values = {"id": identity, "network_id": "network-1", "device_id": device, "mac_address": identity}
    await insert(db, "ports", device_owner="compute:nova", host_id=host, **values)


async def add_operation(db: Database, **values: Any) -> None:
    now = clock.now()
    defaults = {"id": "operation-1", "kind": "boot", "server_id": SERVER, "state": "running", "step": "spawn"}
    await insert(db, "operations", **{**defaults, "run_at": now, "lease_until": now + 15, "created_at": now, **values})


def guest(
    host: str = "sim-001", identity: str = SERVER, power: Power = "running", slot: str = ""
) -> tuple[str, GuestState]:
    return host, GuestState(id=identity, name="web", power=power, vcpus=1, ram_mb=1, disk_gb=1, slot=slot)


async def add_consistent_server(db: Database) -> None:
    await add_hosts(db)
    await add_server(db)
    await allocate(db)
    await add_port(db)


def findings(database: Opener, prepare: Any, *guests: tuple[str, GuestState]) -> list[tuple[str, str]]:
    async def collect() -> list[Finding]:
        async with database() as db:
            await prepare(db)
            return await examine(db, guests)

    return [(finding.kind, finding.subject) for finding in run(collect())]


async def change(db: Database, sql: str, *args: Any) -> None:
    async with db.transaction() as tx:
        await tx.execute(sql, *args)
