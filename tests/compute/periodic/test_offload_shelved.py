"""Periodic offload of shelved servers: when due, and once for any number of workers."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import clock
from kilonova.compute.periodic import offload_shelved, tasks
from tests.compute.servers.moves import HOST, run_move
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

HOUR: dict[str, Any] = {"compute__shelved_offload_seconds": 3600}


async def offloads(c: FullCloud) -> list[dict[str, Any]]:
    return await c.db.fetch("SELECT * FROM operations WHERE kind = 'shelve_offload' ORDER BY seq")


async def pass_time(c: FullCloud, seconds: float) -> None:
    """Move all times in the database into the past."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE servers SET shelved_at = shelved_at - $1", seconds)
        await tx.execute("UPDATE operations SET created_at = created_at - $1, finished_at = finished_at - $1", seconds)


def test_is_a_periodic_task() -> None:
    assert offload_shelved in tasks()


def test_due_servers_are_offloaded(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server_id = (await boot_shelved(c, "SHELVED"))["id"]
            await offload_shelved.run(c.services)
            assert await offloads(c) == []
            await pass_time(c, 3600)
            later = await boot_shelved(c, "SHELVED")
            await asyncio.gather(*(offload_shelved.run(c.services) for _ in range(4)))
            shown = await c.wait_until_settled(server_id)
            assert (shown["status"], shown[HOST]) == ("SHELVED_OFFLOADED", None)
            (made,) = await offloads(c)
            assert made["server_id"] == server_id
            assert made["request_id"].startswith("req-")
            assert (await c.show(later["id"]))["status"] == "SHELVED"
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed] == ["shelveOffload", "shelve", "create"]

    run(scenario())


def test_servers_with_unfinished_operations_are_skipped(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **HOUR) as c:
            server_id = (await boot_shelved(c, "SHELVED"))["id"]
            await pass_time(c, 3600)
            with rules(c) as sim:
                sim.add_failure("*", "power_on", "hang", None, None)
                unshelving = asyncio.create_task(run_move(c, server_id, "unshelve", None))
                while not any(rule.fired for rule in sim.all()):
                    await asyncio.sleep(0.01)
                await offload_shelved.run(c.services)
                sim.clear()
            assert (await unshelving)["status"] == "ACTIVE"
            await offload_shelved.run(c.services)
            assert await offloads(c) == []

    run(scenario())


def test_failed_offload_is_retried_later(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, "the disk is on fire")
            server = await boot_shelved(c, "SHELVED")
            assert server["fault"]["message"] == "The host could not destroy guest: refused by the hypervisor"
            await offload_shelved.run(c.services)
            assert len(await offloads(c)) == 1
            await pass_time(c, 301)
            await offload_shelved.run(c.services)
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("SHELVED_OFFLOADED", False)
            assert len(await offloads(c)) == 2

    run(scenario())


def test_failed_offload_of_earlier_shelving_does_not_delay_retry(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, compute__shelved_offload_seconds=1) as c:
            server_id = (await boot_shelved(c, "SHELVED"))["id"]
            for times in (1, 2):
                await pass_time(c, 1)
                await offload_shelved.run(c.services)
                assert (await c.wait_until_settled(server_id))["status"] == "SHELVED_OFFLOADED"
                assert len(await offloads(c)) == times
                await run_move(c, server_id, "unshelve", None)
                await run_move(c, server_id, "shelve", None)

    run(scenario())


def test_negative_interval_never_offloads(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            await boot_shelved(c, "SHELVED")
            await pass_time(c, clock.now())
            await offload_shelved.run(c.services)
            assert await offloads(c) == []

    run(scenario())
