"""The migration queue: which live migrations from a host get a slot, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.migrations.model import LIVE
from kilonova.compute.operations import live_migrate
from kilonova.compute.operations.live_migrate import LiveMigrate
from kilonova.compute.operations.steps import choose, migration_queue
from kilonova.compute.operations.steps.migration_queue import WAIT_FOR_SLOT
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.operations.states import RUNNING, UNDOING, WAITING
from tests.compute.operations.steps.support import begin_leased_move
from tests.compute.servers.actions.test_live_migrate import to_host
from tests.compute.servers.live_migrations import ACTION, ANY_HOST, clear_latency, start_slow_migration, wait_for_status
from tests.compute.servers.moves import HOST, newest_migration
from tests.compute.servers.support import act, rules
from tests.support import run
from tests.support.cloud import put_server
from tests.support.full_cloud import FullCloud, full_cloud


async def begin_migration(c: FullCloud, source: str = "sim-001") -> Operation:
    """A live migration that has claimed its destination and is about to join the queue."""
    server_id = new_id()
    await put_server(c.db, server_id, host=source, hypervisor_hostname=source)
    op = await begin_leased_move(c, LiveMigrate, server_id, LIVE, block=None)
    await set_operation(c, op, step=choose.CLAIM.name)
    return op


async def set_operation(c: FullCloud, op: Operation, **columns: Any) -> None:
    async with c.db.transaction() as tx:
        for column, value in columns.items():
            await tx.execute(f"UPDATE operations SET {column} = $2 WHERE id = $1", op.id, value)


async def join(c: FullCloud, op: Operation) -> None:
    async with c.db.transaction() as tx:
        await migration_queue.join_queue(op, tx)
        await tx.execute("UPDATE operations SET step = $2, state = $3 WHERE id = $1", op.id, WAIT_FOR_SLOT, WAITING)


async def leave(c: FullCloud, op: Operation) -> None:
    async with c.db.transaction() as tx:
        await migration_queue.leave_queue(op, tx)
        await tx.execute("UPDATE operations SET finished_at = 1 WHERE id = $1", op.id)


async def granted(c: FullCloud, *queue: Operation) -> list[bool]:
    """Whether each migration has a slot."""
    keys = {row["key"] for row in await c.db.fetch("SELECT key FROM operation_events")}
    return [migration_queue.slot_event(op) in keys for op in queue]


def test_slot_goes_to_oldest_waiting_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            first, second, third = [await begin_migration(c) for _ in range(3)]
            await join(c, first)
            # The third joins before the second, which was requested earlier.
            await join(c, third)
            await join(c, second)
            assert await granted(c, first, second, third) == [True, False, False]
            await leave(c, first)
            assert await granted(c, second, third) == [True, False]
            await leave(c, second)
            assert await granted(c, third) == [True]

    run(scenario())


def test_cancelled_migration_gets_no_slot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            first, cancelled, third = [await begin_migration(c) for _ in range(3)]
            for op in (first, cancelled, third):
                await join(c, op)
            await set_operation(c, cancelled, cancel_requested=True)
            await leave(c, first)
            assert await granted(c, cancelled, third) == [False, True]

    run(scenario())


def test_waiting_migration_that_leaves_frees_no_slot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            first, second, third = [await begin_migration(c) for _ in range(3)]
            for op in (first, second, third):
                await join(c, op)
            await leave(c, second)
            assert await granted(c, third) == [False]

    run(scenario())


def test_migration_being_undone_keeps_its_slot(database_url: str) -> None:
    """Its guest may still be between the hosts. The undo of "claim", its last one, leaves the queue."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            first, second = [await begin_migration(c) for _ in range(2)]
            await join(c, first)
            await set_operation(c, first, step="migrate guest", state=UNDOING)
            await join(c, second)
            await migration_queue.recheck(second)
            assert await granted(c, second) == [False]
            await set_operation(c, first, step=choose.CLAIM.name)
            await leave(c, first)
            assert await granted(c, second) == [True]

    run(scenario())


def test_limit_counts_each_source_and_can_be_raised(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            first, second, third = [await begin_migration(c) for _ in range(3)]
            elsewhere = await begin_migration(c, "sim-002")
            for op in (first, second, third, elsewhere):
                await join(c, op)
            await set_operation(c, first, step="migrate guest", state=RUNNING)
            assert await granted(c, second, third, elsewhere) == [False, False, True]
            c.services.config.compute.live_migrations_per_host = 2
            await migration_queue.recheck(third)
            assert await granted(c, second, third) == [True, False]
            c.services.config.compute.live_migrations_per_host = 0
            await migration_queue.recheck(third)
            assert await granted(c, third) == [True], "0 is no limit"

    run(scenario())


# Migrations of running guests


@pytest.fixture(autouse=True)
def short_progress_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)


async def migration_statuses(c: FullCloud, servers: list[dict[str, Any]]) -> list[str]:
    return [(await newest_migration(c, server["id"]))["status"] for server in servers]


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrations get a slot by its event only: the test would time out if they had to poll."""
    wait = live_migrate.LiveMigrate.table().find(WAIT_FOR_SLOT)
    monkeypatch.setattr(type(wait), "__setattr__", object.__setattr__)
    monkeypatch.setattr(wait, "poll_every", 3600)


@pytest.mark.usefixtures("without_polling")
def test_live_migrations_per_host_are_limited(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, compute__live_migrations_per_host=2) as c:
            on_first_host = {"availability_zone": ":sim-001", "as_": "admin"}
            servers = [await c.boot_active(name=f"s{number}", **on_first_host) for number in range(5)]
            other_server = await c.boot_active(availability_zone=":sim-002", as_="admin")
            for server in servers[:2]:
                await start_slow_migration(c, server["id"])
            for server in servers[2:]:
                assert (await act(c, server["id"], ACTION, ANY_HOST, as_="admin", version="2.80")).status == 202
                await wait_for_status(c, server["id"], "queued")
            await start_slow_migration(c, other_server["id"], to_host("sim-003"))
            await asyncio.sleep(0.1)
            assert await migration_statuses(c, servers) == ["running"] * 2 + ["queued"] * 3
            assert (await c.show(servers[4]["id"]))["OS-EXT-STS:task_state"] == "migrating"
            # A migration that ends or is cancelled gives its slot to the oldest waiting one.
            await c.delete(f"/servers/{servers[0]['id']}", as_="admin")
            await wait_for_status(c, servers[2]["id"])
            assert await migration_statuses(c, servers[1:]) == ["running"] * 2 + ["queued"] * 2
            await c.delete(f"/servers/{servers[3]['id']}", as_="admin")
            await c.wait_until_deleted(servers[3]["id"])
            assert await migration_statuses(c, [servers[4]]) == ["queued"], (
                "a migration that leaves the queue frees no slot"
            )
            clear_latency(c)
            for server in (servers[1], servers[2], other_server):
                await c.delete(f"/servers/{server['id']}", as_="admin")
            assert (await c.wait_until_settled(servers[4]["id"]))[HOST] != "sim-001"

    run(scenario())


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.usefixtures("without_polling")
def test_all_queued_live_migrations_finish(database_url: str, limit: int) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=limit) as c:
            on_first_host = {"availability_zone": ":sim-001", "as_": "admin"}
            servers = [await c.boot_active(name=f"s{number}", **on_first_host) for number in range(6)]
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 0.05)
                sim.add_failure("*", "migrate_live", "error", 2, "something burns")
            answers = await asyncio.gather(
                *(act(c, server["id"], ACTION, to_host("sim-002"), as_="admin", version="2.80") for server in servers)
            )
            assert [answer.status for answer in answers] == [202] * 6
            shown = [await c.wait_until_settled(server["id"]) for server in servers]
            assert sorted(server[HOST] for server in shown) == ["sim-001"] * 2 + ["sim-002"] * 4
            assert await c.db.fetch("SELECT * FROM operation_events") == []
            assert await c.db.fetch("SELECT * FROM operation_waits") == []

    run(scenario())


def test_raised_limit_lets_queued_migrations_run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = live_migrate.LiveMigrate.table().find(WAIT_FOR_SLOT)
    monkeypatch.setattr(type(wait), "__setattr__", object.__setattr__)
    monkeypatch.setattr(wait, "poll_every", 0.05)

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            on_first_host = {"availability_zone": ":sim-001", "as_": "admin"}
            first, second = [await c.boot_active(**on_first_host) for _ in range(2)]
            await start_slow_migration(c, first["id"])
            assert (await act(c, second["id"], ACTION, ANY_HOST, as_="admin", version="2.80")).status == 202
            await wait_for_status(c, second["id"], "queued")
            c.services.config.compute.live_migrations_per_host = 2
            await wait_for_status(c, second["id"])
            for server in (first, second):
                await c.delete(f"/servers/{server['id']}", as_="admin")
                await c.wait_until_deleted(server["id"])

    run(scenario())
