"""What operators cancel is undone, and the server is what it was before, unless it is to be deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kilonova.operations import request_cancel
from tests.compute.servers.moves import HOST, newest_action
from tests.compute.servers.support import act, rules
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole


async def cancelled(c: Whole, step: str, begin: Callable[[], Awaitable[str]]) -> dict[str, Any]:
    """The server after what was begun was cancelled amid a step of a host."""
    with rules(c) as sim:
        sim.add_failure("*", step, "hang", 1, None)
        server_id = await begin()
        async with asyncio.timeout(PATIENCE):
            while not any(rule.fired for rule in sim.all()):
                await asyncio.sleep(0.01)
        async with c.db.transaction() as tx:
            found = "SELECT id FROM operations WHERE finished_at IS NULL AND server_id = $1"
            assert await request_cancel(tx, await tx.fetch_value(found, server_id))
        sim.clear()
    async with asyncio.timeout(PATIENCE):
        while (shown := await c.show(server_id))["OS-EXT-STS:task_state"]:
            await asyncio.sleep(0.01)
    return shown


@pytest.mark.parametrize(
    "action, body, step",
    [
        ("os-stop", None, "power_off"),
        ("resize", {"flavorRef": "2"}, "park"),
        ("resize", {"flavorRef": "2"}, "receive"),
        ("shelve", None, "snapshot"),
        ("os-migrateLive", {"host": None, "block_migration": "auto"}, "migrate_live"),
    ],
)
def test_the_guest_runs_as_before(database_url: str, action: str, body: Any, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()

            async def begin() -> str:
                answer = await act(c, server["id"], action, body, as_="admin", version="2.95")
                assert answer.status == 202, answer.body
                return str(server["id"])

            after = await cancelled(c, step, begin)
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            assert await c.guests() == {server["id"]: (server[HOST], "running")}
            assert await c.kept() == []
            told = await newest_action(c, server["id"])
            assert told["message"] == "Error"
            assert "Cancelled by request" in [event["details"] for event in told["events"]]

    run(scenario())


def test_a_boot(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:

            async def begin() -> str:
                return str((await c.boot())["id"])

            after = await cancelled(c, "spawn", begin)
            assert after["status"] == "ERROR", "and can be deleted"
            assert after["fault"]["message"] == "Cancelled by request"
            assert await c.guests() == {}

    run(scenario())
