"""The doctor finds each thing that can disagree, and nothing where all agrees or is still under way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from sqlalchemy import BigInteger, Boolean, Double, Integer

from kilonova import clock
from kilonova.compute.servers.states import ACTIVE, BUILDING, ERROR, RUNNING, SHUTDOWN, STOPPED
from kilonova.doctor import Finding, examine
from kilonova.hosts.messages import GuestState, Power
from kilonova.store import Database
from kilonova.store.schema import metadata
from tests.support import run

Opener = Callable[[], AbstractAsyncContextManager[Database]]

SERVER, OTHER, PORT = "server-1", "server-2", "port-1"


async def insert(db: Database, table: str, **values: Any) -> None:
    """A row with these values, and something harmless where a value is needed."""
    for column in metadata.tables[table].columns:
        if not column.nullable and column.name not in values and not _numbers_itself(column):
            kind = column.type
            values[column.name] = (
                False if isinstance(kind, Boolean) else 0 if isinstance(kind, BigInteger | Integer | Double) else "{}"
            )
    names = ", ".join(values)
    places = ", ".join(f"${place}" for place in range(1, len(values) + 1))
    async with db.transaction() as tx:
        await tx.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", *values.values())


def _numbers_itself(column: Any) -> bool:
    return bool(column.primary_key and column.autoincrement is True)


async def add_server(db: Database, identity: str = SERVER, **values: Any) -> None:
    nics = [{"port_id": PORT}] if identity == SERVER else []
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
            "nics": orjson.dumps(nics).decode(),
            **values,
        },
    )


async def allocate(db: Database, consumer: str = SERVER, provider: int = 1, kind: str | None = "INSTANCE") -> None:
    await insert(db, "consumers", uuid=consumer, type=kind)
    await insert(db, "allocations", consumer_uuid=consumer, provider_id=provider, resource_class="VCPU", used=1)


async def add_hosts(db: Database) -> None:
    await insert(db, "resource_classes", name="VCPU")
    for number in (1, 2):
        await insert(db, "resource_providers", id=number, uuid=f"host-{number}", name=f"sim-00{number}")
        await insert(db, "inventories", provider_id=number, resource_class="VCPU", total=8, max_unit=8, step_size=1)


async def add_port(db: Database, identity: str = PORT, device: str = SERVER) -> None:
    if not await db.fetch_value("SELECT COUNT(*) FROM networks"):
        await insert(db, "networks", id="network-1")
    values = {"id": identity, "network_id": "network-1", "device_id": device, "mac_address": identity}
    await insert(db, "ports", device_owner="compute:nova", **values)


async def add_operation(db: Database, **values: Any) -> None:
    now = clock.now()
    defaults = {"id": "operation-1", "kind": "boot", "server_id": SERVER, "state": "running", "step": "spawn"}
    await insert(db, "operations", **{**defaults, "run_at": now, "lease_until": now + 15, "created_at": now, **values})


def guest(host: str = "sim-001", identity: str = SERVER, power: Power = "running") -> tuple[str, GuestState]:
    return host, GuestState(id=identity, name="web", power=power, vcpus=1, ram_mb=1, disk_gb=1)


async def sound(db: Database) -> None:
    await add_hosts(db)
    await add_server(db)
    await allocate(db)
    await add_port(db)


def findings(database: Opener, prepare: Any, *guests: tuple[str, GuestState]) -> list[tuple[str, str]]:
    async def look() -> list[Finding]:
        async with database() as db:
            await prepare(db)
            return await examine(db, guests)

    return [(finding.kind, finding.subject) for finding in run(look())]


def test_all_agrees(database: Opener) -> None:
    assert findings(database, sound, guest()) == []


def test_a_stopped_server_and_one_that_failed_are_fine(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, vm_state=STOPPED, power_state=SHUTDOWN)
        await allocate(db, OTHER)
        await add_server(db, "failed", vm_state=ERROR, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare, guest(identity=OTHER, power="shutdown")) == []


def test_consumers_that_are_no_servers_are_not_ours(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await allocate(db, "accelerator", kind="CUSTOM")

    assert findings(database, prepare) == []


@pytest.mark.parametrize(
    "guests, found",
    [
        ([], [("guest missing", SERVER)]),
        ([guest(), guest(identity=OTHER)], [("guest without server", OTHER)]),
        ([guest("sim-002")], [("guest on the wrong host", SERVER)]),
        ([guest(), guest("sim-002")], [("guest on the wrong host", SERVER)]),
        ([guest(power="shutdown")], [("guest power differs", SERVER)]),
    ],
)
def test_guests(database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]) -> None:
    assert findings(database, sound, *guests) == found


def test_without_guests_only_the_database_is_compared(database: Opener) -> None:
    async def look() -> list[Finding]:
        async with database() as db:
            await sound(db)
            return await examine(db)

    assert run(look()) == []


def test_allocations(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await allocate(db, "nobody")
        await add_server(db, OTHER)
        await add_server(db, "moved", host="sim-001")
        await allocate(db, "moved", provider=2)

    guests = [guest(), guest(identity=OTHER), guest(identity="moved")]
    assert findings(database, prepare, *guests) == [
        ("allocation without server", "nobody"),
        ("allocation on the wrong host", "moved"),
        ("server without allocation", OTHER),
    ]


def test_ports(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db)
        await allocate(db)
        await add_port(db, "port-2", device="nobody")

    assert findings(database, prepare, guest()) == [
        ("port without server", "port-2"),
        ("server's port missing", SERVER),
    ]


def test_building_without_an_operation(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_server(db, OTHER, vm_state=BUILDING, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare) == [("transient state without operation", OTHER)]


def test_what_is_under_way_or_has_just_ended_is_left_alone(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, vm_state=BUILDING)
        await add_operation(db)
        await allocate(db, OTHER)
        await add_operation(db, id="operation-2", server_id=OTHER, kind="delete", finished_at=clock.now())

    assert findings(database, prepare, guest(identity=OTHER)) == []


@pytest.mark.parametrize(
    "values",
    [
        {"run_at": 1.0, "lease_until": 1.0},
        {"state": "undoing", "attempt": 9, "trouble": '{"type": "Failed", "message": "no way back"}'},
        {"state": "queued", "trouble": '{"type": "Unknown", "message": "no such step"}'},
    ],
)
def test_stuck_operations(database: Opener, values: dict[str, Any]) -> None:
    async def prepare(db: Database) -> None:
        await add_operation(db, **values)

    assert findings(database, prepare) == [("operation stuck", "operation-1")]
