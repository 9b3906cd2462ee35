"""Hosts that answer but do not undo what they are asked to: operations end all the same, and deletes do not wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations import leftovers
from tests.compute.operations.test_silence import all_done
from tests.compute.servers.support import NOTHING, act, holdings, rules
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole

LIVE = {"host": None, "block_migration": "auto"}
# What is asked for, the step that fails, the one that is refused when it is undone, and what is left for later.
REFUSED = [
    ("migrate", None, "receive", "unpark", "restore guest"),
    ("migrate", None, "receive", "destroy", "clear guest"),
    ("shelve", None, "snapshot", "power_on", "restore guest"),
    ("os-migrateLive", LIVE, "migrate_live", "discard", "clear slot"),
    ("os-migrateLive", LIVE, "migrate_live", "stop_migration", None),
    ("os-migrateLive", LIVE, "migrate_live", "guests", None),
]
TABLE = pytest.mark.parametrize(("action", "body", "failing", "refused", "left"), REFUSED)


async def undoing(c: Whole, server_id: str, attempts: int) -> None:
    """Wait until the undo was tried so often."""
    sql = "SELECT 1 FROM operations WHERE server_id = $1 AND state = 'undoing' AND attempt >= $2"
    async with asyncio.timeout(PATIENCE):
        while not await c.db.fetch_value(sql, server_id, attempts):
            await asyncio.sleep(0.01)


async def kinds_left(c: Whole) -> list[str]:
    sql = "SELECT DISTINCT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"
    return [row["kind"] for row in await c.db.fetch(sql)]


@TABLE
def test_what_is_refused_for_ever_is_left_for_later(
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    body: Any,
    failing: str,
    refused: str,
    left: str | None,
) -> None:
    monkeypatch.setattr(leftovers, "REFUSALS", 2)

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await c.active()
            with rules(c) as sim:
                for step in (failing, refused):
                    sim.add_failure("*", step, "error", None, f"no {step}")
                assert (await act(c, server["id"], action, body, as_="admin", version="2.96")).status == 202
                shown = await c.settled(server["id"])
                host = server["OS-EXT-SRV-ATTR:host"]
                assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
                assert shown["fault"]["message"]
                assert await kinds_left(c) == ([left] if left else [])
                sim.clear()
            await all_done(c)
            assert await c.guests() == {server["id"]: (host, "running")}
            assert await c.kept() == []

    run(scenario())


@TABLE
def test_a_delete_does_not_wait_for_what_is_refused(
    sqlite_url: str, action: str, body: Any, failing: str, refused: str, left: str | None
) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure("*", failing, "error", None, None)
                # The last one destroys for the delete what the undo could not.
                times = 3 if refused == "destroy" else None
                sim.add_failure("*", refused, "error", times, f"no {refused}")
                assert (await act(c, server["id"], action, body, as_="admin", version="2.96")).status == 202
                await undoing(c, server["id"], attempts=2)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.gone(server["id"])
                sim.clear()
            await all_done(c)
            assert await holdings(c, server["id"]) == NOTHING
            assert await c.everything() == []

    run(scenario())


def test_nobody_goes_on_to_the_next_host_with_a_guest_that_is_still_put_aside(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "REFUSALS", 1)

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=3) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", 1, None)
                sim.add_failure("*", "unpark", "error", None, None)
                assert (await act(c, server["id"], "migrate", as_="admin", version="2.96")).status == 202
                shown = await c.settled(server["id"])
                assert shown["status"] == "ACTIVE"
                assert shown["fault"]["message"] == "The server's host could not undo what was begun"
                sim.clear()
            await all_done(c)
            assert await c.guests() == {server["id"]: (server["OS-EXT-SRV-ATTR:host"], "running")}

    run(scenario())


def test_a_host_that_never_gets_it_done_is_not_waited_for(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers all other questions."""
    monkeypatch.setattr(leftovers, "PING", 0.5)
    monkeypatch.setattr(leftovers, "DELAYS", 2)

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", None, None)
                sim.add_failure("*", "unpark", "hang", None, None)
                assert (await act(c, server["id"], "migrate", as_="admin", version="2.96")).status == 202
                assert (await c.settled(server["id"]))["status"] == "ACTIVE"
                assert await kinds_left(c) == ["restore guest"]
                sim.clear()
            await all_done(c)
            assert await c.guests() == {server["id"]: (server["OS-EXT-SRV-ATTR:host"], "running")}
            assert await c.kept() == []

    run(scenario())
