"""The agent executes each command once, repeats its reply, and refuses stale epochs."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from kilonova.hosts import messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.display_sessions import DisplaySessions
from kilonova.hosts.drivers.base import Driver, DriverError
from kilonova.hosts.journal import Journal
from kilonova.hosts.messages import Command, MigrationState, NetworkPlan, Nic, Reply, Transfer
from kilonova.hosts.messages.verbs import (
    VERBS,
    CloseDisplay,
    Describe,
    Destroy,
    ForceCompleteMigration,
    GetMigration,
    MigrateLive,
    OpenDisplay,
    PowerOff,
    PowerOn,
    ReadDisplay,
    Snapshot,
    StopMigration,
    WriteDisplay,
)
from tests.hosts.support import HOST, HeldDriver, command, disk, guest, spawn
from tests.support import run

# tests/hosts/test_display_sessions.py sends them.
SESSION_VERBS = (OpenDisplay, ReadDisplay, WriteDisplay, CloseDisplay)

Send = Callable[[Command], Coroutine[Any, Any, Reply]]
JOURNALS: list[Journal] = []


@pytest.fixture
def scene(tmp_path: Path) -> Callable[[Callable[[HeldDriver, Send], Awaitable[None]]], None]:
    """Run a scenario with a held driver and a function that sends commands to its agent."""

    def play(scenario: Callable[[HeldDriver, Send], Awaitable[None]]) -> None:
        async def main() -> None:
            driver, journal = HeldDriver(), Journal(tmp_path / "agents.db")
            JOURNALS[:] = [journal]
            agent = Agent(HOST, driver, journal)

            async def send(sent: Command) -> Reply:
                return messages.decode_reply(await agent.handle(messages.encode(sent)))

            await scenario(driver, send)
            journal.close()

        run(main())

    return play


async def yield_to_tasks() -> None:
    """Let other tasks run until they wait for something else than the journal."""
    was_committing = True
    while was_committing:
        was_committing = False
        for _ in range(5):
            was_committing |= any(journal.is_committing for journal in JOURNALS)
            await asyncio.sleep(0)
        if was_committing:
            await asyncio.sleep(0.001)


def kind(reply: Reply) -> str | None:
    return None if reply.error is None else reply.error.kind


def test_repeated_command_gets_same_reply_and_is_not_executed_again(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        first = await send(spawn())
        assert first.ok
        assert await send(spawn()) == first
        assert await send(spawn(epoch=5)) == first, "also to the worker that takes over"
        assert driver.calls == ["spawn"]

    scene(scenario)


@pytest.mark.parametrize(
    "again",
    [
        spawn(step="another step"),
        spawn(round=1),
        spawn(operation="op-2"),
        spawn("guest-2"),
        command(PowerOn(guest_id="guest-1")),
    ],
    ids=["step", "round", "operation", "guest", "verb"],
)
def test_different_command_is_executed(scene: Any, again: Command) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        await send(spawn())
        assert (await send(again)).ok
        assert len(driver.calls) == 2

    scene(scenario)


def test_repeated_command_brings_a_new_ticket_to_the_work_under_way(scene: Any) -> None:
    """A snapshot may be converted for longer than its first ticket is valid."""

    def snapshot(ticket: str) -> Command:
        return command(Snapshot(guest_id="guest-1", data=Transfer(url="/u", ticket=ticket)))

    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("snapshot")
        used: list[Transfer] = []
        original = driver.snapshot

        async def record(guest_id: str, data: Transfer) -> None:
            used.append(data)
            await original(guest_id, data)

        driver.snapshot = record  # type: ignore[method-assign]
        first = asyncio.create_task(send(snapshot("first")))
        await yield_to_tasks()
        second = asyncio.create_task(send(snapshot("second")))
        await yield_to_tasks()
        assert [data.ticket for data in used] == ["second"]
        gate.set()
        assert (await first).ok
        assert (await second).ok

    scene(scenario)


def test_failed_command_is_executed_again(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.errors.append(DriverError("no disk", passing=True))
        reply = await send(spawn())
        assert reply.error == messages.HostError(kind="driver", message="no disk", passing=True)
        assert (await send(spawn())).ok
        assert driver.calls == ["spawn", "spawn"]

    scene(scenario)


def test_stale_epoch_is_refused_even_for_finished_command(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        await send(spawn(epoch=2))
        late = await send(command(Destroy(guest_id="guest-1"), epoch=1))
        assert kind(late) == "stale epoch"
        assert kind(await send(spawn(epoch=1))) == "stale epoch"
        assert "guest-1" in driver.states
        assert (await send(spawn(operation="op-2", epoch=1))).ok, "epochs are per operation"

    scene(scenario)


def test_failed_command_raises_epoch(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.errors.append(DriverError("no"))
        await send(spawn(epoch=2))
        assert kind(await send(spawn(epoch=1))) == "stale epoch"
        assert driver.states == {}

    scene(scenario)


def test_concurrent_repeat_runs_once(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        both = [asyncio.create_task(send(spawn())) for _ in range(2)]
        await yield_to_tasks()
        assert driver.calls == ["spawn"]
        gate.set()
        first, second = await asyncio.gather(*both)
        assert first.ok
        assert first == second
        assert driver.calls == ["spawn"]

    scene(scenario)


def test_new_worker_joins_running_command(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        old = asyncio.create_task(send(spawn(epoch=1)))
        await yield_to_tasks()
        new = asyncio.create_task(send(spawn(epoch=2)))
        await yield_to_tasks()
        assert kind(await send(spawn(epoch=1))) == "stale epoch"
        gate.set()
        assert (await new).ok
        assert (await old).ok
        assert driver.calls == ["spawn"]

    scene(scenario)


def test_change_waits_for_earlier_change_of_same_guest(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        off = asyncio.create_task(send(command(PowerOff(guest_id="guest-1"), step="stop", epoch=2)))
        await yield_to_tasks()
        del driver.gates["spawn"]
        assert (await send(spawn("guest-2", operation="op-2"))).ok, "other guests do not wait"
        assert driver.calls == ["spawn", "spawn"]
        gate.set()
        assert (await off).ok
        assert (await first).ok
        assert driver.states["guest-1"].power == "shutdown"

    scene(scenario)


def test_waiting_command_that_becomes_stale_is_not_executed(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        waiting = asyncio.create_task(send(command(PowerOff(guest_id="guest-1"), step="stop")))
        await yield_to_tasks()
        newer = asyncio.create_task(send(command(PowerOn(guest_id="guest-1"), step="start", epoch=2)))
        await yield_to_tasks()
        gate.set()
        assert kind(await waiting) == "stale epoch"
        assert (await newer).ok
        assert (await first).ok
        assert driver.calls == ["spawn", "power_on"]

    scene(scenario)


def test_waiting_command_joined_by_new_worker_is_not_stale(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        stops = []
        for epoch in (1, 2):
            stop = command(PowerOff(guest_id="guest-1"), step="stop", epoch=epoch)
            stops.append(asyncio.create_task(send(stop)))
            await yield_to_tasks()
        gate.set()
        assert [reply.ok for reply in await asyncio.gather(first, *stops)] == [True, True, True]
        assert driver.calls == ["spawn", "power_off"]

    scene(scenario)


def test_destroy_interrupts_hanging_spawn_and_waits_for_its_end(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.hold("spawn")
        driver.unwinding = 0.02
        spawning = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        assert (await send(command(Destroy(guest_id="guest-1"), epoch=2))).ok
        assert kind(await spawning) == "interrupted"
        assert driver.calls == ["spawn", "destroy"]
        assert driver.states == {}

    scene(scenario)


def test_spawn_interrupted_before_start_never_runs(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        replies = await asyncio.gather(send(spawn()), send(command(Destroy(guest_id="guest-1"))))
        assert [kind(reply) for reply in replies] == ["interrupted", None]
        assert driver.states == {}
        assert "spawn" not in driver.calls

    scene(scenario)


def test_cancelled_caller_does_not_stop_the_work(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        sending = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        gate.set()
        await yield_to_tasks()
        assert "guest-1" in driver.states
        assert (await send(spawn())).ok
        assert driver.calls == ["spawn"]

    scene(scenario)


@pytest.mark.parametrize(
    "refused, expect",
    [
        (spawn(host="elsewhere"), "wrong host"),
        (spawn(operation=""), "malformed"),
        (spawn(step=""), "malformed"),
    ],
)
def test_invalid_command_is_refused_without_effect(scene: Any, refused: Command, expect: str) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        assert kind(await send(refused)) == expect
        assert driver.calls == []

    scene(scenario)


def test_malformed_data_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = Agent(HOST, HeldDriver(), Journal(tmp_path / "agents.db"))
        assert kind(messages.decode_reply(await agent.handle(b"rubbish"))) == "malformed"

    run(scenario())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "/secret/path"), apsw.FullError("full")])
def test_full_storage_of_host_is_a_passing_failure(scene: Any, error: Exception) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.errors.append(error)
        refused = (await send(spawn())).error
        assert refused is not None
        assert (refused.message, refused.passing) == (f"the storage of host {HOST} is full", True)
        assert (await send(spawn())).ok

    scene(scenario)


def test_unexpected_error_hides_internals_from_caller(scene: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        with caplog.at_level(logging.ERROR):
            reply = await send(Command(host=HOST, verb=Describe()))
        assert kind(reply) == "internal"
        assert reply.error is not None
        assert "hunter2" not in reply.error.message
        assert "Describe failed unexpectedly" in caplog.text

    scene(scenario)


# Live migrations

MIGRATE = MigrateLive(guest_id="guest-1", destination="sim-002", slot="op-1")
GET_PROGRESS = Command(host=HOST, verb=GetMigration(guest_id="guest-1"))


def test_stop_migration_interrupts_migration(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.hold("migrate_live")
        driver.unwinding = 0.02
        await send(spawn())
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate")))
        await yield_to_tasks()
        assert (await send(command(StopMigration(guest_id="guest-1"), step="undo"))).ok
        reply = await migrating
        assert reply.error == messages.HostError(kind="interrupted", message="the migration was stopped")
        assert driver.calls == ["spawn", "migrate_live", "stop_migration"]
        assert "guest-1" in driver.states

    scene(scenario)


def test_stop_migration_without_migration_interrupts_nothing(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        spawning = asyncio.create_task(send(spawn()))
        await yield_to_tasks()
        stopping = asyncio.create_task(send(command(StopMigration(guest_id="guest-1"), step="undo")))
        await yield_to_tasks()
        gate.set()
        assert (await spawning).ok
        assert (await stopping).ok
        assert driver.calls == ["spawn", "stop_migration"]

    scene(scenario)


def test_repeated_stop_migration_stops_next_migration(scene: Any) -> None:
    """The first stop found no migration: the command to migrate arrived later."""

    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.hold("migrate_live")
        stop = command(StopMigration(guest_id="guest-1"), step="undo")
        assert (await send(stop)).ok
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate")))
        await yield_to_tasks()
        assert (await send(stop)).ok
        assert kind(await migrating) == "interrupted"

    scene(scenario)


def test_stale_stop_migration_stops_nothing(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("migrate_live")
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate", epoch=2)))
        await yield_to_tasks()
        assert kind(await send(command(StopMigration(guest_id="guest-1"), step="undo", epoch=1))) == "stale epoch"
        gate.set()
        assert (await migrating).ok

    scene(scenario)


def test_hurry_migration_runs_beside_migration_and_waiting_commands(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.hold("migrate_live")
        await send(spawn())
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate")))
        await yield_to_tasks()
        waiting = asyncio.create_task(send(command(PowerOff(guest_id="guest-1"), step="stop")))
        await yield_to_tasks()
        assert (await send(command(ForceCompleteMigration(guest_id="guest-1"), operation="op-2"))).ok
        assert (await migrating).ok
        assert (await waiting).ok
        assert driver.calls == ["spawn", "migrate_live", "hurry_migration", "power_off"]

    scene(scenario)


def test_destroy_interrupts_migration(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.hold("migrate_live")
        await send(spawn())
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate")))
        await yield_to_tasks()
        assert (await send(command(Destroy(guest_id="guest-1"), operation="op-2"))).ok
        reply = await migrating
        assert reply.error == messages.HostError(kind="interrupted", message="the guest is being destroyed")
        assert driver.states == {}

    scene(scenario)


def test_migration_progress_is_readable_and_not_journalled(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("migrate_live")
        assert messages.decode_answer(GET_PROGRESS.verb, await send(GET_PROGRESS)) is None
        migrating = asyncio.create_task(send(command(MIGRATE, step="migrate")))
        await yield_to_tasks()
        assert messages.decode_answer(GET_PROGRESS.verb, await send(GET_PROGRESS)) == MigrationState(memory_total=512)
        gate.set()
        assert (await migrating).ok
        assert messages.decode_answer(GET_PROGRESS.verb, await send(GET_PROGRESS)) is None

    scene(scenario)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_verb_has_the_parameters_of_the_drivers_method(verb: str) -> None:
    target = DisplaySessions if issubclass(VERBS[verb], SESSION_VERBS) else Driver
    parameters = inspect.signature(getattr(target, VERBS[verb].method or verb)).parameters
    assert {"self", *VERBS[verb].__struct_fields__} == set(parameters)


@pytest.mark.parametrize("verb", sorted(name for name in VERBS if not issubclass(VERBS[name], SESSION_VERBS)))
def test_every_verb_calls_its_driver_method(scene: Any, verb: str) -> None:
    facts = {
        "guest": guest("guest-1"),
        "guest_id": "guest-1",
        "slot": "op-1",
        "source": "sim-002",
        "destination": "sim-002",
        "start": True,
        "data": Transfer(url="/v2/images/1/file", ticket="secret"),
        "disk": disk(),
        "volume_id": "volume-1",
        "size_gb": 2,
        "nic": Nic(port_id="port-1", mac="fa:16:3e:00:00:01"),
        "port_id": "port-1",
        "shares": [],
        "name": "web-1",
        "metadata": {},
        "password": "secret",
        "kind": "novnc",
        "plan": NetworkPlan(read_at=1.0),
    }
    kind_of_verb: Any = VERBS[verb]
    built = kind_of_verb(**{name: facts[name] for name in facts if name in kind_of_verb.__struct_fields__})

    async def scenario(driver: HeldDriver, send: Send) -> None:
        driver.gates["migrate_live"] = asyncio.Event()
        driver.gates["migrate_live"].set()
        await send(spawn())
        driver.calls.clear()
        reply = await send(command(built, step="another"))
        if verb != "describe":  # HeldDriver fails there
            assert reply.ok, reply.error
        assert driver.calls == ([verb] if built.changes else [])

    scene(scenario)


# Incarnations of the database


def test_answer_of_a_replaced_database_is_not_repeated(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        await send(spawn(epoch=5, incarnation=1))
        assert (await send(spawn(epoch=5, incarnation=2))).ok
        assert driver.calls == ["spawn", "spawn"]

    scene(scenario)


def test_epoch_of_a_replaced_database_does_not_refuse_commands_of_the_restored_one(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        await send(spawn(epoch=9, incarnation=1))
        assert (await send(spawn(epoch=2, incarnation=2))).ok
        assert kind(await send(spawn(epoch=1, incarnation=2))) == "stale epoch"

    scene(scenario)


def test_commands_of_a_replaced_database_are_refused(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        await send(spawn(incarnation=2))
        late = await send(command(Destroy(guest_id="guest-1"), operation="op-2", epoch=9, incarnation=1))
        assert kind(late) == "stale epoch"
        assert "guest-1" in driver.states

    scene(scenario)


def test_command_of_a_restored_database_waits_for_work_of_the_replaced_one(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        replaced = asyncio.create_task(send(spawn(incarnation=1)))
        await yield_to_tasks()
        restored = asyncio.create_task(send(spawn(incarnation=2)))
        await yield_to_tasks()
        assert driver.calls == ["spawn"]
        gate.set()
        assert (await replaced).ok
        assert (await restored).ok
        assert driver.calls == ["spawn", "spawn"], "the second command does not join the first"

    scene(scenario)


def test_queued_work_of_a_replaced_database_is_dropped(scene: Any) -> None:
    async def scenario(driver: HeldDriver, send: Send) -> None:
        gate = driver.hold("spawn")
        running = asyncio.create_task(send(spawn(incarnation=1)))
        await yield_to_tasks()
        queued = asyncio.create_task(send(command(PowerOff(guest_id="guest-1"), operation="op-2", incarnation=1)))
        await yield_to_tasks()
        restored = asyncio.create_task(send(command(PowerOn(guest_id="guest-1"), operation="op-3", incarnation=2)))
        await yield_to_tasks()
        gate.set()
        assert kind(await queued) == "stale epoch"
        assert (await restored).ok
        assert (await running).ok
        assert driver.calls == ["spawn", "power_on"]

    scene(scenario)
