"""Periodic confirmation of resizes: when due, and once for any number of workers."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.compute.periodic import confirm_resizes, tasks
from tests.compute.servers.actions.test_resize import boot_resized, resize
from tests.compute.servers.moves import run_move
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

HOUR: dict[str, Any] = {"hosts": 2, "compute__resize_confirm_seconds": 3600}


async def confirms(c: FullCloud) -> list[dict[str, Any]]:
    return await c.db.fetch("SELECT * FROM operations WHERE kind = 'confirm_resize' ORDER BY seq")


async def pass_time(c: FullCloud, seconds: float) -> None:
    """Move all times in the database into the past."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET created_at = created_at - $1, finished_at = finished_at - $1", seconds)


async def status(c: FullCloud, server_id: str) -> str:
    shown: str = (await c.wait_until_settled(server_id))["status"]
    return shown


def test_is_a_periodic_task() -> None:
    assert confirm_resizes in tasks()


def test_due_resizes_are_confirmed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server, _ = await boot_resized(c)
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []
            await pass_time(c, 3601)
            later, _ = await boot_resized(c)
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


def test_migrated_stopped_and_locked_servers_are_confirmed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server_id = (await c.boot_active())["id"]
            await run_move(c, server_id, "os-stop", None)
            await run_move(c, server_id, "migrate", None)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            await pass_time(c, 3601)
            await confirm_resizes.run(c.services)
            assert await status(c, server_id) == "SHUTOFF"

    run(scenario())


def test_is_off_by_default(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            await boot_resized(c)
            await pass_time(c, 1e8)
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []

    run(scenario())


def test_servers_with_recent_operations_are_skipped(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server, _ = await boot_resized(c)
            await pass_time(c, 3601)
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server["id"], "revertResize")).status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="resize_reverting")
                await confirm_resizes.run(c.services)
                sim.clear()
            assert await status(c, server["id"]) == "ACTIVE"
            assert await confirms(c) == []
            # This is another resize, with its own interval.
            await resize(c, server["id"])
            await confirm_resizes.run(c.services)
            assert await confirms(c) == []

    run(scenario())


def test_failed_confirmation_is_retried_after_the_interval(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server, _ = await boot_resized(c)
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
