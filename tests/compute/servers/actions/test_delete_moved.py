"""Deletes of resized, shelved and moving servers: all hosts are cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kilonova.doctor import examine
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations, unfinished_kinds
from tests.compute.servers.moves import force_down, make_reachable, make_unreachable, newest_migration, run_move
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved, list_snapshots
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

SMALL_FLAVOR = {"flavorRef": "2"}


async def boot_resized(c: FullCloud) -> dict[str, Any]:
    server = await c.boot_active()
    shown = await run_move(c, server["id"], "resize", SMALL_FLAVOR)
    assert shown["status"] == "VERIFY_RESIZE", shown
    return shown


async def assert_deleted_completely(c: FullCloud, server_id: str) -> None:
    """The server is deleted, no resources remain on any host, and no operation is unfinished."""
    await c.wait_until_deleted(server_id)
    await finish_operations(c)
    assert await count_server_resources(c, server_id) == NO_RESOURCES
    assert await c.list_guests_and_slots() == []
    assert await list_snapshots(c, "admin") == []
    assert await c.db.fetch("SELECT uuid FROM consumers") == []
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET finished_at = 1")  # the doctor ignores recent operations
    assert await examine(c.db, await c.list_guests_and_slots()) == []


@proves("DELETE /servers/{server_id}")
@pytest.mark.parametrize("status", ["VERIFY_RESIZE", "SHELVED", "SHELVED_OFFLOADED"])
def test_delete_resized_or_shelved_server(database_url: str, status: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **(NO_OFFLOAD if status == "SHELVED" else {})) as c:
            server = await (boot_resized(c) if status == "VERIFY_RESIZE" else boot_shelved(c, status))
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await assert_deleted_completely(c, server["id"])
            if status == "VERIFY_RESIZE":
                assert (await newest_migration(c, server["id"]))["status"] == "confirmed"

    run(scenario())


@pytest.mark.parametrize("which", ["source_host", "dest_host"])
def test_delete_resized_server_with_one_host_down(database_url: str, which: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await boot_resized(c)
            host = await c.db.fetch_value(f"SELECT {which} FROM moves")
            await make_unreachable(c, host)
            await c.delete(f"/servers/{server['id']}")
            await c.wait_until_deleted(server["id"])
            assert await c.db.fetch("SELECT uuid FROM consumers") == []
            assert await unfinished_kinds(c) == ["clean_up_guest" if which == "dest_host" else "clean_up_slot"]
            await make_reachable(c, host)
            await assert_deleted_completely(c, server["id"])

    run(scenario())


@pytest.mark.parametrize("failing", ["destroy", "discard"])
def test_failed_delete_ends_the_resize(database_url: str, failing: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await boot_resized(c)
            with rules(c) as sim:
                sim.add_failure("*", failing, "error", 1, None)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "simulated failure" in shown["fault"]["details"]) == ("ERROR", True)
            await finish_operations(c)
            assert await c.list_slots() == []
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1
            assert (await newest_migration(c, server["id"]))["status"] == "confirmed"
            image = {"imageRef": c.image_id}
            assert (await run_move(c, server["id"], "rebuild", image, as_="member"))["status"] == "ACTIVE"
            assert (await run_move(c, server["id"], "resize", {"flavorRef": "3"}))["status"] == "VERIFY_RESIZE"
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await assert_deleted_completely(c, server["id"])

    run(scenario())


def test_failed_delete_keeps_the_image_of_a_shelved_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, None)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                assert (await c.wait_until_settled(server["id"]))["status"] == "ERROR"
            for action, body in (("os-stop", None), ("os-resetState", {"state": "active"})):
                assert (await act(c, server["id"], action, body, as_="admin")).status == 409
            assert len(await list_snapshots(c)) == 1
            assert (await run_move(c, server["id"], "unshelve", None))["status"] == "ACTIVE"
            assert (await run_move(c, server["id"], "shelve", None))["status"] == "SHELVED"
            await finish_operations(c)
            assert len(await list_snapshots(c)) == 1
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await assert_deleted_completely(c, server["id"])

    run(scenario())


# Deletes during a move: preparation, action, and the step of the host that hangs.


async def boot_active(c: FullCloud) -> dict[str, Any]:
    return await c.boot_active()


async def boot_on_down_host(c: FullCloud) -> dict[str, Any]:
    server = await c.boot_active()
    await force_down(c, server["OS-EXT-SRV-ATTR:host"])
    return server


ANY_HOST = {"host": None, "block_migration": "auto"}


@pytest.mark.parametrize(
    "prepare, action, body, step, task",
    [
        (boot_active, "resize", SMALL_FLAVOR, "power_off", "resize_migrating"),
        (boot_active, "resize", SMALL_FLAVOR, "park", "resize_migrating"),
        (boot_active, "resize", SMALL_FLAVOR, "receive", "resize_finish"),
        (boot_resized, "revertResize", None, "park", "resize_reverting"),
        (boot_resized, "revertResize", None, "unpark", "resize_reverting"),
        (boot_resized, "confirmResize", None, "discard", "resize_confirming"),
        (boot_active, "os-migrateLive", ANY_HOST, "expect", "migrating"),
        (boot_active, "os-migrateLive", ANY_HOST, "migrate_live", "migrating"),
        (boot_active, "shelve", None, "snapshot", "shelving_image_uploading"),
        (boot_active, "shelve", None, "destroy", "shelving_offloading"),
        (boot_shelved, "unshelve", None, "spawn", "spawning"),
        (boot_on_down_host, "evacuate", {}, "spawn", "rebuilding"),
    ],
)
def test_delete_during_a_move(
    database_url: str, prepare: Callable[[FullCloud], Awaitable[Any]], action: str, body: Any, step: str, task: str
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await prepare(c))["id"]
            with rules(c) as sim:
                sim.add_failure("*", step, "hang", 1, None)
                answer = await act(c, server_id, action, body, as_="admin", version="2.95")
                assert answer.status in (200, 202, 204), answer.body
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while not any(rule.fired for rule in sim.all()):
                        await asyncio.sleep(0.01)
                assert (await c.show(server_id))["OS-EXT-STS:task_state"] == task
                sim.add_failure("*", "destroy", "hang", None, None)  # keeps the server visible until it has been shown
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                assert (await c.show(server_id))["OS-EXT-STS:task_state"] == "deleting"
                sim.clear()
            await assert_deleted_completely(c, server_id)

    run(scenario())
