"""lock and unlock: ownership, refused actions, and the fields `locked` and `locked_reason`."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.support import act
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ACTION = "POST /servers/{server_id}/action#"


async def lock(c: FullCloud, server_id: str, as_: str = "member", reason: str | None = None) -> None:
    body = {"locked_reason": reason} if reason else None
    answer = await act(c, server_id, "lock", body, as_=as_, version="2.73")
    assert (answer.status, answer.body) == (202, b""), answer.body


async def unlock(c: FullCloud, server_id: str, as_: str = "member") -> int:
    return int((await act(c, server_id, "unlock", as_=as_)).status)


async def shown_lock(c: FullCloud, server_id: str) -> tuple[Any, Any]:
    shown = await c.show(server_id, as_="member")
    return shown["locked"], shown["locked_reason"]


@proves(ACTION + "lock", ACTION + "unlock")
def test_lock_of_administrator_can_be_removed_by_administrators_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            await lock(c, server_id, reason="mine")
            assert await shown_lock(c, server_id) == (True, "mine")
            await lock(c, server_id, reason="again")
            assert await shown_lock(c, server_id) == (True, "mine")
            assert await unlock(c, server_id) == 202
            assert await shown_lock(c, server_id) == (False, None)
            assert await unlock(c, server_id) == 202
            await lock(c, server_id)
            await lock(c, server_id, "admin", "theirs")
            assert await shown_lock(c, server_id) == (True, "theirs")
            assert await unlock(c, server_id, "member") == 403
            assert await unlock(c, server_id, "manager") == 403
            assert await shown_lock(c, server_id) == (True, "theirs")
            assert await unlock(c, server_id, "project-admin") == 202
            await lock(c, server_id)
            assert await unlock(c, server_id, "admin") == 202
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [entry["action"] for entry in listed[:3]] == ["unlock", "lock", "unlock"]

    run(scenario())


def test_locked_server_refuses_actions_of_members(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            await lock(c, server_id)
            before = await c.db.fetch_value("SELECT COUNT(*) FROM operations")
            for action, body in (
                ("os-start", None),
                ("os-stop", None),
                ("reboot", {"type": "HARD"}),
                ("pause", None),
                ("unpause", None),
                ("suspend", None),
                ("resume", None),
                ("rescue", None),
                ("unrescue", None),
                ("shelve", None),
                ("unshelve", None),
                ("resize", {"flavorRef": "2"}),
                ("confirmResize", None),
                ("revertResize", None),
                ("rebuild", {"imageRef": c.image_id}),
                ("changePassword", {"adminPass": "x"}),
                ("trigger_crash_dump", None),
                ("forceDelete", None),
                ("restore", None),
            ):
                status, _, message = fault(await act(c, server_id, action, body, version="2.90"))
                assert (status, message) == (409, f"Instance {server_id} is locked"), action
            assert (await c.delete(f"/servers/{server_id}")).status == 409
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
            assert (await act(c, server_id, "pause", as_="admin")).status == 202
            assert (await c.wait_until_settled(server_id))["status"] == "PAUSED"

    run(scenario())


def test_locked_server_is_copied_and_tagged(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            await lock(c, server_id)
            for action, body in (
                ("createImage", {"name": "image"}),
                ("createBackup", {"name": "backup", "backup_type": "daily", "rotation": 1}),
            ):
                assert (await act(c, server_id, action, body, version="2.90")).status == 202, action
                await c.wait_until_settled(server_id)
            tags = f"/servers/{server_id}/tags"
            assert (await c.put(tags, {"tags": ["a", "b"]}, version="2.90")).status == 200
            assert (await c.put(f"{tags}/c", None, version="2.90")).status == 201
            assert (await c.delete(f"{tags}/a", version="2.90")).status == 204
            assert (await c.get(tags, version="2.90")).json() == {"tags": ["b", "c"]}
            assert (await c.delete(tags, version="2.90")).status == 204

    run(scenario())


def test_lock_bodies_by_version_and_permissions(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            for body in ({"locked_reason": ""}, {"locked_reason": "x" * 256}, {"locked_reason": 1}, {"more": 1}, "x"):
                assert fault(await act(c, server_id, "lock", body, version="2.73"))[0] == 400, body
            old: tuple[Any, ...] = (None, {"locked_reason": "ignored"}, "whatever")
            for ignored in old:
                assert (await act(c, server_id, "lock", ignored, version="2.72")).status == 202
                assert await shown_lock(c, server_id) == (True, None)
            for caller, status in (("reader", 403), ("other", 404), (None, 401)):
                for action in ("lock", "unlock"):
                    assert (await act(c, server_id, action, as_=caller)).status == status, (caller, action)
            shown = await c.show(server_id, as_="member", version="2.72")
            assert "locked_reason" not in shown
            assert shown["locked"]
            assert "locked" not in await c.show(server_id, as_="member", version="2.8")

    run(scenario())
