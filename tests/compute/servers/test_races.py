"""Concurrent requests on the same servers: only documented statuses, and all resources are released."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from tests.compute.servers.support import act, count_resources
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud


async def send_random_request(c: FullCloud, server_id: str, chance: random.Random) -> Any:
    path = f"/servers/{server_id}"
    await asyncio.sleep(chance.random() * 0.2)
    return await chance.choice(
        [
            lambda: act(c, server_id, "os-stop"),
            lambda: act(c, server_id, "os-start"),
            lambda: act(c, server_id, "reboot", {"type": "HARD"}),
            lambda: c.put(path, {"server": {"name": f"n{chance.random()}"}}),
            lambda: c.get(path),
            lambda: c.get("/servers/detail?status=ACTIVE&status=HARD_REBOOT"),
        ]
    )()


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_requests_on_the_same_servers(database_url: str, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        async with full_cloud(database_url) as c:
            before = await count_resources(c)
            servers = [(await c.boot())["id"] for _ in range(4)]
            # Each server is deleted at a random time, perhaps while it is being built.
            requests = [send_random_request(c, server_id, chance) for server_id in servers for _ in range(15)]
            requests += [delete_later(c, server_id, chance.random() * 0.3) for server_id in servers for _ in range(2)]
            chance.shuffle(requests)
            answers = Counter(answer.status for answer in await asyncio.gather(*requests))
            assert set(answers) <= {200, 202, 204, 404, 409}, answers
            assert answers[204] >= len(servers)
            for server_id in servers:
                await c.wait_until_deleted(server_id)
            assert {**await count_resources(c), "operations": 0} == {**before, "operations": 0}
            assert await c.db.fetch("SELECT * FROM operations WHERE finished_at IS NULL") == []

    async def delete_later(c: FullCloud, server_id: str, seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return await c.delete(f"/servers/{server_id}")

    run(scenario())


def test_concurrent_creates_and_deletes(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, quota__instances=8) as c:
            before = await count_resources(c)

            async def create_and_delete(seconds: float) -> int:
                await asyncio.sleep(seconds)
                server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
                answer = await c.post("/servers", {"server": server}, version="2.37")
                if answer.status == 202:
                    server_id = answer.json()["server"]["id"]
                    await asyncio.sleep(seconds / 3)
                    assert (await c.delete(f"/servers/{server_id}")).status == 204
                    await c.wait_until_deleted(server_id)
                return answer.status

            chance = random.Random(1)
            answers = Counter(await asyncio.gather(*(create_and_delete(chance.random() * 0.3) for _ in range(40))))
            assert set(answers) <= {202, 403}
            assert answers[202] >= 8
            assert {**await count_resources(c), "operations": 0} == {**before, "operations": 0}

    run(scenario())
