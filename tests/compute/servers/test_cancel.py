"""Cancelled operations are undone: the server is as before, or in error if it was being built."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kilonova.operations import request_cancel
from tests.compute.servers.moves import HOST, newest_action
from tests.compute.servers.support import act, rules
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud


async def cancel_during_step(c: FullCloud, step: str, begin: Callable[[], Awaitable[str]]) -> dict[str, Any]:
    """Begin an operation, cancel it while a host runs the step, and return the server after the undo."""
    with rules(c) as sim:
        sim.add_failure("*", step, "hang", 1, None)
        server_id = await begin()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not any(rule.fired for rule in sim.all()):
                await asyncio.sleep(0.01)
        async with c.db.transaction() as tx:
            running = "SELECT id FROM operations WHERE finished_at IS NULL AND server_id = $1"
            assert await request_cancel(tx, await tx.fetch_value(running, server_id))
        sim.clear()
    async with asyncio.timeout(TIMEOUT_SECONDS):
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
def test_cancelled_action_leaves_guest_running(database_url: str, action: str, body: Any, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()

            async def begin() -> str:
                answer = await act(c, server["id"], action, body, as_="admin", version="2.95")
                assert answer.status == 202, answer.body
                return str(server["id"])

            after = await cancel_during_step(c, step, begin)
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            assert await c.guests() == {server["id"]: (server[HOST], "running")}
            assert await c.list_slots() == []
            action_shown = await newest_action(c, server["id"])
            assert action_shown["message"] == "Error"
            assert "Cancelled by request" in [event["details"] for event in action_shown["events"]]

    run(scenario())


def test_cancelled_boot_leaves_server_in_error(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:

            async def begin() -> str:
                return str((await c.boot())["id"])

            after = await cancel_during_step(c, "spawn", begin)
            assert after["status"] == "ERROR"
            assert after["fault"]["message"] == "Cancelled by request"
            assert await c.guests() == {}

    run(scenario())
