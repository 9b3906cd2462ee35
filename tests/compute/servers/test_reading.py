"""Servers whose operation ends while they are read: shown as they are then, never idle in the state before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.operations import views as operations
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole


async def read_across_the_end(
    c: Whole, monkeypatch: pytest.MonkeyPatch, path: str, step: str, method: str, asked: str, body: Any = None
) -> Any:
    """What a path answers when the operation ends between the read of the rows and that of the operations."""
    running_of = operations.running_of
    with rules(c) as sim:
        sim.add_failure("*", step, "hang", None, None)
        assert (await c.request(method, asked, json=body)).status in (202, 204)

        async def late(reader: Any, server_ids: Any) -> Any:
            sim.clear()
            async with asyncio.timeout(PATIENCE):
                while await c.db.fetch("SELECT 1 FROM operations WHERE finished_at IS NULL"):
                    await asyncio.sleep(0.01)
            return await running_of(reader, server_ids)

        with monkeypatch.context() as patch:
            patch.setattr(operations, "running_of", late)
            return await c.get(path, as_="admin", version="2.96")


@pytest.mark.parametrize("many", [False, True])
def test_after_the_end_of_a_stop(database_url: str, monkeypatch: pytest.MonkeyPatch, many: bool) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active())["id"]
            path, asked = f"/servers/{server_id}", f"/servers/{server_id}/action"
            listed = "/servers/detail?all_tenants=1"
            answer = await read_across_the_end(
                c, monkeypatch, listed if many else path, "power_off", "POST", asked, {"os-stop": None}
            )
            shown = answer.json()["servers"][0] if many else answer.json()["server"]
            assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("SHUTOFF", None)

    run(scenario())


@pytest.mark.parametrize("many", [False, True])
def test_after_the_end_of_a_delete(database_url: str, monkeypatch: pytest.MonkeyPatch, many: bool) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            path = f"/servers/{(await c.active())['id']}"
            other = (await c.active())["id"]
            listed = "/servers/detail?all_tenants=1&limit=1&sort_key=created_at&sort_dir=asc"
            answer = await read_across_the_end(c, monkeypatch, listed if many else path, "destroy", "DELETE", path)
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
