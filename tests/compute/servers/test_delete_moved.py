"""Deleting servers that are resized, shelved, or on their way: nothing of them stays on any host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kilonova.doctor import examine
from tests.compute.operations.test_silence import QUICK, all_done, unfinished
from tests.compute.servers.moves import find_again, force_down, lose, migration, moved
from tests.compute.servers.shelved import KEPT, shelved, snapshots
from tests.compute.servers.support import NOTHING, act, holdings, rules
from tests.support import run
from tests.support.proves import proves
from tests.support.whole import PATIENCE, Whole, whole

SMALL = {"flavorRef": "2"}


async def resized(c: Whole) -> dict[str, Any]:
    server = await c.active()
    shown = await moved(c, server["id"], "resize", SMALL)
    assert shown["status"] == "VERIFY_RESIZE", shown
    return shown


async def gone_for_good(c: Whole, server_id: str) -> None:
    """Deleted, and nothing is held for it anywhere, nor left to be done."""
    await c.gone(server_id)
    await all_done(c)
    assert await holdings(c, server_id) == NOTHING
    assert await c.everything() == []
    assert await snapshots(c, "admin") == []
    assert await c.db.fetch("SELECT uuid FROM consumers") == []
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET finished_at = 1")  # what has just ended is not compared
    assert await examine(c.db, await c.everything()) == []


@proves("DELETE /servers/{server_id}")
@pytest.mark.parametrize("status", ["VERIFY_RESIZE", "SHELVED", "SHELVED_OFFLOADED"])
def test_at_rest(database_url: str, status: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **(KEPT if status == "SHELVED" else {})) as c:
            server = await (resized(c) if status == "VERIFY_RESIZE" else shelved(c, status))
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await gone_for_good(c, server["id"])
            if status == "VERIFY_RESIZE":
                assert (await migration(c, server["id"]))["status"] == "confirmed"

    run(scenario())


@pytest.mark.parametrize("which", ["source_host", "dest_host"])
def test_a_resized_server_one_of_whose_hosts_is_down(database_url: str, which: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await resized(c)
            host = await c.db.fetch_value(f"SELECT {which} FROM moves")
            await lose(c, host)
            await c.delete(f"/servers/{server['id']}")
            await c.gone(server["id"])
            assert await c.db.fetch("SELECT uuid FROM consumers") == []
            assert await unfinished(c) == ["clear guest" if which == "dest_host" else "clear slot"]
            await find_again(c, host)
            await gone_for_good(c, server["id"])

    run(scenario())


# While something happens to them: what is done first, what is asked for, and the step of a host that does not end.


async def active(c: Whole) -> dict[str, Any]:
    return await c.active()


async def on_a_lost_host(c: Whole) -> dict[str, Any]:
    server = await c.active()
    await force_down(c, server["OS-EXT-SRV-ATTR:host"])
    return server


LIVE = {"host": None, "block_migration": "auto"}


@pytest.mark.parametrize(
    "prepare, action, body, step, task",
    [
        (active, "resize", SMALL, "power_off", "resize_migrating"),
        (active, "resize", SMALL, "park", "resize_migrating"),
        (active, "resize", SMALL, "receive", "resize_finish"),
        (resized, "revertResize", None, "park", "resize_reverting"),
        (resized, "revertResize", None, "unpark", "resize_reverting"),
        (resized, "confirmResize", None, "discard", "resize_confirming"),
        (active, "os-migrateLive", LIVE, "expect", "migrating"),
        (active, "os-migrateLive", LIVE, "migrate_live", "migrating"),
        (active, "shelve", None, "snapshot", "shelving_image_uploading"),
        (active, "shelve", None, "destroy", "shelving_offloading"),
        (shelved, "unshelve", None, "spawn", "spawning"),
        (on_a_lost_host, "evacuate", {}, "spawn", "rebuilding"),
    ],
)
def test_under_way(
    database_url: str, prepare: Callable[[Whole], Awaitable[Any]], action: str, body: Any, step: str, task: str
) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await prepare(c))["id"]
            with rules(c) as sim:
                sim.add_failure("*", step, "hang", 1, None)
                answer = await act(c, server_id, action, body, as_="admin", version="2.95")
                assert answer.status in (200, 202, 204), answer.body
                async with asyncio.timeout(PATIENCE):
                    while not any(rule.fired for rule in sim.all()):
                        await asyncio.sleep(0.01)
                assert (await c.show(server_id))["OS-EXT-STS:task_state"] == task
                sim.add_failure("*", "destroy", "hang", None, None)  # so that it is not gone before anybody looks
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                assert (await c.show(server_id))["OS-EXT-STS:task_state"] == "deleting"
                sim.clear()
            await gone_for_good(c, server_id)

    run(scenario())
