"""What hosts report, and what follows from it: who is alive, and what servers are shown as."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kilonova import clock
from kilonova.compute import power_states
from kilonova.compute.operations.leftovers import ClearGuest, RestoreGuest
from kilonova.compute.servers import states
from kilonova.hosts import remote, reports
from kilonova.hosts.drivers.base import DriverError, NoAnswer
from kilonova.hosts.drivers.sim.facts import Body, facts
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.hosts.messages import Command, Describe, GuestState, HostFacts, Power, Report
from kilonova.hosts.remote import AllHosts, RemoteHosts
from kilonova.hosts.reports import Reporter, every
from kilonova.hosts.transport import HostUnreachable, describe
from kilonova.operations import begin
from tests.hosts.support import HeldDriver, guest, until
from tests.support import run
from tests.support.databases import opened
from tests.support.whole import Whole, whole

A = "sim-001"


# The host's side


class Telling(HeldDriver):
    """Tells of changes, and fails where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: Exception | None = None
        self.changed: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    async def guests(self) -> list[GuestState]:
        if self.trouble is not None:
            raise self.trouble
        return await super().guests()


def test_a_change_is_reported_at_once_and_everything_from_time_to_time() -> None:
    async def scenario() -> None:
        driver, sent = Telling(), list[Report]()

        async def send(report: Report) -> None:
            sent.append(report)

        async def reported(number: int) -> None:
            async with asyncio.timeout(60):
                while len(sent) < number:
                    await asyncio.sleep(0.005)

        running = asyncio.create_task(Reporter("a", driver, send, seconds=60).run())
        await reported(1)
        for number in range(3):
            await driver.spawn(guest(f"guest-{number}"))
            driver.changed()
        await reported(2)
        await asyncio.sleep(0.1)
        assert [len(report.guests) for report in sent] == [0, 3], "what changes together is told together"
        running.cancel()
        again = asyncio.create_task(Reporter("a", driver, send, seconds=0.02).run())
        await reported(5)
        again.cancel()
        assert len({report.boot for report in sent}) == 2, "each start has a name of its own"

    run(scenario())


@pytest.mark.parametrize("trouble", [NoAnswer("down"), DriverError("libvirt is away"), RuntimeError("a bug")])
def test_a_host_that_cannot_say_what_it_has_says_nothing_and_goes_on(trouble: Exception) -> None:
    async def scenario() -> None:
        driver, sent = Telling(), list[Report]()
        driver.trouble = trouble

        async def send(report: Report) -> None:
            sent.append(report)

        running = asyncio.create_task(Reporter("a", driver, send, seconds=0.01).run())
        await asyncio.sleep(0.05)
        assert sent == []
        driver.trouble = None
        await until(_filled(sent))
        running.cancel()

    run(scenario())


def _filled(found: list[Any]) -> Any:
    async def filled() -> bool:
        return bool(found)

    return filled


def test_reports_come_twice_as_often_as_heartbeats_but_not_seldom() -> None:
    assert (every(1), every(10), every(600)) == (0.5, 5, 5)


# The control plane's side


class Broker:
    """Answers for hosts that are in `bodies`."""

    def __init__(self, *hosts: str) -> None:
        self.bodies: dict[str, HostFacts] = {host: facts(host, Body()) for host in hosts}
        self.asked: list[str] = []
        self.given_up: list[str] = []
        self.hanging = ""

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        assert isinstance(command.verb, Describe)
        self.asked.append(host)
        if host == self.hanging:
            await asyncio.sleep(3600)
        if host not in self.bodies:
            raise HostUnreachable(host, "no agent is connected for it")
        return self.bodies[host]

    def restarted(self, host: str) -> None:
        self.given_up.append(host)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.time)


def test_a_host_is_known_from_its_first_report_and_silent_without_more(monkeypatch: pytest.MonkeyPatch) -> None:
    time, woken = Clock(monkeypatch), list[int]()
    hosts = RemoteHosts(Broker("a"), seconds=5)
    hosts.changed = lambda: woken.append(1)
    assert (list(hosts.names), hosts.silent(["a"])) == ([], ["a"])
    hosts.heard(Report(host="a", boot="1"))
    assert (list(hosts.names), hosts.silent(["a"]), len(woken)) == (["a"], [], 1)
    time.time += 10
    hosts.heard(Report(host="a", boot="1"))
    assert len(woken) == 1
    time.time += 16
    assert (list(hosts.names), hosts.silent(["a"])) == (["a"], ["a"])
    hosts.heard(Report(host="a", boot="1"))
    assert (hosts.silent(["a"]), len(woken)) == ([], 2), "it is back"


def test_a_host_that_reports_more_seldom_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    hosts = RemoteHosts(Broker("a"), seconds=5)
    hosts.heard(Report(host="a", boot="1", seconds=60))
    time.time += 100
    assert hosts.silent(["a"]) == []
    time.time += 100
    assert hosts.silent(["a"]) == ["a"]


def test_two_agents_of_one_name_are_found_out(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    time = Clock(monkeypatch)
    hosts = RemoteHosts(Broker("a"), seconds=5)
    for boot in ("1", "2", "1", "2", "1"):
        hosts.heard(Report(host="a", boot=boot))
        time.time += 1
    assert hosts.silent(["a"]) == ["a"]
    assert [record.levelname for record in caplog.records if "two agents" in record.message] == ["ERROR"]
    for _ in range(40):
        hosts.heard(Report(host="a", boot="1"))
        time.time += 1
    assert hosts.silent(["a"]) == [], "the other one was stopped"


def test_a_host_is_described_again_after_a_start_of_its_agent_and_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        time, broker = Clock(monkeypatch), Broker("a")
        hosts = RemoteHosts(broker, seconds=5)
        hosts.heard(Report(host="a", boot="1"))
        assert hosts.outdated(["a"]) == ["a"]
        await hosts.facts(["a"])
        assert hosts.outdated(["a"]) == []
        hosts.heard(Report(host="a", boot="2"))
        assert (hosts.outdated(["a"]), broker.given_up) == (["a"], ["a"])
        await hosts.facts(["a"])
        time.time += remote.DESCRIBE_EVERY + 1
        assert hosts.outdated(["a"]) == ["a"]
        broker.bodies["a"] = facts("b", Body())
        assert await hosts.facts(["a"]) == [], "one that says that it is another"
        del broker.bodies["a"]
        assert await hosts.facts(["a"]) == []
        assert hosts.outdated(["a"]) == ["a"]

    run(scenario())


def test_hosts_of_the_process_are_not_to_be_had_elsewhere(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            broker = Broker("far", A)
            hosts = AllHosts(c.hosts, RemoteHosts(broker, seconds=600))
            assert hosts.heard(Report(host="far", boot="1"))
            assert not hosts.heard(Report(host=A, boot="1"))
            assert list(hosts.names) == [A, "far"]
            assert [found.host for found in await hosts.facts([A, "far"])] == [A, "far"]
            assert broker.asked == ["far"]
            assert hosts.silent([A, "far", "never heard of"]) == ["never heard of"]
            with pytest.raises(HostUnreachable):
                await describe(hosts, "never heard of")

    run(scenario())


def test_a_heartbeat_registers_who_reports_and_what_has_changed(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            broker = Broker("a", "b")
            hosts = RemoteHosts(broker, seconds=600)
            heartbeat = Heartbeat(db, hosts, interval=60)
            hosts.changed = heartbeat.wake
            running = asyncio.create_task(heartbeat.run())

            async def memory(host: str) -> int | None:
                sql = (
                    "SELECT i.total FROM inventories i JOIN resource_providers p ON p.id = i.provider_id"
                    " WHERE p.name = $1 AND i.resource_class = 'MEMORY_MB'"
                )
                total: int | None = await db.fetch_value(sql, host)
                return total

            hosts.heard(Report(host="a", boot="1"))
            await until(lambda: _is(memory("a"), Body().size.memory_mb))
            assert await memory("b") is None
            broker.bodies["a"] = facts("a", Body(Size(memory_mb=7777)))
            hosts.heard(Report(host="a", boot="2"))
            hosts.heard(Report(host="b", boot="1"))
            await until(lambda: _is(memory("a"), 7777))
            await until(lambda: _is(memory("b"), Body().size.memory_mb))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario())


def test_a_host_that_hangs_keeps_no_other_from_being_alive(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            broker = Broker("a", "b")
            hosts = RemoteHosts(broker, seconds=600)
            heartbeat = Heartbeat(db, hosts, interval=0.02)
            hosts.changed = heartbeat.wake
            running = asyncio.create_task(heartbeat.run())

            async def beats(host: str) -> int:
                return await db.fetch_value("SELECT report_count FROM services WHERE host = $1", host) or 0

            async def hangs() -> bool:
                return "b" in broker.asked

            hosts.heard(Report(host="a", boot="1"))
            await until(lambda: _at_least(beats("a"), 2))
            broker.hanging = "b"
            hosts.heard(Report(host="b", boot="1"))
            await until(hangs)
            before = await beats("a")
            await until(lambda: _at_least(beats("a"), before + 8))
            assert await beats("b") == 0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario())


async def _at_least(asked: Any, number: int) -> bool:
    return bool(await asked >= number)


async def _is(asked: Any, expected: object) -> bool:
    return bool(await asked == expected)


# Power states


async def _report(c: Whole) -> Report:
    return Report(host=A, guests=[found for host, found in await c.everything() if host == A])


def set_power(c: Whole, server_id: str, power: Power) -> None:
    c.hosts._store.set_power(A, server_id, power)


async def row_of(c: Whole, server_id: str) -> tuple[str, int]:
    row = await c.services.db.fetch_one("SELECT vm_state, power_state FROM servers WHERE id = $1", server_id)
    assert row is not None
    return row["vm_state"], row["power_state"]


@pytest.mark.parametrize(
    ("before", "power", "after"),
    [
        ("active", "running", ("active", 1)),
        ("active", "shutdown", ("stopped", 4)),
        ("active", "crashed", ("stopped", 6)),
        ("active", "paused", ("paused", 3)),
        ("active", "suspended", ("suspended", 7)),
        ("stopped", "running", ("active", 1)),
        ("paused", "running", ("active", 1)),
        ("suspended", "shutdown", ("stopped", 4)),
        ("rescued", "shutdown", ("rescued", 4)),
        ("rescued", "running", ("rescued", 1)),
        ("resized", "crashed", ("resized", 6)),
        ("error", "running", ("error", 1)),
        ("shelved", "shutdown", ("shelved", 4)),
        ("building", "running", ("building", 1)),
    ],
)
def test_an_idle_server_is_shown_as_what_its_guest_is(
    sqlite_url: str, before: str, power: Power, after: tuple[str, int]
) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            async with c.services.db.transaction() as tx:
                await tx.execute("UPDATE servers SET vm_state = $2 WHERE id = $1", server_id, before)
            set_power(c, server_id, power)
            agreed = await power_states.observe(c.services, await _report(c))
            assert await row_of(c, server_id) == after
            assert agreed is (after == (before, 1))
            assert await power_states.observe(c.services, await _report(c)), "now they agree"

    run(scenario())


def test_what_a_report_says_is_asked_again_before_it_is_believed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            set_power(c, server_id, "shutdown")
            old = await _report(c)
            set_power(c, server_id, "running")
            assert not await power_states.observe(c.services, old)
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)

    run(scenario())


@pytest.mark.parametrize("meanwhile", ["begun", "ended", "moved"])
def test_what_happens_to_the_server_while_the_host_is_asked_counts_more(database_url: str, meanwhile: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            set_power(c, server_id, "shutdown")
            report = await _report(c)
            hosts = c.services.hosts

            class Meanwhile:
                async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
                    async with c.services.db.transaction() as tx:
                        if meanwhile == "begun":
                            far = {"guest_id": "x", "host": "far", "slot": None, "operation": "o"}
                            params = {**far, "round": 1, "epoch": 1, "running": True}
                            begun = await begin(tx, RestoreGuest, params=params, host="far", server_id=server_id)
                            # Or it might have ended before anybody looks.
                            await tx.execute("UPDATE operations SET run_at = 1e12 WHERE id = $1", begun)
                        elif meanwhile == "ended":
                            await tx.execute("UPDATE servers SET updated_at = $2 WHERE id = $1", server_id, clock.now())
                        else:
                            await tx.execute("UPDATE servers SET host = 'far' WHERE id = $1", server_id)
                    return await hosts.call(host, command, timeout=timeout)

            c.services.hosts = Meanwhile()
            await power_states.observe(c.services, report)
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)

    run(scenario())


def test_a_server_that_is_busy_or_whose_guest_is_to_be_put_back_is_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            set_power(c, server_id, "shutdown")
            rules = c.hosts._rules
            rules.add_failure(A, "power_on", "hang", None, "held")
            async with c.services.db.transaction() as tx:
                params = {"guest_id": server_id, "host": A, "slot": None, "running": True}
                fence = {"operation": server_id, "round": 1, "epoch": 1}
                await begin(tx, RestoreGuest, params={**params, **fence}, host=A)
            assert not await power_states.observe(c.services, await _report(c))
            assert await row_of(c, server_id) == (states.ACTIVE, states.RUNNING)
            rules.clear()

    run(scenario())


def test_guests_that_nobody_knows_are_counted_unless_they_are_to_be_cleared(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            known = (await c.active())["id"]
            stranger, left = guest(), guest()
            c.hosts._store.add_guest(A, stranger, "disk")
            c.hosts._store.add_guest(A, left, "disk")
            c.hosts._store.keep(A, guest(), "a slot")
            c.hosts._rules.add_failure(A, "destroy", "error", None, "stuck")
            async with c.services.db.transaction() as tx:
                params = {"guest_id": left.id, "host": A, "slot": None, "operation": "o", "round": 1, "epoch": 1}
                await begin(tx, ClearGuest, params=params, host=A)
            await power_states.observe(c.services, await _report(c))
            assert power_states.unknown(c.services) == {A: 1}
            c.hosts._store.remove_guest(A, stranger.id)
            await power_states.observe(c.services, await _report(c))
            assert power_states.unknown(c.services) == {A: 0}
            assert known

    run(scenario())


def test_reports_that_come_faster_than_they_are_compared_are_not_queued(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            seen, gate = list[Report](), asyncio.Event()

            async def observe(services: Any, report: Report) -> bool:
                seen.append(report)
                await gate.wait()
                return True

            async def idle() -> bool:
                return not reports._COMPARERS[c.services]._tasks

            monkeypatch.setattr(power_states, "observe", observe)
            sent = [Report(host=A, boot=str(number)) for number in range(5)]
            reports.heard(c.services, sent[0])
            await until(_filled(seen))
            for report in sent[1:]:
                reports.heard(c.services, report)
                await asyncio.sleep(0.01)
            gate.set()
            await until(idle)
            assert seen == [sent[0], sent[-1]]
            reports.heard(c.services, sent[-1])
            await asyncio.sleep(0.05)
            assert len(seen) == 2, "what agreed and is the same again is not compared again at once"

    run(scenario())
