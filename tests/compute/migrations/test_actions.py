"""Abort and force complete of live migrations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations import live_migrate
from kilonova.ids import new_id
from tests.compute.migrations.support import put_move
from tests.compute.servers.live_migrations import (
    ACTION,
    ANY_HOST,
    assert_only_on,
    start_slow_migration,
    wait_for_status,
)
from tests.compute.servers.moves import HOST, newest_action, newest_migration
from tests.compute.servers.support import act, make_flavor, rules
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ERROR = {"type": "Failed", "message": "No valid host was found", "fault": None}
CANCEL = {"type": "Cancelled", "message": "Cancelled by request", "fault": None}


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)


async def abort(c: Cloud, server_id: str, number: Any, as_: str = "manager", version: str = "2.65") -> Any:
    return await c.delete(f"/servers/{server_id}/migrations/{number}", as_=as_, version=version)


async def force(c: Cloud, server_id: str, number: Any, as_: str = "manager", version: str = "2.22") -> Any:
    path = f"/servers/{server_id}/migrations/{number}/action"
    return await c.post(path, {"force_complete": None}, as_=as_, version=version)


async def newest(c: Cloud) -> int:
    number: int = await c.db.fetch_value("SELECT MAX(id) FROM moves")
    return number


# Checks


async def put(c: Cloud, server_id: str, **values: Any) -> int:
    """Insert a live migration that no worker runs, and return its id."""
    operation_id = await put_move(c, server_id, **values)
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET kind = 'live_migrate' WHERE id = $1", operation_id)
    return await newest(c)


@pytest.mark.parametrize(
    "values, early, late, forced",
    [
        ({"step": "choose host"}, 400, 202, 400),
        ({"step": "claim"}, 400, 202, 400),
        ({"step": "wait for slot", "state": "waiting"}, 400, 202, 400),
        ({"step": "prepare destination"}, 400, 202, 400),
        ({"step": "bind ports"}, 400, 202, 400),
        ({"step": "migrate guest"}, 202, 202, 202),
        ({"step": "move ports"}, 400, 400, 400),
        ({"step": "hand over"}, 400, 400, 400),
        ({"step": "migrate guest", "state": "undoing", "error": ERROR}, 400, 400, 400),
        ({"step": "migrate guest", "state": "undoing", "error": CANCEL}, 202, 202, 202),
    ],
)
def test_allowed_states(database_url: str, values: dict[str, Any], early: int, late: int, forced: int) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = new_id()
            await put_server(c.db, server_id, host="host1")
            number = await put(c, server_id, **values)
            answer = await force(c, server_id, number)
            assert answer.status == forced, answer.body
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operation_events") == (forced == 202)
            for version, status in (("2.24", early), ("2.64", early), ("2.65", late), ("2.106", late)):
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE operations SET cancel_requested = FALSE")
                answer = await abort(c, server_id, number, version=version)
                assert answer.status == status, (version, answer.body)
                assert await c.db.fetch_value("SELECT cancel_requested FROM operations") == (status == 202)
                if status == 400:
                    assert fault(answer)[2].startswith(f"Cannot abort migration {number} of instance {server_id} while")

    run(scenario())


def test_unknown_servers_and_migrations(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            mine, idle, other = (new_id() for _ in range(3))
            for server_id in (mine, idle, other):
                await put_server(c.db, server_id, host="host1")
            ended = await put(c, mine, state="done", step="hand over")
            resized = await put(c, mine, type="resize", state="done", step="hand over")
            running = await put(c, mine, step="migrate guest")
            foreign = await put(c, other, step="migrate guest")
            over = await put(c, idle, state="done", step="hand over")
            for control in (abort, force):
                assert (await control(c, mine, ended)).status == 400, "it is over, and another one runs"
                for number in (resized, foreign, 999, 10**30, "x", "0", f"0{running}"):
                    assert (await control(c, mine, number)).status == 404, number
                assert (await control(c, idle, over)).status == 409
                assert (await control(c, idle, 999)).status == 409
                assert (await control(c, new_id(), running)).status == 404
                for who, status in (("other", 404), ("reader", 403), ("member", 403)):
                    assert (await control(c, mine, running, as_=who)).status == status, who
            assert (await abort(c, mine, running, version="2.23")).status == 404
            assert (await force(c, mine, running, version="2.21")).status == 404
            wrong: list[dict[str, Any]] = [
                {"force_complete": {}},
                {"force_complete": None, "more": 1},
                {"end": None},
                {},
            ]
            for body in wrong:
                path = f"/servers/{mine}/migrations/{running}/action"
                assert (await c.post(path, body, as_="admin", version="2.22")).status == 400, body
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", mine)
            for control in (force, abort):
                assert (await control(c, mine, running)).status == 409
                assert (await control(c, mine, running, as_="admin")).status == 202

    run(scenario())


def test_resize_cannot_be_aborted(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = new_id()
            await put_server(c.db, server_id, host="host1")
            await put_move(c, server_id, "resize", step="park guest")
            for control in (abort, force):
                assert (await control(c, server_id, await newest(c))).status == 409

    run(scenario())


# Effects


async def wait_until_aborted(c: FullCloud, server: dict[str, Any]) -> None:
    after = await c.wait_until_settled(server["id"])
    assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
    assert "fault" not in after, "it was wanted"
    await assert_only_on(c, server["id"], server[HOST])
    assert (await newest_migration(c, server["id"]))["status"] == "cancelled"
    action = await newest_action(c, server["id"])
    assert (action["action"], action["message"]) == ("live-migration", "Error")
    assert "Cancelled by request" in [event["details"] for event in action["events"]]


@proves("DELETE /servers/{server_id}/migrations/{migration_id}")
def test_abort_running_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            await start_slow_migration(c, server["id"])
            number = await newest(c)
            assert (await abort(c, server["id"], number, version="2.24")).status == 202
            await wait_until_aborted(c, server)
            assert (await abort(c, server["id"], number)).status == 409

    run(scenario())


def test_force_complete_is_refused_during_abort(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = new_id()
            await put_server(c.db, server_id, host="host1")
            number = await put(c, server_id, step="migrate guest")
            for _ in range(2):
                assert (await abort(c, server_id, number)).status == 202
            answer = await force(c, server_id, number)
            assert fault(answer)[0] == 400
            assert fault(answer)[2].endswith("while it is being aborted.")

    run(scenario())


def test_abort_preparing_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", "expect", "hang", None, None)
                assert (await act(c, server["id"], ACTION, ANY_HOST, as_="admin", version="2.80")).status == 202
                await wait_for_status(c, server["id"], "preparing")
                assert (await abort(c, server["id"], await newest(c))).status == 202
                await asyncio.sleep(0.05)
                sim.clear()
            await wait_until_aborted(c, server)

    run(scenario())


def test_abort_queued_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            where = {"availability_zone": ":sim-001", "as_": "admin"}
            first, second = [await c.boot_active(**where) for _ in range(2)]
            await start_slow_migration(c, first["id"])
            assert (await act(c, second["id"], ACTION, ANY_HOST, as_="admin", version="2.80")).status == 202
            await wait_for_status(c, second["id"], "queued")
            assert (await abort(c, second["id"], await newest(c), as_="admin", version="2.64")).status == 400
            assert (await abort(c, second["id"], await newest(c), as_="admin")).status == 202
            after = await c.wait_until_settled(second["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", "sim-001")
            assert (await newest_migration(c, second["id"]))["status"] == "cancelled"
            held = await c.db.fetch("SELECT COUNT(*) AS n FROM consumers WHERE type = 'MIGRATION'")
            assert held == [{"n": 1}], "the one that runs"
            assert (await abort(c, first["id"], 1, as_="admin")).status == 202
            await c.wait_until_settled(first["id"])

    run(scenario())


def test_server_can_be_migrated_again_after_abort(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active(flavorRef=await make_flavor(c, "large", ram=9000))
            for _ in range(3):
                await start_slow_migration(c, server["id"])
                assert (await abort(c, server["id"], await newest(c))).status == 202
                await wait_until_aborted(c, server)
            with rules(c) as sim:
                sim.clear()
            assert (await act(c, server["id"], ACTION, ANY_HOST, as_="admin", version="2.80")).status == 202
            assert (await c.wait_until_settled(server["id"]))[HOST] != server[HOST]

    run(scenario())


@proves("POST /servers/{server_id}/migrations/{migration_id}/action#force_complete")
def test_force_complete_running_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            found = await start_slow_migration(c, server["id"])
            for _ in range(2):
                assert (await force(c, server["id"], await newest(c))).status == 202
            after = await c.wait_until_settled(server["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", found["to"])
            assert (await newest_migration(c, server["id"]))["status"] == "completed"
            await assert_only_on(c, server["id"], found["to"])

    run(scenario())


def test_migration_continues_if_host_cannot_force_complete(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            found = await start_slow_migration(c, server["id"])
            with rules(c) as sim:
                sim.add_failure("*", "hurry_migration", "error", 3, "not now")
            assert (await force(c, server["id"], await newest(c))).status == 202
            assert (await c.wait_until_settled(server["id"]))[HOST] == found["to"], "it is asked again"

    run(scenario())
