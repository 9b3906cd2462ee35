"""Shelved servers leave their hosts in time, once, however many workers look after it."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import clock
from kilonova.compute.duties import duties, offload_shelved
from tests.compute.servers.moves import HOST, moved
from tests.compute.servers.shelved import KEPT, shelved
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.whole import Whole, whole

HOUR: dict[str, Any] = {"compute__shelved_offload_seconds": 3600}


async def offloads(c: Whole) -> list[dict[str, Any]]:
    return await c.db.fetch("SELECT * FROM operations WHERE kind = 'shelve_offload' ORDER BY seq")


async def pass_time(c: Whole, seconds: float) -> None:
    """As if everything had happened so much earlier."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE servers SET shelved_at = shelved_at - $1", seconds)
        await tx.execute("UPDATE operations SET created_at = created_at - $1, finished_at = finished_at - $1", seconds)


def test_it_is_one_of_the_duties() -> None:
    assert offload_shelved in duties()


def test_those_whose_time_is_over_leave(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server_id = (await shelved(c, "SHELVED"))["id"]
            await offload_shelved.run(c.services)
            assert await offloads(c) == []
            await pass_time(c, 3600)
            later = await shelved(c, "SHELVED")
            await asyncio.gather(*(offload_shelved.run(c.services) for _ in range(4)))
            shown = await c.settled(server_id)
            assert (shown["status"], shown[HOST]) == ("SHELVED_OFFLOADED", None)
            (made,) = await offloads(c)
            assert made["server_id"] == server_id
            assert made["request_id"].startswith("req-")
            assert (await c.show(later["id"]))["status"] == "SHELVED"
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed] == ["shelveOffload", "shelve", "create"]

    run(scenario())


def test_one_that_something_happens_to_is_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server_id = (await shelved(c, "SHELVED"))["id"]
            await pass_time(c, 3600)
            with rules(c) as sim:
                sim.add_failure("*", "power_on", "hang", None, None)
                unshelving = asyncio.create_task(moved(c, server_id, "unshelve", None))
                while not any(rule.fired for rule in sim.all()):
                    await asyncio.sleep(0.01)
                await offload_shelved.run(c.services)
                sim.clear()
            assert (await unshelving)["status"] == "ACTIVE"
            await offload_shelved.run(c.services)
            assert await offloads(c) == []

    run(scenario())


def test_one_that_could_not_leave_is_tried_again_after_a_while(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, "the disk is on fire")
            server = await shelved(c, "SHELVED")
            assert server["fault"]["message"] == "The host could not destroy guest: refused by the hypervisor"
            await offload_shelved.run(c.services)
            assert len(await offloads(c)) == 1
            await pass_time(c, 301)
            await offload_shelved.run(c.services)
            shown = await c.settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("SHELVED_OFFLOADED", False)
            assert len(await offloads(c)) == 2

    run(scenario())


def test_an_earlier_stay_on_the_shelf_does_not_count(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, compute__shelved_offload_seconds=1) as c:
            server_id = (await shelved(c, "SHELVED"))["id"]
            for times in (1, 2):
                await pass_time(c, 1)
                await offload_shelved.run(c.services)
                assert (await c.settled(server_id))["status"] == "SHELVED_OFFLOADED"
                assert len(await offloads(c)) == times
                await moved(c, server_id, "unshelve", None)
                await moved(c, server_id, "shelve", None)

    run(scenario())


def test_never_is_never(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            await shelved(c, "SHELVED")
            await pass_time(c, clock.now())
            await offload_shelved.run(c.services)
            assert await offloads(c) == []

    run(scenario())
