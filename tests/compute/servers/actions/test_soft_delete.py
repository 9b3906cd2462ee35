"""Soft delete: visibility, quotas, restore, forceDelete, and the periodic reclaim."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.compute.operations.soft_delete import SoftDelete, SoftDeleteParams
from kilonova.compute.periodic import reclaim_deleted, tasks
from kilonova.operations import begin, request_cancel
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations
from tests.compute.servers.actions.test_rescue import rescue, rescue_image_of
from tests.compute.servers.actions.test_suspend import conflict_message, run_action, states
from tests.compute.servers.moves import HOST, make_reachable, make_unreachable, run_move
from tests.compute.servers.shelved import boot_shelved
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ACTION = "POST /servers/{server_id}/action#"
RECLAIM_AFTER_HOUR: dict[str, Any] = {"compute__reclaim_seconds": 3600}


async def soft_delete(c: FullCloud, server_id: str) -> dict[str, Any]:
    assert (await c.delete(f"/servers/{server_id}")).status == 204
    return await c.wait_until_settled(server_id)


async def list_names(c: FullCloud, query: str = "", as_: str = "member") -> list[str]:
    answer = await c.get(f"/servers{query}", as_=as_, version="2.96")
    assert answer.status == 200, answer.body
    return [server["name"] for server in answer.json()["servers"]]


@proves(ACTION + "restore", ACTION + "forceDelete")
def test_soft_delete_restore_and_force_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, quota__instances=1, **RECLAIM_AFTER_HOUR) as c:
            server_id = (await c.boot_active(name="web"))["id"]
            assert (await conflict_message(c, server_id, "restore")).endswith("vm_state active")
            assert states(await soft_delete(c, server_id)) == ("SOFT_DELETED", "soft-delete", 4)
            assert (await c.guests())[server_id][1] == "shutdown"
            assert await count_server_resources(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            assert await list_names(c) == []
            assert await list_names(c, "?status=SOFT_DELETED") == ["web"]
            for action in ("os-start", "pause", "shelve"):
                assert (await conflict_message(c, server_id, action)).endswith("vm_state soft-delete")
            assert states(await soft_delete(c, server_id)) == ("SOFT_DELETED", "soft-delete", 4)
            other = (await c.boot_active(name="other"))["id"]
            assert fault(await act(c, server_id, "restore"))[0] == 403, "the quota is used by another server"
            assert (await act(c, other, "forceDelete")).status == 202
            await c.wait_until_deleted(other)
            assert states(await run_action(c, server_id, "restore")) == ("ACTIVE", "active", 1)
            assert (await c.guests())[server_id][1] == "running"
            assert await list_names(c) == ["web"]
            await soft_delete(c, server_id)
            assert (await act(c, server_id, "forceDelete")).status == 202
            await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions", version="2.21")).json()
            actions = [entry["action"] for entry in listed["instanceActions"]]
            assert actions == ["delete", "delete", "restore", "delete", "create"]

    run(scenario())


def test_expired_soft_deleted_servers_are_reclaimed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **RECLAIM_AFTER_HOUR) as c:
            assert reclaim_deleted in tasks()
            expired, recent, active = [
                (await c.boot_active(name=name))["id"] for name in ("expired", "recent", "active")
            ]
            for server_id in (expired, recent):
                await soft_delete(c, server_id)
            await reclaim_deleted.run(c.services)
            async with c.db.transaction() as tx:
                sql = "UPDATE servers SET soft_deleted_at = soft_deleted_at - 3600 WHERE id = $1"
                await tx.execute(sql, expired)
            await asyncio.gather(*(reclaim_deleted.run(c.services) for _ in range(4)))
            await c.wait_until_deleted(expired)
            assert await count_server_resources(c, expired) == NO_RESOURCES
            deletes = await c.db.fetch("SELECT server_id, user_id, request_id FROM operations WHERE kind = 'delete'")
            assert [(row["server_id"], row["user_id"]) for row in deletes] == [(expired, "member-id")]
            assert deletes[0]["request_id"].startswith("req-")
            assert (await c.show(recent))["status"] == "SOFT_DELETED"
            assert (await c.show(active))["status"] == "ACTIVE"

    run(scenario())


def test_building_and_offloaded_servers_are_deleted_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **RECLAIM_AFTER_HOUR) as c:
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "hang", 1, None)
                building = (await c.boot())["id"]
                assert (await c.delete(f"/servers/{building}")).status == 204
                sim.clear()
            await c.wait_until_deleted(building)
            offloaded = (await boot_shelved(c))["id"]
            assert (await c.delete(f"/servers/{offloaded}")).status == 204
            await c.wait_until_deleted(offloaded)

    run(scenario())


def test_soft_delete_after_a_shelve_that_has_ended_deletes_at_once(database_url: str) -> None:
    """The request was accepted while the server was active, and its operation runs after the shelve."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **RECLAIM_AFTER_HOUR) as c:
            server_id = (await boot_shelved(c))["id"]
            async with c.db.transaction() as tx:
                await begin(tx, SoftDelete, params=SoftDeleteParams(), server_id=server_id, request_id="req-1")
            await c.wait_until_deleted(server_id)
            assert await count_server_resources(c, server_id) == NO_RESOURCES

    run(scenario())


def test_cancelled_soft_delete_after_a_resize_that_has_ended_keeps_the_guest_running(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **RECLAIM_AFTER_HOUR) as c:
            server_id = (await c.boot_active())["id"]
            await run_move(c, server_id, "resize", {"flavorRef": "2"})
            async with c.db.transaction() as tx:
                params = SoftDeleteParams()
                operation_id = await begin(tx, SoftDelete, params=params, server_id=server_id, request_id="req-1")
                await request_cancel(tx, operation_id)
            assert (await c.wait_until_settled(server_id))["status"] == "VERIFY_RESIZE"
            assert (await c.guests())[server_id][1] == "running"

    run(scenario())


def test_soft_delete_of_rescued_and_suspended_servers_and_on_unreachable_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT, **RECLAIM_AFTER_HOUR) as c:
            server = await c.boot_active()
            server_id = server["id"]
            await rescue(c, server_id)
            assert (await soft_delete(c, server_id))["status"] == "SOFT_DELETED"
            assert (await run_action(c, server_id, "restore"))["status"] == "ACTIVE"
            assert rescue_image_of(c, server) is None
            await run_action(c, server_id, "suspend")
            assert (await soft_delete(c, server_id))["status"] == "SOFT_DELETED"
            assert states(await run_action(c, server_id, "restore")) == ("ACTIVE", "active", 1)
            await make_unreachable(c, server[HOST])
            assert (await soft_delete(c, server_id))["status"] == "SOFT_DELETED"
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert (await c.guests())[server_id][1] == "shutdown"

    run(scenario())
