"""Servers whose operation ends while they are read show the new state, never the old state without a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.operations import views as operations
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud


async def read_while_operation_ends(
    c: FullCloud, monkeypatch: pytest.MonkeyPatch, path: str, step: str, method: str, action_path: str, body: Any = None
) -> Any:
    """Get a path; the operation ends after the servers are read and before the operations are read."""
    find_running = operations.find_running
    with rules(c) as sim:
        sim.add_failure("*", step, "hang", None, None)
        assert (await c.request(method, action_path, json=body)).status in (202, 204)

        async def find_running_after_end(reader: Any, server_ids: Any) -> Any:
            sim.clear()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await c.db.fetch("SELECT 1 FROM operations WHERE finished_at IS NULL"):
                    await asyncio.sleep(0.01)
            return await find_running(reader, server_ids)

        with monkeypatch.context() as patch:
            patch.setattr(operations, "find_running", find_running_after_end)
            return await c.get(path, as_="admin", version="2.96")


@pytest.mark.parametrize("many", [False, True])
def test_read_shows_stopped_server_when_stop_ends_during_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            path, action_path = f"/servers/{server_id}", f"/servers/{server_id}/action"
            listed = "/servers/detail?all_tenants=1"
            answer = await read_while_operation_ends(
                c, monkeypatch, listed if many else path, "power_off", "POST", action_path, {"os-stop": None}
            )
            shown = answer.json()["servers"][0] if many else answer.json()["server"]
            assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("SHUTOFF", None)

    run(scenario())


@pytest.mark.parametrize("many", [False, True])
def test_read_omits_server_when_delete_ends_during_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            path = f"/servers/{(await c.boot_active())['id']}"
            other = (await c.boot_active())["id"]
            listed = "/servers/detail?all_tenants=1&limit=1&sort_key=created_at&sort_dir=asc"
            answer = await read_while_operation_ends(
                c, monkeypatch, listed if many else path, "destroy", "DELETE", path
            )
            if not many:
                assert answer.status == 404
                return
            shown = answer.json()
            assert shown["servers"] == []
            # The next page is still found.
            following = shown["servers_links"][0]["href"].partition("/servers/detail")[2]
            rest = (await c.get(f"/servers/detail{following}", as_="admin", version="2.96")).json()["servers"]
            assert [server["id"] for server in rest] == [other]

    run(scenario())
