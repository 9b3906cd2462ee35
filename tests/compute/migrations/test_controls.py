"""Giving up a live migration, and having it end now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations import live_migrate
from kilonova.ids import new_id
from tests.compute.migrations.support import put_move
from tests.compute.servers.live import ACTION, ANYWHERE, at_home, begin, under_way
from tests.compute.servers.moves import HOST, migration, newest_action
from tests.compute.servers.support import act, make_flavor, rules
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.proves import proves
from tests.support.whole import Whole, whole

ERROR = {"type": "Failed", "message": "No valid host was found", "fault": None}
CANCEL = {"type": "Cancelled", "message": "Cancelled by request", "fault": None}


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)


async def abort(c: Cloud, server_id: str, number: Any, as_: str = "manager", version: str = "2.65") -> Any:
    return await c.delete(f"/servers/{server_id}/migrations/{number}", as_=as_, version=version)


async def force(c: Cloud, server_id: str, number: Any, as_: str = "manager", version: str = "2.22") -> Any:
    path = f"/servers/{server_id}/migrations/{number}/action"
    return await c.post(path, {"force_complete": None}, as_=as_, version=version)


async def newest(c: Cloud) -> int:
    number: int = await c.db.fetch_value("SELECT MAX(id) FROM moves")
    return number


# What is taken


async def put(c: Cloud, server_id: str, **values: Any) -> int:
    """The number of a migration that nobody carries out."""
    operation_id = await put_move(c, server_id, **values)
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET kind = 'live_migrate' WHERE id = $1", operation_id)
    return await newest(c)


@pytest.mark.parametrize(
    "values, early, late, forced",
    [
        ({"step": "choose host"}, 400, 202, 400),
        ({"step": "claim"}, 400, 202, 400),
        ({"step": "take turn", "state": "waiting"}, 400, 202, 400),
        ({"step": "prepare destination"}, 400, 202, 400),
        ({"step": "bind ports"}, 400, 202, 400),
        ({"step": "migrate guest"}, 202, 202, 202),
        ({"step": "move ports"}, 400, 400, 400),
        ({"step": "hand over"}, 400, 400, 400),
        ({"step": "migrate guest", "state": "undoing", "error": ERROR}, 400, 400, 400),
        ({"step": "migrate guest", "state": "undoing", "error": CANCEL}, 202, 202, 202),
    ],
)
def test_in_which_states(database_url: str, values: dict[str, Any], early: int, late: int, forced: int) -> None:
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


def test_what_is_not_there(database_url: str) -> None:
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


def test_a_resize_is_no_live_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            server_id = new_id()
            await put_server(c.db, server_id, host="host1")
            await put_move(c, server_id, "resize", step="park guest")
            for control in (abort, force):
                assert (await control(c, server_id, await newest(c))).status == 409

    run(scenario())


# What comes of it


async def given_up(c: Whole, server: dict[str, Any]) -> None:
    after = await c.settled(server["id"])
    assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
    assert "fault" not in after, "it was wanted"
    await at_home(c, server["id"], server[HOST])
    assert (await migration(c, server["id"]))["status"] == "cancelled"
    action = await newest_action(c, server["id"])
    assert (action["action"], action["message"]) == ("live-migration", "Error")
    assert "Cancelled by request" in [event["details"] for event in action["events"]]


@proves("DELETE /servers/{server_id}/migrations/{migration_id}")
def test_one_that_runs_is_given_up(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            await begin(c, server["id"])
            number = await newest(c)
            assert (await abort(c, server["id"], number, version="2.24")).status == 202
            await given_up(c, server)
            assert (await abort(c, server["id"], number)).status == 409

    run(scenario())


def test_what_is_being_given_up_is_not_finished(database_url: str) -> None:
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


def test_one_that_is_being_prepared_is_given_up(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure("*", "expect", "hang", None, None)
                assert (await act(c, server["id"], ACTION, ANYWHERE, as_="admin", version="2.80")).status == 202
                await under_way(c, server["id"], "preparing")
                assert (await abort(c, server["id"], await newest(c))).status == 202
                await asyncio.sleep(0.05)
                sim.clear()
            await given_up(c, server)

    run(scenario())


def test_one_that_is_queued_is_given_up(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            where = {"availability_zone": ":sim-001", "as_": "admin"}
            first, second = [await c.active(**where) for _ in range(2)]
            await begin(c, first["id"])
            assert (await act(c, second["id"], ACTION, ANYWHERE, as_="admin", version="2.80")).status == 202
            await under_way(c, second["id"], "queued")
            assert (await abort(c, second["id"], await newest(c), as_="admin", version="2.64")).status == 400
            assert (await abort(c, second["id"], await newest(c), as_="admin")).status == 202
            after = await c.settled(second["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", "sim-001")
            assert (await migration(c, second["id"]))["status"] == "cancelled"
            held = await c.db.fetch("SELECT COUNT(*) AS n FROM consumers WHERE type = 'MIGRATION'")
            assert held == [{"n": 1}], "the one that runs"
            assert (await abort(c, first["id"], 1, as_="admin")).status == 202
            await c.settled(first["id"])

    run(scenario())


def test_what_was_given_up_can_be_done_again(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active(flavorRef=await make_flavor(c, "large", ram=9000))
            for _ in range(3):
                await begin(c, server["id"])
                assert (await abort(c, server["id"], await newest(c))).status == 202
                await given_up(c, server)
            with rules(c) as sim:
                sim.clear()
            assert (await act(c, server["id"], ACTION, ANYWHERE, as_="admin", version="2.80")).status == 202
            assert (await c.settled(server["id"]))[HOST] != server[HOST]

    run(scenario())


@proves("POST /servers/{server_id}/migrations/{migration_id}/action#force_complete")
def test_one_that_runs_ends_now(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            found = await begin(c, server["id"])
            for _ in range(2):
                assert (await force(c, server["id"], await newest(c))).status == 202
            after = await c.settled(server["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", found["to"])
            assert (await migration(c, server["id"]))["status"] == "completed"
            await at_home(c, server["id"], found["to"])

    run(scenario())


def test_who_cannot_be_hurried_goes_on(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            found = await begin(c, server["id"])
            with rules(c) as sim:
                sim.add_failure("*", "hurry_migration", "error", 3, "not now")
            assert (await force(c, server["id"], await newest(c))).status == 202
            assert (await c.settled(server["id"]))[HOST] == found["to"], "it is asked again"

    run(scenario())
