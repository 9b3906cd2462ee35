"""Tests of live migration: generated tests, killed workers, and guests that cannot return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kilonova.compute.migrations.model import LIVE
from kilonova.compute.operations import live_migrate
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.live_migrate import LiveMigrate, force_key
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from kilonova.operations import Failed, Operation, Worker, begin, post_event, request_cancel
from kilonova.store import Database
from tests.compute.operations.support import finish_operations
from tests.compute.operations.worlds import MoveOperation, World
from tests.compute.servers.live_migrations import complete_migration
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.databases import opened
from tests.support.full_cloud import TIMEOUT_SECONDS, running_worker


class TestLiveMigrate(MoveOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = LiveMigrate
    move_type: ClassVar[str] = LIVE
    params: ClassVar[dict[str, Any]] = {"block": None}


@pytest.fixture(autouse=True)
def short_progress_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)


class Scene:
    """A world with a server on one of two hosts, and a live migration that has not run yet."""

    def __init__(self, db: Database, world: World, sim: Rules, operation_id: str) -> None:
        self.db, self.world, self.sim, self.operation_id = db, world, sim, operation_id
        self.source = world.source
        self.destination = next(name for name in world.cloud.hosts.names if name != world.source)

    async def row(self) -> dict[str, Any]:
        row = await self.db.fetch_one("SELECT * FROM operations WHERE id = $1", self.operation_id)
        assert row is not None
        return row

    async def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition(row := await self.row()):
                await asyncio.sleep(0.005)
        return row

    async def wait_until_finished(self) -> dict[str, Any]:
        return await self.wait_for(lambda row: row["finished_at"] is not None)

    async def list_resources(self) -> Any:
        return await TestLiveMigrate().list_resources(self.db, self.world)

    async def check_host(self, host: str) -> None:
        """All resources of the server are on this host, and none elsewhere."""
        seen = await self.list_resources()
        assert (seen["server"]["host"], seen["server"]["vm_state"]) == (host, "active")
        assert {(row["of_server"], row["name"]) for row in seen["allocations"]} == {(True, host)}
        assert [port["host_id"] for port in seen["ports"]] == [host]
        assert (seen["standby bindings"], seen["slots"], seen["deferred"]) == ([], [], [])
        assert seen["guests"] == [(host, "running")]


@asynccontextmanager
async def scene(database_url: str, **compute: Any) -> AsyncIterator[Scene]:
    tests = TestLiveMigrate()
    async with opened(database_url) as db:
        world = await tests.prepare(db)
        store = SimStore(Path(world.config.data) / SIM_FILE_NAME)
        try:
            world.config.operations.host_timeout_seconds = 0.3
            for name, value in compute.items():
                setattr(world.config.compute, name, value)
            async with db.transaction() as tx:
                operation_id = await tests.begin(tx, world)
            yield Scene(db, world, Rules(store), operation_id)
        finally:
            store.close()
            await tests.tear_down(world)


class AfterStep:
    """Calls a function once after a step; the function may fail the step."""

    def __init__(self, step: str, act: Callable[[], Awaitable[None] | None], phase: str = "forward") -> None:
        self._when = ("after", phase, step)
        self._act: Callable[[], Awaitable[None] | None] | None = act

    async def at(self, point: str, phase: str, step: str, op: Operation) -> None:
        if (point, phase, step) == self._when and self._act is not None:
            act, self._act = self._act, None
            if (pending := act()) is not None:
                await pending


@asynccontextmanager
async def worker_with_faults(s: Scene, faults: AfterStep) -> AsyncIterator[None]:
    worker = Worker(s.db, s.world, sweep=0.05, faults=faults)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await task


# Workers that die during the migration


async def kill_worker_during_migration(s: Scene) -> None:
    """Kill a worker during the migration, which continues on the hosts."""
    task = asyncio.create_task(Worker(s.db, s.world, sweep=0.05).run())
    await s.wait_for(lambda row: row["step"] == "migrate guest" and row["progress"] is not None)
    task.cancel()
    await asyncio.wait([task])
    async with s.db.transaction() as tx:  # the lease expires
        await tx.execute("UPDATE operations SET lease_until = 0 WHERE id = $1", s.operation_id)


def test_next_worker_joins_running_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await kill_worker_during_migration(s)
            async with running_worker(s.db, s.world):
                await s.wait_for(lambda row: row["epoch"] == 2)
                await complete_migration(s.world.cloud.hosts, s.source, s.world.server_id)
                assert (await s.wait_until_finished())["state"] == "done"
            await s.check_host(s.destination)

    run(scenario())


def test_next_worker_finds_completed_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await kill_worker_during_migration(s)
            await complete_migration(s.world.cloud.hosts, s.source, s.world.server_id)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (await s.world.cloud.guests())[s.world.server_id][0] != s.destination:
                    await asyncio.sleep(0.005)
            async with running_worker(s.db, s.world):
                assert (await s.wait_until_finished())["state"] == "done"
            await s.check_host(s.destination)

    run(scenario())


def test_force_complete_survives_killed_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await kill_worker_during_migration(s)
            async with s.db.transaction() as tx:
                await post_event(tx, force_key(s.operation_id))
            async with running_worker(s.db, s.world):
                assert (await s.wait_until_finished())["state"] == "done"
            await s.check_host(s.destination)

    run(scenario())


def test_abort_survives_killed_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await kill_worker_during_migration(s)
            async with s.db.transaction() as tx:
                await request_cancel(tx, s.operation_id)
            async with running_worker(s.db, s.world):
                assert (await s.wait_until_finished())["state"] == "cancelled"
            await s.check_host(s.source)

    run(scenario())


def test_time_limit_includes_killed_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url, live_migration_seconds_per_gib=60.0) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await kill_worker_during_migration(s)
            async with s.db.transaction() as tx:
                await tx.execute("UPDATE operations SET step_started_at = step_started_at - 60")
            async with running_worker(s.db, s.world):
                row = await s.wait_until_finished()
            assert (row["state"], "could not be moved within 60 s" in row["error"]) == ("failed", True)
            await s.check_host(s.source)

    run(scenario())


# Undo after the guest has arrived


def fail() -> None:
    raise Failed("injected by the test")


@pytest.mark.parametrize("slow", [False, True])
def test_undo_migrates_guest_back(database_url: str, slow: bool) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            before = await s.list_resources()
            s.sim.set_latency(s.destination, "migrate_live", 0.4 * slow)
            async with worker_with_faults(s, AfterStep("move ports", fail)):
                assert (await s.wait_until_finished())["state"] == "failed"
            assert await s.list_resources() == before

    run(scenario())


@pytest.mark.parametrize("failure", ["source unreachable", "destination unreachable", "refused", "fails", "timeout"])
def test_server_follows_guest_that_cannot_return(database_url: str, failure: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:

            def inject_failure() -> None:
                s.world.config.compute.live_migration_seconds_per_gib = 1.0
                match failure:
                    case "source unreachable":
                        s.sim.add_failure(s.source, "*", "unreachable", None, None)
                    case "destination unreachable":
                        s.sim.add_failure(s.destination, "*", "unreachable", None, None)
                    case "refused":
                        s.sim.add_failure(s.source, "expect", "error", None, None)
                    case "fails":
                        s.sim.add_failure(s.destination, "migrate_live", "error", None, None)
                    case _:
                        s.sim.set_latency(s.destination, "migrate_live", 300)
                fail()

            async with worker_with_faults(s, AfterStep("migrate guest", inject_failure)):
                row = await s.wait_until_finished()
                assert row["state"] == "failed"
                assert "injected by the test" in row["error"]
                s.sim.clear()
                await finish_operations(s.world.cloud)
            await s.check_host(s.destination)

    run(scenario())


@pytest.mark.parametrize("unreachable", ["none", "source", "destination"])
def test_delete_after_migration_removes_guest(database_url: str, unreachable: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:

            async def delete() -> None:
                if unreachable != "none":
                    s.sim.add_failure(
                        s.source if unreachable == "source" else s.destination, "*", "unreachable", None, None
                    )
                async with s.db.transaction() as tx:
                    await request_cancel(tx, s.operation_id)
                    await begin(tx, Delete, server_id=s.world.server_id, project_id=DEMO)

            s.sim.add_failure(s.destination, "migrate_live", "error", None, None)
            async with worker_with_faults(s, AfterStep("migrate guest", delete)):
                assert (await s.wait_until_finished())["state"] == "cancelled"
                await s.world.cloud.wait_until_deleted(s.world.server_id)
                s.sim.clear()
                await finish_operations(s.world.cloud)
            assert await s.world.cloud.list_guests_and_slots() == []
            for table in ("allocations", "consumers", "standby_bindings"):
                assert await s.db.fetch(f"SELECT * FROM {table}") == [], table

    run(scenario())


def test_migration_of_missing_guest_fails(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            store = SimStore(Path(s.world.config.data) / SIM_FILE_NAME)
            store.remove_guest(s.source, s.world.server_id)
            store.close()
            async with running_worker(s.db, s.world):
                row = await s.wait_until_finished()
            assert (row["state"], "the guest is missing" in row["error"]) == ("failed", True)
            seen = await s.list_resources()
            assert (seen["server"]["host"], seen["guests"], seen["slots"]) == (s.source, [], [])

    run(scenario())
