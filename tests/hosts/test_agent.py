"""The agent's promises: once, the same again, never by a worker that lost its lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts import messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.journal import Journal
from kilonova.hosts.messages import (
    Command,
    Describe,
    Destroy,
    HurryMigration,
    LookMigration,
    MigrateLive,
    MigrationState,
    NetworkPlan,
    Nic,
    PowerOff,
    PowerOn,
    Reply,
    StopMigration,
    Transfer,
)
from tests.hosts.support import HOST, HeldDriver, command, disk, guest, spawn
from tests.support import run

Ask = Callable[[Command], Coroutine[Any, Any, Reply]]


@pytest.fixture
def scene(tmp_path: Path) -> Callable[[Callable[[HeldDriver, Ask], Awaitable[None]]], None]:
    """Runs a scenario with a held driver and a way to ask its agent."""

    def play(scenario: Callable[[HeldDriver, Ask], Awaitable[None]]) -> None:
        async def main() -> None:
            driver, journal = HeldDriver(), Journal(tmp_path / "agents.db")
            agent = Agent(HOST, driver, journal)

            async def ask(asked: Command) -> Reply:
                return messages.decode_reply(await agent.handle(messages.encode(asked)))

            await scenario(driver, ask)
            journal.close()

        run(main())

    return play


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def kind(reply: Reply) -> str | None:
    return None if reply.error is None else reply.error.kind


def test_a_repeat_is_answered_the_same_and_not_done_again(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        first = await ask(spawn())
        assert first.ok
        assert await ask(spawn()) == first
        assert await ask(spawn(epoch=5)) == first, "nor by the worker that takes over"
        assert driver.asked == ["spawn"]

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
def test_another_command_is_done(scene: Any, again: Command) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        await ask(spawn())
        assert (await ask(again)).ok
        assert len(driver.asked) == 2

    scene(scenario)


def test_a_failure_is_not_remembered(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.errors.append(DriverError("no disk", passing=True))
        reply = await ask(spawn())
        assert reply.error == messages.HostError(kind="driver", message="no disk", passing=True)
        assert (await ask(spawn())).ok
        assert driver.asked == ["spawn", "spawn"]

    scene(scenario)


def test_a_stale_epoch_is_refused_even_for_what_is_finished(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        await ask(spawn(epoch=2))
        late = await ask(command(Destroy(guest_id="guest-1"), epoch=1))
        assert kind(late) == "stale epoch"
        assert kind(await ask(spawn(epoch=1))) == "stale epoch"
        assert "guest-1" in driver.states
        assert (await ask(spawn(operation="op-2", epoch=1))).ok, "epochs are an operation's own"

    scene(scenario)


def test_a_failed_command_of_a_higher_epoch_also_makes_lower_ones_stale(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.errors.append(DriverError("no"))
        await ask(spawn(epoch=2))
        assert kind(await ask(spawn(epoch=1))) == "stale epoch"
        assert driver.states == {}

    scene(scenario)


def test_the_same_command_twice_at_once_runs_once(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        both = [asyncio.create_task(ask(spawn())) for _ in range(2)]
        await settle()
        assert driver.asked == ["spawn"]
        gate.set()
        first, second = await asyncio.gather(*both)
        assert first.ok
        assert first == second
        assert driver.asked == ["spawn"]

    scene(scenario)


def test_the_new_worker_joins_what_the_old_one_started(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        old = asyncio.create_task(ask(spawn(epoch=1)))
        await settle()
        new = asyncio.create_task(ask(spawn(epoch=2)))
        await settle()
        assert kind(await ask(spawn(epoch=1))) == "stale epoch"
        gate.set()
        assert (await new).ok
        assert (await old).ok
        assert driver.asked == ["spawn"]

    scene(scenario)


def test_a_change_waits_for_the_one_before_on_the_same_guest(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(ask(spawn()))
        await settle()
        off = asyncio.create_task(ask(command(PowerOff(guest_id="guest-1"), step="stop", epoch=2)))
        await settle()
        del driver.gates["spawn"]
        assert (await ask(spawn("guest-2", operation="op-2"))).ok, "other guests need not wait"
        assert driver.asked == ["spawn", "spawn"]
        gate.set()
        assert (await off).ok
        assert (await first).ok
        assert driver.states["guest-1"].power == "shutdown"

    scene(scenario)


def test_what_became_stale_while_it_waited_is_not_done(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(ask(spawn()))
        await settle()
        waiting = asyncio.create_task(ask(command(PowerOff(guest_id="guest-1"), step="stop")))
        await settle()
        newer = asyncio.create_task(ask(command(PowerOn(guest_id="guest-1"), step="start", epoch=2)))
        await settle()
        gate.set()
        assert kind(await waiting) == "stale epoch"
        assert (await newer).ok
        assert (await first).ok
        assert driver.asked == ["spawn", "power_on"]

    scene(scenario)


def test_a_waiting_command_joined_by_a_new_worker_is_not_stale(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        first = asyncio.create_task(ask(spawn()))
        await settle()
        stops = []
        for epoch in (1, 2):
            stop = command(PowerOff(guest_id="guest-1"), step="stop", epoch=epoch)
            stops.append(asyncio.create_task(ask(stop)))
            await settle()
        gate.set()
        assert [reply.ok for reply in await asyncio.gather(first, *stops)] == [True, True, True]
        assert driver.asked == ["spawn", "power_off"]

    scene(scenario)


def test_a_destroy_interrupts_a_spawn_that_hangs_and_starts_when_it_has_ended(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.hold("spawn")
        driver.unwinding = 0.02
        spawning = asyncio.create_task(ask(spawn()))
        await settle()
        assert (await ask(command(Destroy(guest_id="guest-1"), epoch=2))).ok
        assert kind(await spawning) == "interrupted"
        assert driver.asked == ["spawn", "destroy"]
        assert driver.states == {}

    scene(scenario)


def test_a_spawn_interrupted_before_it_began_is_never_begun(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        replies = await asyncio.gather(ask(spawn()), ask(command(Destroy(guest_id="guest-1"))))
        assert [kind(reply) for reply in replies] == ["interrupted", None]
        assert driver.states == {}
        assert "spawn" not in driver.asked

    scene(scenario)


def test_a_caller_that_gives_up_does_not_stop_the_work(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        asking = asyncio.create_task(ask(spawn()))
        await settle()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        gate.set()
        await settle()
        assert "guest-1" in driver.states
        assert (await ask(spawn())).ok
        assert driver.asked == ["spawn"]

    scene(scenario)


@pytest.mark.parametrize(
    "refused, expect",
    [
        (spawn(host="elsewhere"), "wrong host"),
        (spawn(operation=""), "malformed"),
        (spawn(step=""), "malformed"),
    ],
)
def test_refusals_change_nothing(scene: Any, refused: Command, expect: str) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        assert kind(await ask(refused)) == expect
        assert driver.asked == []

    scene(scenario)


def test_rubbish_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        agent = Agent(HOST, HeldDriver(), Journal(tmp_path / "agents.db"))
        assert kind(messages.decode_reply(await agent.handle(b"rubbish"))) == "malformed"

    run(scenario())


def test_an_unexpected_error_tells_the_caller_no_internals(scene: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        with caplog.at_level(logging.ERROR):
            reply = await ask(Command(host=HOST, verb=Describe()))
        assert kind(reply) == "internal"
        assert reply.error is not None
        assert "hunter2" not in reply.error.message
        assert "Describe failed unexpectedly" in caplog.text

    scene(scenario)


# Live migrations: stopped, hurried and watched while they run

MIGRATE = MigrateLive(guest_id="guest-1", destination="sim-002", slot="op-1")
LOOK = Command(host=HOST, verb=LookMigration(guest_id="guest-1"))


def test_a_stop_interrupts_a_migration_and_then_succeeds(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.hold("migrate_live")
        driver.unwinding = 0.02
        await ask(spawn())
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate")))
        await settle()
        assert (await ask(command(StopMigration(guest_id="guest-1"), step="undo"))).ok
        reply = await migrating
        assert reply.error == messages.HostError(kind="interrupted", message="the migration was stopped")
        assert driver.asked == ["spawn", "migrate_live", "stop_migration"]
        assert "guest-1" in driver.states

    scene(scenario)


def test_a_stop_succeeds_without_a_migration_and_interrupts_nothing_else(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("spawn")
        spawning = asyncio.create_task(ask(spawn()))
        await settle()
        stopping = asyncio.create_task(ask(command(StopMigration(guest_id="guest-1"), step="undo")))
        await settle()
        gate.set()
        assert (await spawning).ok
        assert (await stopping).ok
        assert driver.asked == ["spawn", "stop_migration"]

    scene(scenario)


def test_the_same_stop_again_stops_the_next_migration(scene: Any) -> None:
    """A stop found nothing under way, and the command to migrate came after it."""

    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.hold("migrate_live")
        stop = command(StopMigration(guest_id="guest-1"), step="undo")
        assert (await ask(stop)).ok
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate")))
        await settle()
        assert (await ask(stop)).ok
        assert kind(await migrating) == "interrupted"

    scene(scenario)


def test_a_stop_of_a_stale_epoch_stops_nothing(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("migrate_live")
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate", epoch=2)))
        await settle()
        assert kind(await ask(command(StopMigration(guest_id="guest-1"), step="undo", epoch=1))) == "stale epoch"
        gate.set()
        assert (await migrating).ok

    scene(scenario)


def test_a_hurry_runs_beside_the_migration_and_what_waits_for_it(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.hold("migrate_live")
        await ask(spawn())
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate")))
        await settle()
        waiting = asyncio.create_task(ask(command(PowerOff(guest_id="guest-1"), step="stop")))
        await settle()
        assert (await ask(command(HurryMigration(guest_id="guest-1"), operation="op-2"))).ok
        assert (await migrating).ok
        assert (await waiting).ok
        assert driver.asked == ["spawn", "migrate_live", "hurry_migration", "power_off"]

    scene(scenario)


def test_a_destroy_interrupts_a_migration_too(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.hold("migrate_live")
        await ask(spawn())
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate")))
        await settle()
        assert (await ask(command(Destroy(guest_id="guest-1"), operation="op-2"))).ok
        reply = await migrating
        assert reply.error == messages.HostError(kind="interrupted", message="the guest is being destroyed")
        assert driver.states == {}

    scene(scenario)


def test_a_migration_is_watched_while_it_runs_and_looks_are_not_remembered(scene: Any) -> None:
    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        gate = driver.hold("migrate_live")
        assert messages.decode_answer(LOOK.verb, await ask(LOOK)) is None
        migrating = asyncio.create_task(ask(command(MIGRATE, step="migrate")))
        await settle()
        assert messages.decode_answer(LOOK.verb, await ask(LOOK)) == MigrationState(memory_total=512)
        gate.set()
        assert (await migrating).ok
        assert messages.decode_answer(LOOK.verb, await ask(LOOK)) is None

    scene(scenario)


@pytest.mark.parametrize("verb", sorted(messages.VERBS))
def test_every_verb_reaches_its_method_of_the_driver(scene: Any, verb: str) -> None:
    facts = {
        "guest": guest("guest-1"),
        "guest_id": "guest-1",
        "slot": "op-1",
        "source": "sim-002",
        "destination": "sim-002",
        "start": True,
        "data": Transfer(url="/v2/images/1/file", token="secret"),
        "disk": disk(),
        "volume_id": "volume-1",
        "size_gb": 2,
        "nic": Nic(port_id="port-1", mac="fa:16:3e:00:00:01"),
        "port_id": "port-1",
        "name": "web-1",
        "metadata": {},
        "password": "secret",
        "kind": "novnc",
        "plan": NetworkPlan(read_at=1.0),
    }
    kind_of_verb: Any = messages.VERBS[verb]
    built = kind_of_verb(**{name: facts[name] for name in facts if name in kind_of_verb.__struct_fields__})

    async def scenario(driver: HeldDriver, ask: Ask) -> None:
        driver.gates["migrate_live"] = asyncio.Event()
        driver.gates["migrate_live"].set()
        await ask(spawn())
        driver.asked.clear()
        reply = await ask(command(built, step="another"))
        if verb != "describe":  # which this driver cannot
            assert reply.ok, reply.error
        assert driver.asked == ([verb] if built.changes else [])

    scene(scenario)
