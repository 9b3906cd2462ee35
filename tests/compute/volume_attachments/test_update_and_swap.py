"""Updates of volume attachments, extension of attached volumes, and volume swap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.compute.servers.support import rules
from tests.compute.test_instance_actions import actions
from tests.compute.volume_attachments.support import (
    NEWEST,
    attach,
    attachments,
    create_multiattach_volume,
    guest_volumes,
    path,
    wait_until_idle,
)
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import make_volume, show_volume, volume_action, wait_for_volume

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
CONTENT = b"what somebody wrote" * 1000


async def put(
    c: FullCloud, server_id: str, volume_id: str, *, as_: str = "member", version: str = NEWEST, **keys: Any
) -> Any:
    return await c.put(path(server_id, volume_id), {"volumeAttachment": keys}, as_=as_, version=version)


async def file_of(c: FullCloud, volume_id: str) -> Path:
    data_id = await c.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
    return Path(c.services.config.data) / "volumes" / f"{volume_id}.{data_id}"


@proves("PUT /servers/{server_id}/os-volume_attachments/{volume_id}")
def test_update_delete_on_termination(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id, tag="data")
            for flag in (True, False, "yes"):
                answer = await put(c, server_id, volume_id, volumeId=volume_id, delete_on_termination=flag)
                assert (answer.status, answer.body) == (202, b"")
                (shown,) = await attachments(c, server_id)
                assert shown["delete_on_termination"] is (flag is not False)
            same = {"id": volume_id, "serverId": server_id, "device": "/dev/vdb", "tag": "data"}
            assert (await put(c, server_id, volume_id, volumeId=volume_id, **same)).status == 202
            changes = {"id": UNKNOWN_ID, "serverId": UNKNOWN_ID, "device": "/dev/vdc", "tag": "other"}
            for key, value in changes.items():
                answer = await put(c, server_id, volume_id, volumeId=volume_id, **{**same, key: value})
                assert answer.status == 400
                assert key in fault(answer)[2]
            assert (await put(c, server_id, UNKNOWN_ID, volumeId=UNKNOWN_ID)).status == 404
            for caller, status in (("reader", 403), ("other", 404)):
                assert (await put(c, server_id, volume_id, volumeId=volume_id, as_=caller)).status == status
            old = await put(c, server_id, volume_id, volumeId=volume_id, delete_on_termination=True, version="2.84")
            assert old.status == 400

    run(scenario())


def test_extended_volume_grows_in_guest(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            await volume_action(c, volume_id, "os-extend", {"new_size": 2}, as_="member")
            assert (await wait_for_volume(c, volume_id, "in-use"))["size"] == 2
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (await actions(c, server_id))[0]["action"] != "extend_volume":
                    await asyncio.sleep(0.01)
            await wait_until_idle(c, server_id)
            sizes = await c.db.fetch("SELECT volume_size FROM block_devices")
            assert [row["volume_size"] for row in sizes] == [2]

    run(scenario())


@pytest.mark.parametrize("size", [1, 2])
def test_swap(sqlite_url: str, size: int) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, old, new = (await c.boot_active())["id"], await make_volume(c), await make_volume(c, size=size)
            await attach(c, server_id, old, tag="data", delete_on_termination=True)
            (before,) = await attachments(c, server_id)
            with (await file_of(c, old)).open("r+b") as file:
                file.write(CONTENT)
            answer = await put(c, server_id, old, volumeId=new, as_="service")
            assert (answer.status, answer.body) == (202, b"")
            await wait_for_volume(c, new, "in-use")
            await wait_until_idle(c, server_id)
            (after,) = await attachments(c, server_id)
            attachment_id = after["attachment_id"]
            assert attachment_id != before["attachment_id"]
            assert after == {**before, "volumeId": new, "attachment_id": attachment_id}
            assert await guest_volumes(c, server_id) == [new]
            assert (await show_volume(c, old))["status"] == "available"
            with (await file_of(c, new)).open("rb") as file:
                assert file.read(len(CONTENT)) == CONTENT
            assert (await c.db.fetch("SELECT volume_size FROM block_devices"))[0]["volume_size"] == size
            extended = ["extend_volume"] if size > 1 else []
            told = [each["action"] for each in await actions(c, server_id)]
            assert told == [*extended, "swap_volume", "attach_volume", "create"]

    run(scenario())


def test_refused_swaps(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, old, new = (await c.boot_active())["id"], await make_volume(c, size=2), await make_volume(c)
            await attach(c, server_id, old)
            assert (await put(c, server_id, old, volumeId=new)).status == 403
            as_ = "project-admin"
            smaller = await put(c, server_id, old, volumeId=new, as_=as_)
            assert fault(smaller)[::2] == (400, "Invalid volume: New volume must be the same size or larger.")
            assert (await put(c, server_id, UNKNOWN_ID, volumeId=new, as_=as_)).status == 404
            for missing in (UNKNOWN_ID, await make_volume(c, as_="other", size=2)):
                answer = await put(c, server_id, old, volumeId=missing, as_=as_)
                assert fault(answer)[::2] == (400, f"Volume {missing} could not be found.")
            itself = await put(c, server_id, old, volumeId=old, as_=as_, version="2.84")
            assert fault(itself)[::2] == (400, "Invalid volume: Volume must be detached in order to swap.")
            shared, other_id = await create_multiattach_volume(c), (await c.boot_active())["id"]
            await attach(c, server_id, shared)
            await attach(c, other_id, shared)
            both = await put(c, server_id, shared, volumeId=new, as_=as_)
            assert both.status == 409
            assert "more than one read/write attachment" in fault(both)[2]

    run(scenario())


def test_volume_is_detaching_when_delete_responds(database_url: str) -> None:
    """Clients poll the status next, and would take "in-use" for the end of the detach."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            first, second = [(await c.boot_active())["id"] for _ in range(2)]
            volume_id = await create_multiattach_volume(c)
            for server_id in (first, second):
                await attach(c, server_id, volume_id)
            with rules(c) as sim:
                sim.add_failure("*", "detach_disk", "hang", None, None)
                assert (await c.delete(path(first, volume_id), version=NEWEST)).status == 202
                assert (await show_volume(c, volume_id))["status"] == "detaching"
                sim.clear()
            await wait_for_volume(c, volume_id, "in-use")
            await wait_until_idle(c, first)
            assert [shown["server_id"] for shown in (await show_volume(c, volume_id))["attachments"]] == [second]

    run(scenario())
