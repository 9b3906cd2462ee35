"""What the doctor finds of servers that move, were moved or are shelved, and of what is left to silent hosts."""

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
    add_hosts,
    add_operation,
    add_port,
    add_server,
    allocate,
    change,
    findings,
    flavor,
    guest,
    hold,
    insert,
    sound,
)

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
        ("clear slot", MOVE, [guest(), guest("sim-002", slot=MOVE)]),
        ("clear slot", MOVE, [guest()]),
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


@pytest.mark.parametrize("kind", ["clear guest", "clear slot", "restore guest", "park guest again"])
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
