"""Live migration: each step twice, failed and killed; workers that die on the way, and ways back that are closed."""

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
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore
from kilonova.operations import Failed, Operation, Worker, begin, post_event, request_cancel
from kilonova.store import Database
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import MoveOperation, World
from tests.compute.servers.live import arrive
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.databases import opened
from tests.support.whole import PATIENCE, working


class TestLiveMigrate(MoveOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = LiveMigrate
    move_type: ClassVar[str] = LIVE
    params: ClassVar[dict[str, Any]] = {"block": None}


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)


class Scene:
    """A world with a server and two hosts, of which one is its own, and an operation that is not carried out yet."""

    def __init__(self, db: Database, world: World, sim: Rules, operation_id: str) -> None:
        self.db, self.world, self.sim, self.operation_id = db, world, sim, operation_id
        self.source = world.source
        self.destination = next(name for name in world.cloud.hosts.names if name != world.source)

    async def row(self) -> dict[str, Any]:
        row = await self.db.fetch_one("SELECT * FROM operations WHERE id = $1", self.operation_id)
        assert row is not None
        return row

    async def until(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while not true(row := await self.row()):
                await asyncio.sleep(0.005)
        return row

    async def ended(self) -> dict[str, Any]:
        return await self.until(lambda row: row["finished_at"] is not None)

    async def census(self) -> Any:
        return await TestLiveMigrate().census(self.db, self.world)

    async def is_at(self, host: str) -> None:
        """All of the server is there, and nothing is left anywhere."""
        seen = await self.census()
        assert (seen["server"]["host"], seen["server"]["vm_state"]) == (host, "active")
        assert {(share["of_server"], share["name"]) for share in seen["shares"]} == {(True, host)}
        assert [port["host_id"] for port in seen["ports"]] == [host]
        assert (seen["standby"], seen["kept"], seen["left"]) == ([], [], [])
        assert seen["guests"] == [(host, "running")]


@asynccontextmanager
async def scene(database_url: str, **compute: Any) -> AsyncIterator[Scene]:
    tests = TestLiveMigrate()
    async with opened(database_url) as db:
        world = await tests.prepare(db)
        store = SimStore(Path(world.config.data) / FILE_NAME)
        try:
            world.config.operations.host_seconds = 0.3
            for name, value in compute.items():
                setattr(world.config.compute, name, value)
            async with db.transaction() as tx:
                operation_id = await tests.begin(tx, world)
            yield Scene(db, world, Rules(store), operation_id)
        finally:
            store.close()
            await tests.dismantle(world)


class At:
    """Does something after a step has done its work, and perhaps fails it then."""

    def __init__(self, step: str, act: Callable[[], Awaitable[None] | None], phase: str = "forward") -> None:
        self._when = ("after", phase, step)
        self._act: Callable[[], Awaitable[None] | None] | None = act

    async def at(self, point: str, phase: str, step: str, op: Operation) -> None:
        if (point, phase, step) == self._when and self._act is not None:
            act, self._act = self._act, None
            if (more := act()) is not None:
                await more


@asynccontextmanager
async def faulty(s: Scene, faults: At) -> AsyncIterator[None]:
    worker = Worker(s.db, s.world, sweep=0.05, faults=faults)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await task


# Workers that die while the guest is on its way


async def killed_while_it_runs(s: Scene) -> None:
    """A worker that dies when the guest is on its way. What it asked for goes on."""
    task = asyncio.create_task(Worker(s.db, s.world, sweep=0.05).run())
    await s.until(lambda row: row["step"] == "migrate guest" and row["progress"] is not None)
    task.cancel()
    await asyncio.wait([task])
    async with s.db.transaction() as tx:  # the lease runs out
        await tx.execute("UPDATE operations SET lease_until = 0 WHERE id = $1", s.operation_id)


def test_another_worker_joins_what_is_under_way(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await killed_while_it_runs(s)
            async with working(s.db, s.world):
                await s.until(lambda row: row["epoch"] == 2)
                await arrive(s.world.cloud.hosts, s.source, s.world.server_id)
                assert (await s.ended())["state"] == "done"
            await s.is_at(s.destination)

    run(scenario())


def test_what_ended_while_nobody_asked_is_found(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await killed_while_it_runs(s)
            await arrive(s.world.cloud.hosts, s.source, s.world.server_id)
            async with asyncio.timeout(PATIENCE):
                while (await s.world.cloud.guests())[s.world.server_id][0] != s.destination:
                    await asyncio.sleep(0.005)
            async with working(s.db, s.world):
                assert (await s.ended())["state"] == "done"
            await s.is_at(s.destination)

    run(scenario())


def test_a_wish_that_it_end_now_survives_a_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await killed_while_it_runs(s)
            async with s.db.transaction() as tx:
                await post_event(tx, force_key(s.operation_id))
            async with working(s.db, s.world):
                assert (await s.ended())["state"] == "done"
            await s.is_at(s.destination)

    run(scenario())


def test_an_abort_survives_a_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await killed_while_it_runs(s)
            async with s.db.transaction() as tx:
                await request_cancel(tx, s.operation_id)
            async with working(s.db, s.world):
                assert (await s.ended())["state"] == "cancelled"
            await s.is_at(s.source)

    run(scenario())


def test_the_time_is_counted_from_the_first_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url, live_migration_seconds=60.0) as s:
            s.sim.set_latency("*", "migrate_live", 300)
            await killed_while_it_runs(s)
            async with s.db.transaction() as tx:
                await tx.execute("UPDATE operations SET step_started_at = step_started_at - 60")
            async with working(s.db, s.world):
                row = await s.ended()
            assert (row["state"], "could not be moved within 60 s" in row["error"]) == ("failed", True)
            await s.is_at(s.source)

    run(scenario())


# Ways back, once the guest has arrived


def fail() -> None:
    raise Failed("it shall not be")


@pytest.mark.parametrize("slow", [False, True])
def test_a_guest_that_has_arrived_comes_back(database_url: str, slow: bool) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            before = await s.census()
            s.sim.set_latency(s.destination, "migrate_live", 0.4 * slow)
            async with faulty(s, At("move ports", fail)):
                assert (await s.ended())["state"] == "failed"
            assert await s.census() == before

    run(scenario())


@pytest.mark.parametrize("trouble", ["source silent", "destination silent", "refused", "fails", "endless"])
def test_where_it_cannot_come_back_its_server_goes_after_it(database_url: str, trouble: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:

            def make_trouble() -> None:
                s.world.config.compute.live_migration_seconds = 1.0
                match trouble:
                    case "source silent":
                        s.sim.add_failure(s.source, "*", "unreachable", None, None)
                    case "destination silent":
                        s.sim.add_failure(s.destination, "*", "unreachable", None, None)
                    case "refused":
                        s.sim.add_failure(s.source, "expect", "error", None, None)
                    case "fails":
                        s.sim.add_failure(s.destination, "migrate_live", "error", None, None)
                    case _:
                        s.sim.set_latency(s.destination, "migrate_live", 300)
                fail()

            async with faulty(s, At("migrate guest", make_trouble)):
                row = await s.ended()
                assert row["state"] == "failed"
                assert "it shall not be" in row["error"]
                s.sim.clear()
                await all_done(s.world.cloud)
            await s.is_at(s.destination)

    run(scenario())


@pytest.mark.parametrize("silent", ["nobody", "source", "destination"])
def test_a_deleted_server_need_not_come_back(database_url: str, silent: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:

            async def delete() -> None:
                if silent != "nobody":
                    s.sim.add_failure(s.source if silent == "source" else s.destination, "*", "unreachable", None, None)
                async with s.db.transaction() as tx:
                    await request_cancel(tx, s.operation_id)
                    await begin(tx, Delete, server_id=s.world.server_id, project_id=DEMO)

            s.sim.add_failure(s.destination, "migrate_live", "error", None, None)
            async with faulty(s, At("migrate guest", delete)):
                assert (await s.ended())["state"] == "cancelled"
                await s.world.cloud.gone(s.world.server_id)
                s.sim.clear()
                await all_done(s.world.cloud)
            assert await s.world.cloud.everything() == []
            for what in ("allocations", "consumers", "standby_bindings"):
                assert await s.db.fetch(f"SELECT * FROM {what}") == [], what

    run(scenario())


def test_a_guest_that_is_nowhere(database_url: str) -> None:
    async def scenario() -> None:
        async with scene(database_url) as s:
            store = SimStore(Path(s.world.config.data) / FILE_NAME)
            store.remove_guest(s.source, s.world.server_id)
            store.close()
            async with working(s.db, s.world):
                row = await s.ended()
            assert (row["state"], "the guest is missing" in row["error"]) == ("failed", True)
            seen = await s.census()
            assert (seen["server"]["host"], seen["guests"], seen["kept"]) == (s.source, [], [])

    run(scenario())
