"""Locks: whose they are, what they keep from whom, and how they are told of."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.support import act
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import Whole, whole

ACTION = "POST /servers/{server_id}/action#"


async def lock(c: Whole, server_id: str, as_: str = "member", reason: str | None = None) -> None:
    body = {"locked_reason": reason} if reason else None
    answer = await act(c, server_id, "lock", body, as_=as_, version="2.73")
    assert (answer.status, answer.body) == (202, b""), answer.body


async def unlock(c: Whole, server_id: str, as_: str = "member") -> int:
    return int((await act(c, server_id, "unlock", as_=as_)).status)


async def told(c: Whole, server_id: str) -> tuple[Any, Any]:
    shown = await c.show(server_id, as_="member")
    return shown["locked"], shown["locked_reason"]


@proves(ACTION + "lock", ACTION + "unlock")
def test_a_lock_belongs_to_who_made_it(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active(networks="none"))["id"]
            await lock(c, server_id, reason="mine")
            assert await told(c, server_id) == (True, "mine")
            await lock(c, server_id, reason="again")
            assert await told(c, server_id) == (True, "mine")
            assert await unlock(c, server_id) == 202
            assert await told(c, server_id) == (False, None)
            assert await unlock(c, server_id) == 202
            await lock(c, server_id)
            await lock(c, server_id, "admin", "theirs")
            assert await told(c, server_id) == (True, "theirs")
            assert await unlock(c, server_id, "member") == 403
            assert await unlock(c, server_id, "manager") == 403
            assert await told(c, server_id) == (True, "theirs")
            assert await unlock(c, server_id, "project-admin") == 202
            await lock(c, server_id)
            assert await unlock(c, server_id, "admin") == 202
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed[:3]] == ["unlock", "lock", "unlock"]

    run(scenario())


def test_what_a_lock_keeps_from_members(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active(networks="none"))["id"]
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
                ("createBackup", {"name": "b", "backup_type": "daily", "rotation": 1}),
                ("forceDelete", None),
                ("restore", None),
            ):
                status, _, message = fault(await act(c, server_id, action, body, version="2.90"))
                assert (status, message) == (409, f"Instance {server_id} is locked"), action
            assert (await c.delete(f"/servers/{server_id}")).status == 409
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
            assert (await act(c, server_id, "pause", as_="admin")).status == 202
            assert (await c.settled(server_id))["status"] == "PAUSED"

    run(scenario())


def test_forms_and_rights(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active(networks="none"))["id"]
            for body in ({"locked_reason": ""}, {"locked_reason": "x" * 256}, {"locked_reason": 1}, {"more": 1}, "x"):
                assert fault(await act(c, server_id, "lock", body, version="2.73"))[0] == 400, body
            old: tuple[Any, ...] = (None, {"locked_reason": "ignored"}, "whatever")
            for ignored in old:
                assert (await act(c, server_id, "lock", ignored, version="2.72")).status == 202
                assert await told(c, server_id) == (True, None)
            for who, status in (("reader", 403), ("other", 404), (None, 401)):
                for action in ("lock", "unlock"):
                    assert (await act(c, server_id, action, as_=who)).status == status, (who, action)
            shown = await c.show(server_id, as_="member", version="2.72")
            assert "locked_reason" not in shown
            assert shown["locked"]
            assert "locked" not in await c.show(server_id, as_="member", version="2.8")

    run(scenario())
