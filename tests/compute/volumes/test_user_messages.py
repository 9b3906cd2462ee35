"""User messages of the volume service in the faults of servers: for users, and with details for administrators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse, Unreachable
from kilonova.ids import new_id
from tests.compute.servers.support import act
from tests.compute.test_instance_actions import actions
from tests.compute.volume_attachments.support import request_attach, wait_until_idle
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import (
    NEWEST_VERSION,
    VOLUME,
    InterceptedVolumeService,
    block_device,
    boot_from,
    make_image,
    root_volume_id,
    wait_for_volume,
)

WHY = "The content could not be written: the content is not qcow2, as its disk format says."
TOLD = f"The volume service says: create volume: {WHY}"


async def invalid_image(c: FullCloud) -> str:
    return await make_image(c, b"MZ" * 4000, disk_format="qcow2")


async def boot(c: FullCloud, *devices: dict[str, Any]) -> dict[str, Any]:
    """The server after the boot, as its user sees it."""
    first, *others = devices
    made = await c.boot(block_device_mapping_v2=[{**first, "boot_index": 0}, *others], imageRef="")
    await c.wait_until_settled(made["id"])
    return await c.show(made["id"], as_="member")


async def broken_volume(c: FullCloud) -> str:
    body = {"volume": {"size": 1, "imageRef": await invalid_image(c)}}
    answer = await c.post("/volumes", body, root=VOLUME, headers=NEWEST_VERSION)
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    await wait_for_volume(c, volume_id, "error")
    return volume_id


async def failed_event(c: FullCloud, server_id: str, as_: str) -> dict[str, Any]:
    """Of the newest action."""
    newest = (await actions(c, server_id))[0]["request_id"]
    shown = (await c.get(f"/servers/{server_id}/os-instance-actions/{newest}", as_=as_, version="2.96")).json()
    return next(event for event in shown["instanceAction"]["events"] if event["result"] == "Error")


def test_failed_volume_creation(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            shown = await boot(
                c, block_device("image", await invalid_image(c), volume_size=1, delete_on_termination=True)
            )
            assert shown["status"] == "ERROR"
            assert shown["fault"]["message"].endswith(f"did not finish being created: its status is error. {TOLD}")
            assert "details" not in shown["fault"]
            details = (await c.show(shown["id"], as_="admin"))["fault"]["details"]
            assert "VOLUME_VOLUME_101_004, req-" in details
            assert (await failed_event(c, shown["id"], "admin"))["traceback"] == details
            assert WHY in (await failed_event(c, shown["id"], "admin"))["details"]
            assert "traceback" not in await failed_event(c, shown["id"], "member")
            assert await c.db.fetch("SELECT id FROM volumes WHERE status <> 'deleting'") == []

    run(scenario())


def test_volume_quota_exceeded(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, volume_quota__gigabytes=1) as c:
            shown = await boot(c, block_device("image", c.image_id, volume_size=2))
            assert "The volume service refused: " in shown["fault"]["message"]
            assert "exceeds" in shown["fault"]["message"]

    run(scenario())


async def no_such_route(path: str) -> ClientResponse:
    return ClientResponse(404, {}, b'{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}')


async def out_of_order(path: str) -> ClientResponse:
    raise Unreachable("nobody is there")


async def nonsense(path: str) -> ClientResponse:
    return ClientResponse(200, {}, b'["what"]')


async def of_others(path: str) -> ClientResponse:
    other = {"resource_uuid": new_id(), "user_message": "create volume: none of your business", "created_at": ""}
    return ClientResponse(200, {}, orjson.dumps({"messages": [other]}))


@pytest.mark.parametrize("answer", [no_such_route, out_of_order, nonsense, of_others])
def test_volume_service_without_messages(sqlite_url: str, answer: Any) -> None:
    async def hook(method: str, path: str, json: Any) -> ClientResponse | None:
        return await answer(path) if "/messages" in path else None

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            InterceptedVolumeService(c).hook = hook
            shown = await boot(c, block_device("image", await invalid_image(c), volume_size=1))
            assert shown["fault"]["message"].endswith("did not finish being created: its status is error.")

    run(scenario())


def test_volume_in_error_is_not_attached(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            volume_id, server = await broken_volume(c), await c.boot_active()
            status, _, message = fault(await request_attach(c, server["id"], volume_id))
            assert (status, message.endswith(f"Currently in 'error' status. {TOLD}")) == (400, True)
            mapping = [{**block_device("volume", volume_id), "boot_index": 1}]
            body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none"}
            asked = {"server": {**body, "block_device_mapping_v2": mapping}}
            status, _, message = fault(await c.post("/servers", asked, version="2.96"))
            assert (status, message.endswith(TOLD)) == (400, True)

    run(scenario())


def test_volume_that_fails_during_the_attachment(sqlite_url: str) -> None:
    """The volume was available at the time of the request."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            volume_id, server = await broken_volume(c), await c.boot_active()
            between = InterceptedVolumeService(c)

            async def fine(method: str, path: str, json: Any) -> ClientResponse | None:
                if method != "GET" or not path.endswith(f"/volumes/{volume_id}"):
                    return None
                between.after = None
                known = {"id": volume_id, "status": "available", "multiattach": False, "size": 1}
                return ClientResponse(200, {}, orjson.dumps({"volume": known}))

            between.after = fine
            assert (await request_attach(c, server["id"], volume_id)).status in (200, 202)
            await wait_until_idle(c, server["id"])
            row = await c.db.fetch_one("SELECT fault FROM servers WHERE id = $1", server["id"])
            assert row is not None
            kept = orjson.loads(row["fault"])
            assert kept["message"].startswith("The volume service refused: ")
            assert kept["message"].endswith(TOLD)
            assert "VOLUME_VOLUME_101_004" in kept["details"]

    run(scenario())


def test_failed_reimage(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            asked = {"imageRef": await invalid_image(c)}
            answer = await act(c, server["id"], "rebuild", asked, version="2.96")
            assert answer.status == 202, answer.body
            await c.wait_until_settled(server["id"])
            shown = await c.show(server["id"], as_="member")
            assert shown["status"] == "ERROR"
            assert f"The volume service says: reimage volume: {WHY}" in shown["fault"]["message"]
            assert "VOLUME_VOLUME_104_004" in (await c.show(server["id"]))["fault"]["details"]
            # Another attempt is refused with the same message.
            await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
            await c.wait_until_settled(server["id"])
            message = (await c.show(server["id"], as_="member"))["fault"]["message"]
            assert ("an operator has to look" in message, message.endswith(WHY)) == (True, True)

    run(scenario())


def test_failed_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            next((Path(c.services.config.data) / "volumes").glob(f"{root_volume_id(server)}.*")).unlink()
            answer = await act(c, server["id"], "createImage", {"name": "copy"}, version="2.96")
            assert answer.status == 202, answer.body
            await wait_until_idle(c, server["id"])
            event = await failed_event(c, server["id"], "admin")
            assert event["details"].endswith(
                "The volume service says: create snapshot: The content of the volume is missing."
            )
            assert "VOLUME_VOLUME_SNAPSHOT_107_004" in event["traceback"]

    run(scenario())
