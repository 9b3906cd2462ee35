"""Fencing: a host counts as up only after guests of moved or deleted servers are removed from it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.compute.operations.deferred_cleanup import CleanUpGuest, CleanUpSlot
from kilonova.compute.operations.steps.cleanup import CleanUpParams
from kilonova.compute.pending_cleanups import find_pending_cleanups
from kilonova.hosts import embedded
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore
from kilonova.hosts.heartbeat import Heartbeat, is_up
from kilonova.hosts.service import Service
from kilonova.operations import begin
from tests.compute.operations.support import finish_operations
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.cloud_process import Client, CloudProcess
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud

QUICK: dict[str, Any] = {"operations__host_timeout_seconds": 0.1}
A, B = "sim-001", "sim-002"


async def up(c: FullCloud, host: str) -> bool:
    row = await c.db.fetch_one("SELECT * FROM services WHERE host = $1 AND program = 'nova-compute'", host)
    assert row is not None
    return is_up(Service.decode(row), clock.now())


async def age(c: FullCloud) -> None:
    """Make all services look down."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 1")


async def leave_guest(c: FullCloud) -> str:
    """Delete a server while its host is cut off, which stays so. Return the id of its guest."""
    server = await c.boot_active(availability_zone=f":{A}", as_="admin")
    with rules(c) as sim:
        sim.add_failure(A, "*", "unreachable", None, None)
    assert (await c.delete(f"/servers/{server['id']}", as_="admin")).status == 204
    await c.wait_until_deleted(server["id"])
    await age(c)
    return str(server["id"])


async def pause_cleanup(c: FullCloud) -> None:
    """Wait until the cleanup has failed once, and postpone its next attempt."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            async with c.db.transaction() as tx:
                paused = await tx.execute(
                    "UPDATE operations SET run_at = $1 WHERE kind = 'clean_up_guest' AND finished_at IS NULL"
                    " AND lease_until = 0 AND attempt > 0",
                    clock.now() + 3600,
                )
            if paused:
                return
            await asyncio.sleep(0.01)


def test_host_is_up_only_after_its_guest_is_removed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **QUICK) as c:
            guest = await leave_guest(c)
            assert await c.heartbeat.beat() == 3, "the other host, and conductor and scheduler"
            await pause_cleanup(c)
            with rules(c) as sim:
                sim.clear()
                sim.add_failure(A, "destroy", "error", None, "stuck")
                for _ in range(3):
                    assert await c.heartbeat.beat() == 3
                assert (
                    await Heartbeat(c.db, c.hosts, process_host="control", find_cleanups=find_pending_cleanups).beat()
                    == 3
                ), "a new process fences the host as well"
                assert not await up(c, A)
                assert await up(c, B)
                assert guest in await c.guests()
                sim.clear()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await up(c, A):
                    await c.heartbeat.beat()
                    await asyncio.sleep(0.02)
            assert await c.guests() == {}

    run(scenario())


def test_heartbeat_retries_paused_cleanup_and_beats_soon_again(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **QUICK) as c:
            await leave_guest(c)
            await pause_cleanup(c)
            with rules(c) as sim:
                sim.clear()
            heartbeat = Heartbeat(
                c.db, c.hosts, process_host="control", interval=600, find_cleanups=find_pending_cleanups
            )
            await heartbeat.beat()
            beating = asyncio.create_task(heartbeat.run())
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await up(c, A):
                    await asyncio.sleep(0.02)
            beating.cancel()
            assert await c.guests() == {}

    run(scenario())


def test_hanging_cleanup_does_not_delay_other_hosts(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_DESCRIBE_TIMEOUT_SECONDS", 300.0)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, **QUICK) as c:
            heartbeat = Heartbeat(c.db, c.hosts, find_cleanups=find_pending_cleanups)
            await heartbeat.beat()
            await leave_guest(c)
            with rules(c) as sim:
                sim.clear(A)
                sim.add_failure(A, "*", "hang", None, None)
            beat = asyncio.create_task(heartbeat.beat())
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await up(c, B):
                    await asyncio.sleep(0.01)
            assert not beat.done(), "it still waits for the other host"
            assert not await up(c, A)
            with rules(c) as sim:
                sim.clear(A)
            await beat

    run(scenario())


def test_beats_slow_down_while_cleanup_makes_no_progress(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    really_sleep = asyncio.sleep

    async def sleep(seconds: float, *more: Any) -> None:
        if asyncio.current_task() is beating[0]:
            slept.append(seconds)
            seconds = 0
        await really_sleep(seconds)

    beating: list[asyncio.Task[None]] = []

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure(A, "destroy", "error", None, "stuck")
            async with c.db.transaction() as tx:
                fence = {"operation": "op", "round": 1, "epoch": 1}
                await begin(tx, CleanUpGuest, params=CleanUpParams(guest_id="g", host=A, **fence), host=A)
            heartbeat = Heartbeat(
                c.db, c.hosts, process_host="control", interval=3, find_cleanups=find_pending_cleanups
            )
            await heartbeat.beat()
            monkeypatch.setattr(asyncio, "sleep", sleep)
            beating.append(asyncio.create_task(heartbeat.run()))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while len(slept) < 6:
                    await really_sleep(0.01)
                with rules(c) as sim:
                    sim.clear()
                while slept[-1] != 3 or not await up(c, A):
                    await really_sleep(0.01)
            beating[0].cancel()
            assert slept[:6] == [0.5, 1, 2, 3, 3, 3]

    run(scenario())


def test_slot_cleanup_does_not_fence_host(database_url: str) -> None:
    """A guest in a slot does not run, so its host can run others."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure(A, "discard", "error", None, "stuck")
                async with c.db.transaction() as tx:
                    fence = {"operation": "op", "round": 1, "epoch": 1}
                    await begin(tx, CleanUpSlot, params=CleanUpParams(guest_id="g", host=A, slot="s", **fence), host=A)
                await age(c)
                assert await c.heartbeat.beat() == 4
                assert await up(c, A)
                (service,) = (await c.get(f"/os-services?host={A}", as_="admin", version="2.96")).json()["services"]
                for down in (True, False):
                    path, body = f"/os-services/{service['id']}", {"forced_down": down}
                    assert (await c.put(path, body, as_="admin", version="2.96")).status == 200
                sim.clear()
            await c.heartbeat.beat()
            await finish_operations(c)

    run(scenario())


def test_cleanup_on_unreachable_host_is_not_retried(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, **QUICK) as c:
            await leave_guest(c)
            await pause_cleanup(c)
            with rules(c) as sim:
                sim.clear()
                sim.add_failure(A, "describe", "unreachable", None, None)
                assert await c.heartbeat.beat() == 3
                paused = "SELECT COUNT(*) FROM operations WHERE finished_at IS NULL AND run_at > $1"
                assert await c.db.fetch_value(paused, clock.now() + 1000) == 1

    run(scenario())


def test_host_is_fenced_during_evacuation_of_its_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active(availability_zone=f":{A}", as_="admin")
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
            assert (await c.wait_until_settled(server["id"]))["OS-EXT-SRV-ATTR:host"] == B
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await up(c, A):
                    await c.heartbeat.beat()
                    await asyncio.sleep(0.02)
            assert list(await c.guests()) == [server["id"]]

    run(scenario())


def test_cleanups_on_other_hosts_do_not_fence(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            async with c.db.transaction() as tx:
                for host in ("elsewhere", None):
                    fence = {"operation": "op", "round": 1, "epoch": 1}
                    await begin(
                        tx, CleanUpGuest, params=CleanUpParams(guest_id="g", host=host or "", **fence), host=host
                    )
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


def wait_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_fence_survives_kill_of_process(tmp_path: Path) -> None:
    quick = {
        "KILONOVA_OPERATIONS__HOST_TIMEOUT_SECONDS": "0.2",
        "KILONOVA_HOSTS__REPORT_SECONDS": "0.2",
        "KILONOVA_HOSTS__DOWN_SECONDS": "1",
    }
    with CloudProcess(tmp_path / "data", "--hosts", "1") as cloud, contextlib.ExitStack() as stack:
        server_id = cloud.client().boot()
        cloud.client().wait(server_id, status="ACTIVE")
        cloud.environ = quick
        cloud.restart()
        client = cloud.client()
        sim = stack.enter_context(sim_rules(cloud.data))
        sim.add_failure(A, "*", "unreachable", None, None)
        client.delete("compute", f"/servers/{server_id}")
        wait_until(lambda: client.get("compute", f"/servers/{server_id}").status == 404)
        wait_until(lambda: state_of(cloud.client("kilonova"), A) == "down")
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
        wait_until(lambda: state_of(admin, A) == "up")
        assert store.guests(A) == []
        store.close()
