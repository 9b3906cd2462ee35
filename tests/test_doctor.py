"""The doctor finds each thing that can disagree, and nothing where all agrees or is still under way."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import BigInteger, Boolean, Double, Integer

from kilonova import clock, doctor
from kilonova.compute.servers.states import (
    ACTIVE,
    BUILDING,
    ERROR,
    RESIZED,
    RUNNING,
    SHELVED,
    SHELVED_OFFLOADED,
    SHUTDOWN,
    STOPPED,
)
from kilonova.doctor import Finding, examine
from kilonova.doctor.remedies import REMEDIES
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
            "flavor": flavor(),
            "vcpus": 1,
            **values,
        },
    )


def flavor(vcpus: int = 1, **specs: str) -> str:
    sizes = {"vcpus": vcpus, "ram": 0, "disk": 0, "ephemeral": 0, "swap": 0, "extra_specs": specs}
    return orjson.dumps(sizes).decode()


async def allocate(
    db: Database, consumer: str = SERVER, provider: int = 1, kind: str | None = "INSTANCE", used: int = 1
) -> None:
    await insert(db, "consumers", uuid=consumer, type=kind)
    await hold(db, consumer, provider, "VCPU", used)


async def hold(db: Database, consumer: str, provider: int, resource_class: str, used: int = 1) -> None:
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


def test_a_server_holds_what_it_needs_summed_over_nested_and_sharing_providers(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "cell", parent_id=1, root_id=1)
        await add_provider(db, 4, "pool", "DISK_GB")
        await insert(db, "traits", name="MISC_SHARES_VIA_AGGREGATE")
        await insert(db, "provider_traits", provider_id=4, trait="MISC_SHARES_VIA_AGGREGATE")
        specs = {"resources1:VCPU": "2", "resources:DISK_GB": "3"}
        await add_server(db, OTHER, flavor=flavor(1, **specs))
        await allocate(db, OTHER)
        await hold(db, OTHER, 3, "VCPU", 2)
        await hold(db, OTHER, 4, "DISK_GB", 3)

    assert findings(database, prepare, guest(identity=OTHER)) == []


@pytest.mark.parametrize(
    "values, found",
    [
        ({"flavor": flavor(2), "vcpus": 2}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "1"})}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "much"})}, "server's needs cannot be read"),
    ],
)
def test_a_server_that_holds_something_else_than_it_needs(database: Opener, values: dict[str, Any], found: str) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, **values)
        await allocate(db, OTHER)

    assert findings(database, prepare, guest(identity=OTHER)) == [(found, OTHER)]


def test_what_the_quota_counts(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await change(db, "UPDATE servers SET ram = 512")

    assert findings(database, prepare, guest()) == [("quota counts wrongly", SERVER)]


def test_allocations_on_a_provider_of_no_host_are_on_the_wrong_one(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "elsewhere")
        await add_server(db, OTHER)
        await allocate(db, OTHER, provider=3)

    assert findings(database, prepare, guest(identity=OTHER)) == [("allocation on the wrong host", OTHER)]


def test_a_consumer_that_holds_nothing(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await insert(db, "consumers", uuid="nobody", type="CUSTOM")

    assert findings(database, prepare) == [("consumer without allocations", "nobody")]


def test_a_provider_over_capacity(database: Opener) -> None:
    async def look() -> list[Finding]:
        async with database() as db:
            await sound(db)
            await allocate(db, "accelerator", kind="CUSTOM", used=7)
            assert await examine(db) == []
            await change(db, "UPDATE inventories SET reserved = 1 WHERE provider_id = 1")
            return await examine(db)

    (found,) = run(look())
    assert (found.kind, found.subject) == ("provider over capacity", "host-1")
    assert found.detail == "8 VCPU in use on sim-001, which has 7: (total 8 - reserved 1) * ratio 1"
    assert "raise them again" in found.remedy


def test_every_finding_says_what_to_do() -> None:
    source = "".join(file.read_text() for file in Path(doctor.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'Finding\(\s*"([^"]+)"', source))
    assert len(kinds) > 15
    assert kinds == REMEDIES.keys()


def test_an_allocation_without_inventory(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await unlinked(db, "DELETE FROM inventories WHERE provider_id = 1")

    assert findings(database, prepare, guest()) == [("allocation without inventory", SERVER)]


async def change(db: Database, sql: str, *args: Any) -> None:
    async with db.transaction() as tx:
        await tx.execute(sql, *args)


async def unlinked(db: Database, sql: str) -> None:
    """Break what the database itself would not let be broken."""
    if db.dialect == "postgresql":
        async with db.transaction() as tx:
            await tx.execute("SET LOCAL session_replication_role = replica")
            await tx.execute(sql)
    else:
        import apsw

        path = (await db.fetch_one("SELECT file FROM pragma_database_list"))["file"]  # type: ignore[index]
        connection = apsw.Connection(path)
        connection.execute(sql)
        connection.close()


async def add_aggregate(db: Database, *hosts: str) -> None:
    await insert(db, "aggregates", id=1, uuid="rack-1", name="rack")
    for host in hosts:
        await insert(db, "aggregate_hosts", aggregate_id=1, host=host)


def test_aggregates_that_placement_has_too(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001", "no host any more")
        await insert(db, "provider_aggregates", provider_id=1, aggregate_uuid="rack-1")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="an aggregate of placement's own")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1", reported=True)

    assert findings(database, prepare) == []


def test_aggregates_that_differ(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1")

    assert findings(database, prepare) == [("aggregate not mirrored", "rack-1")] * 2


def test_disabled_services(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await insert(db, "traits", name="COMPUTE_STATUS_DISABLED")
        await insert(db, "provider_traits", provider_id=2, trait="COMPUTE_STATUS_DISABLED")
        await change(db, "UPDATE services SET disabled = TRUE WHERE id = 2")
        assert await examine(db) == []
        await change(db, "UPDATE services SET disabled = NOT disabled")

    assert findings(database, prepare) == [
        ("disabled service not mirrored", "host-1"),
        ("disabled service not mirrored", "host-2"),
    ]


@pytest.mark.parametrize(
    "policy, most, hosts, broken",
    [
        ("affinity", None, ("sim-001", "sim-001"), False),
        ("affinity", None, ("sim-001", "sim-002"), True),
        ("soft-affinity", None, ("sim-001", "sim-002"), False),
        ("anti-affinity", None, ("sim-001", "sim-002"), False),
        ("anti-affinity", None, ("sim-001", "sim-001"), True),
        ("anti-affinity", 2, ("sim-001", "sim-001"), False),
        ("anti-affinity", 2, ("sim-001", "sim-001", "sim-001"), True),
        ("soft-anti-affinity", None, ("sim-001", "sim-001"), False),
    ],
)
def test_server_groups(database: Opener, policy: str, most: int | None, hosts: tuple[str, ...], broken: bool) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await insert(db, "server_groups", id="group-1", policy=policy, max_server_per_host=most)
        for number, host in enumerate(hosts):
            name = f"member-{number}"
            await add_server(db, name, host=host, hypervisor_hostname=host)
            await allocate(db, name, provider=int(host[-1]))
            await insert(db, "server_group_members", server_id=name, group_id="group-1")

    guests = [guest(host, f"member-{number}") for number, host in enumerate(hosts)]
    assert findings(database, prepare, *guests) == [("server group policy broken", "group-1")] * broken


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


# Moves

MOVE = "move-1"


async def resized(db: Database, state: str = "done", **move: Any) -> None:
    """From the first host to the second, with one core more, and not decided yet."""
    await sound(db)
    values = {"host": "sim-002", "hypervisor_hostname": "sim-002", "flavor": flavor(2), "vcpus": 2}
    await change(db, "DELETE FROM allocations")
    await change(db, "UPDATE consumers SET type = 'INSTANCE'")
    await hold(db, SERVER, 2, "VCPU", 2)
    await allocate(db, MOVE, kind="MIGRATION")
    await update_server(db, vm_state=RESIZED, **values)
    await change(db, "UPDATE ports SET host_id = 'sim-002'")
    finished = {"finished_at": 1.0} if state == "done" else {}
    await add_operation(db, id=MOVE, kind="resize", state=state, **finished)
    hosts = {"source_host": "sim-001", "source_node": "sim-001", "dest_host": "sim-002", "dest_node": "sim-002"}
    flavors = {"old_flavor": flavor(1), "new_flavor": flavor(2)}
    defaults = {"operation_id": MOVE, "server_id": SERVER, "type": "resize", "old_vm_state": ACTIVE}
    await insert(db, "moves", **{**defaults, **hosts, **flavors, **move})


async def update_server(db: Database, **values: Any) -> None:
    changes = ", ".join(f"{name} = ${place}" for place, name in enumerate(values, 1))
    await change(db, f"UPDATE servers SET {changes}", *values.values())


OLD_GUEST = guest(power="shutdown", slot=MOVE)


def test_a_resized_server_has_two_shares_and_two_guests(database: Opener) -> None:
    assert findings(database, resized, guest("sim-002"), OLD_GUEST) == []


@pytest.mark.parametrize(
    "sql, found",
    [
        (
            "UPDATE moves SET outcome = 'confirmed'",
            [
                ("resize undecided", SERVER),
                ("allocation without move", MOVE),
                ("guest kept without reason", SERVER),
            ],
        ),
        ("UPDATE servers SET vm_state = 'active'", [("resize undecided", SERVER)]),
        ("UPDATE servers SET vm_state = 'error'", []),
        ("UPDATE servers SET vcpus = 3", []),
        ("DELETE FROM consumers WHERE type = 'MIGRATION'", [("resize cannot be reverted", SERVER)]),
        ("UPDATE allocations SET provider_id = 2 WHERE provider_id = 1", [("resize cannot be reverted", SERVER)]),
        ("UPDATE allocations SET used = 2 WHERE provider_id = 1", [("resize cannot be reverted", SERVER)]),
        ("UPDATE ports SET host_id = 'sim-001'", [("port on the wrong host", PORT)]),
    ],
)
def test_a_resize_that_waits(database: Opener, sql: str, found: list[tuple[str, str]]) -> None:
    async def prepare(db: Database) -> None:
        await resized(db)
        await change(db, sql)

    assert findings(database, prepare, guest("sim-002"), OLD_GUEST) == found


@pytest.mark.parametrize(
    "guests, found",
    [
        ([guest("sim-002")], [("guest missing", SERVER)]),
        ([OLD_GUEST], [("guest missing", SERVER)]),
        (
            [guest("sim-002"), guest("sim-002", slot=MOVE)],
            [("guest kept without reason", SERVER), ("guest missing", SERVER)],
        ),
        ([guest("sim-002"), OLD_GUEST, guest(slot="another")], [("guest kept without reason", SERVER)]),
    ],
)
def test_guests_of_a_resize(
    database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]
) -> None:
    assert findings(database, resized, *guests) == found


def test_a_move_under_way_is_left_alone(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await resized(db, state="running")
        await insert(db, "standby_bindings", port_id=PORT, host="sim-001")

    assert findings(database, prepare, guest("sim-001"), guest("sim-002"), OLD_GUEST) == []


def test_shares_and_bindings_of_no_move(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await allocate(db, MOVE, provider=2, kind="MIGRATION")
        await insert(db, "standby_bindings", port_id=PORT, host="sim-002")

    assert findings(database, prepare, guest()) == [
        ("allocation without move", MOVE),
        ("standby binding without move", PORT),
    ]


async def offloaded(db: Database) -> None:
    await add_hosts(db)
    await add_server(db, vm_state=SHELVED_OFFLOADED, power_state=SHUTDOWN, host=None, hypervisor_hostname=None)
    await add_port(db, host="")


def test_shelved_servers(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await offloaded(db)
        await add_server(db, OTHER, vm_state=SHELVED, power_state=SHUTDOWN)
        await allocate(db, OTHER)

    assert findings(database, prepare, guest(identity=OTHER, power="shutdown")) == []


def test_a_shelved_server_that_runs(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await update_server(db, vm_state=SHELVED)

    assert findings(database, prepare, guest()) == [("guest power differs", SERVER)]


def test_an_offloaded_server_that_is_somewhere(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await offloaded(db)
        await allocate(db)
        await change(db, "UPDATE ports SET host_id = 'sim-001'")

    assert findings(database, prepare, guest(power="shutdown")) == [
        ("allocation on the wrong host", SERVER),
        ("port on the wrong host", PORT),
        ("guest on the wrong host", SERVER),
    ]


def test_an_offloaded_server_that_says_so(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await update_server(db, vm_state=SHELVED_OFFLOADED, power_state=SHUTDOWN)

    assert findings(database, prepare, guest(power="shutdown")) == [("offloaded server on a host", SERVER)]


# What operations leave for hosts to do


async def add_leftover(db: Database, kind: str = "clear guest", **values: Any) -> None:
    """For the second host unless another is named, since ever."""
    slot, host = values.pop("slot", None), values.pop("host", "sim-002")
    params = {"guest_id": SERVER, "host": host, "slot": slot, "operation": MOVE, "round": 1, "epoch": 2}
    defaults = {"id": "leftover-1", "kind": kind, "server_id": None, "host": host, "state": "queued"}
    text = orjson.dumps(params).decode()
    await add_operation(db, **{**defaults, "params": text, "created_at": 1.0, **values})


@pytest.mark.parametrize(
    "kind, slot, there",
    [
        ("clear guest", None, [guest(), guest("sim-002")]),
        ("clear guest", MOVE, [guest(), guest("sim-002", slot=MOVE)]),
        ("clear guest", MOVE, [guest()]),
        ("restore guest", None, [guest(), guest("sim-002", power="shutdown")]),
        ("restore guest", MOVE, [guest(), guest("sim-002", slot=MOVE)]),
    ],
)
def test_what_is_to_be_done_on_a_silent_host(
    database: Opener, kind: str, slot: str | None, there: list[tuple[str, GuestState]]
) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        trouble = '{"type": "Failed", "message": "no answer from the host", "fault": "sim-002: no answer"}'
        await add_leftover(db, kind, slot=slot, attempt=9, trouble=trouble)

    assert findings(database, prepare, *there) == []


def test_only_what_is_to_be_cleared_is_excused(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await add_leftover(db, slot=MOVE)

    assert findings(database, prepare, guest(), guest("sim-002"), guest(slot=MOVE)) == [
        ("guest on the wrong host", SERVER),
        ("guest kept without reason", SERVER),
    ]


def test_a_guest_that_is_to_be_restored_may_be_in_its_slot(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await update_server(db, host="sim-002", hypervisor_hostname="sim-002")
        await change(db, "UPDATE allocations SET provider_id = 2")
        await change(db, "UPDATE ports SET host_id = 'sim-002'")
        await add_leftover(db, "restore guest", slot=MOVE)

    assert findings(database, prepare, guest("sim-002", power="shutdown", slot=MOVE)) == []


@pytest.mark.parametrize("there", [[guest("sim-001")], []])
def test_a_guest_that_is_to_go_back_into_its_slot_may_be_out_of_it(
    database: Opener, there: list[tuple[str, GuestState]]
) -> None:
    async def prepare(db: Database) -> None:
        await resized(db)
        await add_leftover(db, "park guest again", slot=MOVE, host="sim-001")

    assert findings(database, prepare, guest("sim-002"), *there) == []


@pytest.mark.parametrize("kind", ["clear guest", "restore guest", "park guest again"])
def test_a_host_that_is_up_does_what_it_has_to(database: Opener, kind: str) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await change(db, "UPDATE services SET last_seen_at = $1", clock.now())
        await add_leftover(db, kind, created_at=clock.now())
        assert await examine(db) == [], "there was little time"
        await change(db, "UPDATE operations SET created_at = $1", clock.now() - 100)
        await change(db, "UPDATE services SET forced_down = TRUE")
        assert await examine(db) == [], "the host does not count as up"
        await change(db, "UPDATE services SET forced_down = FALSE")

    assert findings(database, prepare, guest()) == [("leftover on a host", "leftover-1")]


def test_a_host_that_answers_and_cannot(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        trouble = '{"type": "Failed", "message": "the disk is full", "fault": null}'
        await add_leftover(db, attempt=9, trouble=trouble)

    assert findings(database, prepare, guest()) == [("leftover on a host", "leftover-1")]
