"""Resizes are confirmed in time, once, however many workers look after it."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.compute.duties import confirm_resizes, duties
from tests.compute.servers.moves import moved
from tests.compute.servers.support import act, rules, until
from tests.compute.servers.test_resizing import resize, resized
from tests.support import run
from tests.support.whole import Whole, whole

HOUR: dict[str, Any] = {"hosts": 2, "compute__resize_confirm_seconds": 3600}


async def confirms(c: Whole) -> list[dict[str, Any]]:
    return await c.db.fetch("SELECT * FROM operations WHERE kind = 'confirm_resize' ORDER BY seq")


async def pass_time(c: Whole, seconds: float) -> None:
    """As if everything had happened so much earlier."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET created_at = created_at - $1, finished_at = finished_at - $1", seconds)


async def status(c: Whole, server_id: str) -> str:
    shown: str = (await c.settled(server_id))["status"]
    return shown


def test_it_is_one_of_the_duties() -> None:
    assert confirm_resizes in duties()


def test_those_whose_time_is_over_are_confirmed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server, _ = await resized(c)
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []
            await pass_time(c, 3601)
            later, _ = await resized(c)
            await asyncio.gather(*(confirm_resizes.run(c.services) for _ in range(4)))
            assert await status(c, server["id"]) == "ACTIVE"
            (made,) = await confirms(c)
            assert made["server_id"] == server["id"]
            assert made["request_id"].startswith("req-")
            assert await status(c, later["id"]) == "VERIFY_RESIZE"
            listed = (await c.get(f"/servers/{server['id']}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed] == ["confirmResize", "resize", "create"]
            assert len({one["request_id"] for one in listed}) == 3

    run(scenario())


def test_migrated_stopped_and_locked_ones_too(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server_id = (await c.active())["id"]
            await moved(c, server_id, "os-stop", None)
            await moved(c, server_id, "migrate", None)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            await pass_time(c, 3601)
            await confirm_resizes.run(c.services)
            assert await status(c, server_id) == "SHUTOFF"

    run(scenario())


def test_it_is_off_by_default(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            await resized(c)
            await pass_time(c, 1e8)
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []

    run(scenario())


def test_one_that_something_happens_to_is_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server, _ = await resized(c)
            await pass_time(c, 3601)
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server["id"], "revertResize")).status == 202
                await until(c, server["id"], OS_EXT_STS__task_state="resize_reverting")
                await confirm_resizes.run(c.services)
                sim.clear()
            assert await status(c, server["id"]) == "ACTIVE"
            assert await confirms(c) == []
            # What waits now is another resize, whose time began anew.
            await resize(c, server["id"])
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []

    run(scenario())


def test_one_that_could_not_be_confirmed_is_tried_again_when_the_time_is_over_again(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **HOUR) as c:
            server, _ = await resized(c)
            await pass_time(c, 3601)
            with rules(c) as sim:
                sim.add_failure("*", "discard", "error", 1, None)
            await confirm_resizes.run(c.services)
            assert await status(c, server["id"]) == "VERIFY_RESIZE"
            await confirm_resizes.run(c.services)
            assert len(await confirms(c)) == 1
            await pass_time(c, 3601)
            await confirm_resizes.run(c.services)
            assert await status(c, server["id"]) == "ACTIVE"
            assert len(await confirms(c)) == 2

    run(scenario())
