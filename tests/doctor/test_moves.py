"""Findings about moves, resizes, shelved servers, and deferred cleanup."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova import clock
from kilonova.compute.servers.states import (
    ACTIVE,
    RESIZED,
    SHELVED,
    SHELVED_OFFLOADED,
    SHUTDOWN,
)
from kilonova.doctor import examine
from kilonova.hosts.messages import GuestState
from kilonova.store import Database
from tests.doctor.support import (
    OTHER,
    PORT,
    SERVER,
    Opener,
    add_allocation,
    add_consistent_server,
    add_hosts,
    add_operation,
    add_port,
    add_server,
    allocate,
    change,
    findings,
    flavor,
    guest,
    insert,
)

MOVE = "move-1"


async def resized(db: Database, state: str = "done", **move: Any) -> None:
    """A server resized from the first host to the second, with one more core; not confirmed."""
    await add_consistent_server(db)
    values = {"host": "sim-002", "hypervisor_hostname": "sim-002", "flavor": flavor(2), "vcpus": 2}
    await change(db, "DELETE FROM allocations")
    await change(db, "UPDATE consumers SET type = 'INSTANCE'")
    await add_allocation(db, SERVER, 2, "VCPU", 2)
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


def test_unconfirmed_resize_has_two_allocations_and_two_guests(database: Opener) -> None:
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
        ("UPDATE servers SET vm_state = 'error'", [("resize undecided", SERVER)]),
        ("UPDATE servers SET vcpus = 3", [("quota counts wrongly", SERVER)]),
        ("DELETE FROM consumers WHERE type = 'MIGRATION'", [("resize cannot be reverted", SERVER)]),
        ("UPDATE allocations SET provider_id = 2 WHERE provider_id = 1", [("resize cannot be reverted", SERVER)]),
        ("UPDATE allocations SET used = 2 WHERE provider_id = 1", [("resize cannot be reverted", SERVER)]),
        ("UPDATE ports SET host_id = 'sim-001'", [("port on the wrong host", PORT)]),
    ],
)
def test_inconsistent_unconfirmed_resize(database: Opener, sql: str, found: list[tuple[str, str]]) -> None:
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
def test_wrong_guests_of_unconfirmed_resize(
    database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]
) -> None:
    assert findings(database, resized, *guests) == found


def test_running_move_is_skipped(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await resized(db, state="running")
        await insert(db, "standby_bindings", port_id=PORT, host="sim-001")

    assert findings(database, prepare, guest("sim-001"), guest("sim-002"), OLD_GUEST) == []


def test_allocation_and_standby_binding_without_move(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
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


def test_shelved_servers_have_no_findings(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await offloaded(db)
        await add_server(db, OTHER, vm_state=SHELVED, power_state=SHUTDOWN)
        await allocate(db, OTHER)

    assert findings(database, prepare, guest(identity=OTHER, power="shutdown")) == []


def test_running_guest_of_shelved_server(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await update_server(db, vm_state=SHELVED)

    assert findings(database, prepare, guest()) == [("guest power differs", SERVER)]


def test_offloaded_server_with_allocation_port_and_guest(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await offloaded(db)
        await allocate(db)
        await change(db, "UPDATE ports SET host_id = 'sim-001'")

    assert findings(database, prepare, guest(power="shutdown")) == [
        ("allocation on the wrong host", SERVER),
        ("port on the wrong host", PORT),
        ("guest on the wrong host", SERVER),
    ]


def test_offloaded_server_with_host(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await update_server(db, vm_state=SHELVED_OFFLOADED, power_state=SHUTDOWN)

    assert findings(database, prepare, guest(power="shutdown")) == [("offloaded server on a host", SERVER)]


# Deferred cleanup


async def add_cleanup(db: Database, kind: str = "clean_up_guest", **values: Any) -> None:
    """A deferred cleanup operation; an old one for the second host unless given."""
    slot, host = values.pop("slot", None), values.pop("host", "sim-002")
    params = {"guest_id": SERVER, "host": host, "slot": slot, "operation": MOVE, "round": 1, "epoch": 2}
    defaults = {"id": "cleanup-1", "kind": kind, "server_id": None, "host": host, "state": "queued"}
    text = orjson.dumps(params).decode()
    await add_operation(db, **{**defaults, "params": text, "created_at": 1.0, **values})


@pytest.mark.parametrize(
    "kind, slot, there",
    [
        ("clean_up_guest", None, [guest(), guest("sim-002")]),
        ("clean_up_slot", MOVE, [guest(), guest("sim-002", slot=MOVE)]),
        ("clean_up_slot", MOVE, [guest()]),
        ("restore_guest", None, [guest(), guest("sim-002", power="shutdown")]),
        ("restore_guest", MOVE, [guest(), guest("sim-002", slot=MOVE)]),
    ],
)
def test_deferred_cleanup_on_unreachable_host_is_no_finding(
    database: Opener, kind: str, slot: str | None, there: list[tuple[str, GuestState]]
) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        error = '{"type": "Failed", "message": "no answer from the host", "fault": "sim-002: no answer"}'
        await add_cleanup(db, kind, slot=slot, attempt=9, trouble=error)

    assert findings(database, prepare, *there) == []


def test_deferred_cleanup_excuses_only_its_own_guest(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await add_cleanup(db, slot=MOVE)

    assert findings(database, prepare, guest(), guest("sim-002"), guest(slot=MOVE)) == [
        ("guest on the wrong host", SERVER),
        ("guest kept without reason", SERVER),
    ]


def test_guest_with_deferred_restore_may_be_in_its_slot(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await update_server(db, host="sim-002", hypervisor_hostname="sim-002")
        await change(db, "UPDATE allocations SET provider_id = 2")
        await change(db, "UPDATE ports SET host_id = 'sim-002'")
        await add_cleanup(db, "restore_guest", slot=MOVE)

    assert findings(database, prepare, guest("sim-002", power="shutdown", slot=MOVE)) == []


@pytest.mark.parametrize("there", [[guest("sim-001")], []])
def test_guest_with_deferred_parking_may_be_outside_its_slot(
    database: Opener, there: list[tuple[str, GuestState]]
) -> None:
    async def prepare(db: Database) -> None:
        await resized(db)
        await add_cleanup(db, "park_guest", slot=MOVE, host="sim-001")

    assert findings(database, prepare, guest("sim-002"), *there) == []


@pytest.mark.parametrize("kind", ["clean_up_guest", "clean_up_slot", "restore_guest", "park_guest"])
def test_overdue_cleanup_on_host_that_is_up(database: Opener, kind: str) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await change(db, "UPDATE services SET last_seen_at = $1", clock.now())
        await add_cleanup(db, kind, created_at=clock.now())
        assert await examine(db) == [], "not overdue yet"
        await change(db, "UPDATE operations SET created_at = $1", clock.now() - 100)
        await change(db, "UPDATE services SET forced_down = TRUE")
        assert await examine(db) == [], "the host is not up"
        await change(db, "UPDATE services SET forced_down = FALSE")

    assert findings(database, prepare, guest()) == [("cleanup overdue", "cleanup-1")]


def test_cleanup_that_fails_on_reachable_host(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        error = '{"type": "Failed", "message": "the disk is full", "fault": null}'
        await add_cleanup(db, attempt=9, trouble=error)

    assert findings(database, prepare, guest()) == [("cleanup overdue", "cleanup-1")]
