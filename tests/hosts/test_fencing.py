"""A host that was cut off counts as up only when nothing is left on it of servers that are elsewhere or gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.compute.operations.leftovers import ClearGuest, ClearSlot
from kilonova.hosts import embedded
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore
from kilonova.hosts.heartbeat import Heartbeat, is_up
from kilonova.operations import begin
from tests.compute.operations.test_silence import all_done
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.process import Client, Cloud
from tests.support.whole import PATIENCE, Whole, whole

QUICK: dict[str, Any] = {"operations__host_seconds": 0.1}
A, B = "sim-001", "sim-002"


async def up(c: Whole, host: str) -> bool:
    row = await c.db.fetch_one("SELECT * FROM services WHERE host = $1 AND program = 'nova-compute'", host)
    assert row is not None
    return is_up(row, clock.now())


async def age(c: Whole) -> None:
    """Nobody was heard of for long."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 1")


async def leave_a_guest(c: Whole) -> str:
    """A server on the first host is deleted while the host is cut off; the host stays so. The guest's id."""
    server = await c.active(availability_zone=f":{A}", as_="admin")
    with rules(c) as sim:
        sim.add_failure(A, "*", "unreachable", None, None)
    assert (await c.delete(f"/servers/{server['id']}", as_="admin")).status == 204
    await c.gone(server["id"])
    await age(c)
    return str(server["id"])


async def calm(c: Whole) -> None:
    """Wait until the clearing has been tried in vain, and let it pause for long."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with c.db.transaction() as tx:
                paused = await tx.execute(
                    "UPDATE operations SET run_at = $1 WHERE kind = 'clear guest' AND finished_at IS NULL"
                    " AND lease_until = 0 AND attempt > 0",
                    clock.now() + 3600,
                )
            if paused:
                return
            await asyncio.sleep(0.01)


def test_the_guest_is_gone_before_the_host_is_up(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            guest = await leave_a_guest(c)
            assert await c.heartbeat.beat() == 3, "the other host, and conductor and scheduler"
            await calm(c)
            with rules(c) as sim:
                sim.clear()
                sim.add_failure(A, "destroy", "error", None, "stuck")
                for _ in range(3):
                    assert await c.heartbeat.beat() == 3
                assert await Heartbeat(c.db, c.hosts, process_host="control").beat() == 3, "nor by a new process"
                assert not await up(c, A)
                assert await up(c, B)
                assert guest in await c.guests()
                sim.clear()
            async with asyncio.timeout(PATIENCE):
                while not await up(c, A):
                    await c.heartbeat.beat()
                    await asyncio.sleep(0.02)
            assert await c.guests() == {}

    run(scenario())


def test_what_pauses_is_woken_and_the_next_beat_comes_soon(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            await leave_a_guest(c)
            await calm(c)
            with rules(c) as sim:
                sim.clear()
            heartbeat = Heartbeat(c.db, c.hosts, process_host="control", interval=600)
            await heartbeat.beat()
            beating = asyncio.create_task(heartbeat.run())
            async with asyncio.timeout(PATIENCE):
                while not await up(c, A):
                    await asyncio.sleep(0.02)
            beating.cancel()
            assert await c.guests() == {}

    run(scenario())


def test_a_host_that_hangs_keeps_no_other_down(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_DESCRIBE_TIMEOUT", 300.0)

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2, **QUICK) as c:
            heartbeat = Heartbeat(c.db, c.hosts)
            await heartbeat.beat()
            await leave_a_guest(c)
            with rules(c) as sim:
                sim.clear(A)
                sim.add_failure(A, "*", "hang", None, None)
            beat = asyncio.create_task(heartbeat.beat())
            async with asyncio.timeout(PATIENCE):
                while not await up(c, B):
                    await asyncio.sleep(0.01)
            assert not beat.done(), "it still asks the other"
            assert not await up(c, A)
            with rules(c) as sim:
                sim.clear(A)
            await beat

    run(scenario())


def test_beats_come_less_and_less_soon_where_nothing_changes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float, *more: Any) -> None:
        if asyncio.current_task() is beating[0]:
            slept.append(seconds)
            seconds = 0
        await really_sleep(seconds)

    beating: list[asyncio.Task[None]] = []

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure(A, "destroy", "error", None, "stuck")
            async with c.db.transaction() as tx:
                fence = {"operation": "op", "round": 1, "epoch": 1}
                await begin(tx, ClearGuest, params={"guest_id": "g", "host": A, "slot": None, **fence}, host=A)
            heartbeat = Heartbeat(c.db, c.hosts, process_host="control", interval=3)
            await heartbeat.beat()
            monkeypatch.setattr(asyncio, "sleep", sleep)
            beating.append(asyncio.create_task(heartbeat.run()))
            async with asyncio.timeout(PATIENCE):
                while len(slept) < 6:
                    await really_sleep(0.01)
                with rules(c) as sim:
                    sim.clear()
                while slept[-1] != 3 or not await up(c, A):
                    await really_sleep(0.01)
            beating[0].cancel()
            assert slept[:6] == [0.5, 1, 2, 3, 3, 3]

    run(scenario())


def test_what_is_kept_in_a_slot_keeps_no_host_down(database_url: str) -> None:
    """A host that cannot discard it runs its other guests as well as ever."""

    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure(A, "discard", "error", None, "stuck")
                async with c.db.transaction() as tx:
                    fence = {"operation": "op", "round": 1, "epoch": 1}
                    await begin(tx, ClearSlot, params={"guest_id": "g", "host": A, "slot": "s", **fence}, host=A)
                await age(c)
                assert await c.heartbeat.beat() == 4
                assert await up(c, A)
                (service,) = (await c.get(f"/os-services?host={A}", as_="admin", version="2.96")).json()["services"]
                for down in (True, False):
                    path, body = f"/os-services/{service['id']}", {"forced_down": down}
                    assert (await c.put(path, body, as_="admin", version="2.96")).status == 200
                sim.clear()
            await c.heartbeat.beat()
            await all_done(c)

    run(scenario())


def test_a_host_that_does_not_answer_is_not_hurried(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2, **QUICK) as c:
            await leave_a_guest(c)
            await calm(c)
            with rules(c) as sim:
                sim.clear()
                sim.add_failure(A, "describe", "unreachable", None, None)
                assert await c.heartbeat.beat() == 3
                paused = "SELECT COUNT(*) FROM operations WHERE finished_at IS NULL AND run_at > $1"
                assert await c.db.fetch_value(paused, clock.now() + 1000) == 1

    run(scenario())


def test_a_host_that_returns_while_its_server_is_evacuated_waits_for_the_end(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active(availability_zone=f":{A}", as_="admin")
            await age(c)
            assert await c.heartbeat.beat() == 4
            await age(c)
            with rules(c) as sim:
                sim.add_failure(B, "spawn", "hang", None, None)
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE services SET last_seen_at = $1 WHERE host = $2", clock.now(), B)
                path = f"/servers/{server['id']}/action"
                assert (await c.post(path, {"evacuate": {}}, as_="admin", version="2.95")).status == 200
                assert await c.heartbeat.beat() == 3
                assert not await up(c, A)
                sim.clear()
            assert (await c.settled(server["id"]))["OS-EXT-SRV-ATTR:host"] == B
            async with asyncio.timeout(PATIENCE):
                while not await up(c, A):
                    await c.heartbeat.beat()
                    await asyncio.sleep(0.02)
            assert list(await c.guests()) == [server["id"]]

    run(scenario())


def test_what_is_to_be_cleared_on_hosts_of_others_or_of_nobody_holds_none_of_ours(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            async with c.db.transaction() as tx:
                for host in ("elsewhere", None):
                    fence = {"operation": "op", "round": 1, "epoch": 1}
                    await begin(tx, ClearGuest, params={"guest_id": "g", "host": host, **fence}, host=host)
            assert await c.heartbeat.beat() == 3

    run(scenario())


@contextlib.contextmanager
def sim_rules(data: Path) -> Iterator[Rules]:
    store = SimStore(data / "sim.db")
    try:
        yield Rules(store)
    finally:
        store.close()


def state_of(admin: Client, host: str) -> str:
    services = admin.get("compute", "/os-services?binary=nova-compute").json()["services"]
    return str(next(service["state"] for service in services if service["host"] == host))


def soon(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_process_that_was_killed_in_between_holds_the_host_too(tmp_path: Path) -> None:
    quick = {
        "KILONOVA_OPERATIONS__HOST_SECONDS": "0.2",
        "KILONOVA_HOSTS__REPORT_SECONDS": "0.2",
        "KILONOVA_HOSTS__DOWN_SECONDS": "1",
    }
    with Cloud(tmp_path / "data", "--hosts", "1") as cloud, contextlib.ExitStack() as stack:
        server_id = cloud.client().boot()
        cloud.client().wait(server_id, status="ACTIVE")
        cloud.environ = quick
        cloud.restart()
        client = cloud.client()
        sim = stack.enter_context(sim_rules(cloud.data))
        sim.add_failure(A, "*", "unreachable", None, None)
        client.delete("compute", f"/servers/{server_id}")
        soon(lambda: client.get("compute", f"/servers/{server_id}").status == 404)
        soon(lambda: state_of(cloud.client("kilonova"), A) == "down")
        cloud.kill()
        sim.clear()
        sim.add_failure(A, "destroy", "hang", None, None)
        cloud.start()
        admin = cloud.client("kilonova")
        store = SimStore(cloud.data / "sim.db")
        for _ in range(10):
            assert state_of(admin, A) == "down"
            assert len(store.guests(A)) == 1
            time.sleep(0.1)
        sim.clear()
        soon(lambda: state_of(admin, A) == "up")
        assert store.guests(A) == []
        store.close()
