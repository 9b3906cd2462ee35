"""Servers that the volume service failed say why: to users in its words for users, to administrators with more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.http.client import Response, Unreachable
from kilonova.ids import new_id
from tests.compute.actions.test_actions import actions
from tests.compute.servers.support import act
from tests.compute.volume_attachments.support import ask_attach, idle
from tests.support import run
from tests.support.cloud import fault
from tests.support.volumes import (
    NEWEST,
    VOLUME,
    Between,
    boot_from,
    device,
    make_image,
    root_of,
    volume_until,
)
from tests.support.whole import Whole, whole

WHY = "The content could not be written: the content is not qcow2, as its disk format says."
TOLD = f"The volume service says: create volume: {WHY}"


async def evil_image(c: Whole) -> str:
    return await make_image(c, b"MZ" * 4000, disk_format="qcow2")


async def boot(c: Whole, *devices: dict[str, Any]) -> dict[str, Any]:
    """The server in the end, as its user sees it."""
    first, *others = devices
    made = await c.boot(block_device_mapping_v2=[{**first, "boot_index": 0}, *others], imageRef="")
    await c.settled(made["id"])
    return await c.show(made["id"], as_="member")


async def broken_volume(c: Whole) -> str:
    body = {"volume": {"size": 1, "imageRef": await evil_image(c)}}
    answer = await c.post("/volumes", body, root=VOLUME, headers=NEWEST)
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    await volume_until(c, volume_id, "error")
    return volume_id


async def failed_event(c: Whole, server_id: str, as_: str) -> dict[str, Any]:
    """Of the newest action."""
    newest = (await actions(c, server_id))[0]["request_id"]
    shown = (await c.get(f"/servers/{server_id}/os-instance-actions/{newest}", as_=as_, version="2.96")).json()
    return next(event for event in shown["instanceAction"]["events"] if event["result"] == "Error")


def test_a_volume_that_cannot_be_made(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            shown = await boot(c, device("image", await evil_image(c), volume_size=1, delete_on_termination=True))
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


def test_a_volume_that_is_too_much(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, volume_quota__gigabytes=1) as c:
            shown = await boot(c, device("image", c.image_id, volume_size=2))
            assert "The volume service refused: " in shown["fault"]["message"]
            assert "exceeds" in shown["fault"]["message"]

    run(scenario())


async def no_such_route(path: str) -> Response:
    return Response(404, {}, b'{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}')


async def out_of_order(path: str) -> Response:
    raise Unreachable("nobody is there")


async def nonsense(path: str) -> Response:
    return Response(200, {}, b'["what"]')


async def of_others(path: str) -> Response:
    other = {"resource_uuid": new_id(), "user_message": "create volume: none of your business", "created_at": ""}
    return Response(200, {}, orjson.dumps({"messages": [other]}))


@pytest.mark.parametrize("answer", [no_such_route, out_of_order, nonsense, of_others])
def test_a_volume_service_that_does_not_say(sqlite_url: str, answer: Any) -> None:
    async def hook(method: str, path: str, json: Any) -> Response | None:
        return await answer(path) if "/messages" in path else None

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            Between(c).hook = hook
            shown = await boot(c, device("image", await evil_image(c), volume_size=1))
            assert shown["fault"]["message"].endswith("did not finish being created: its status is error.")

    run(scenario())


def test_a_volume_that_is_broken_is_not_attached(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            volume_id, server = await broken_volume(c), await c.active()
            status, _, message = fault(await ask_attach(c, server["id"], volume_id))
            assert (status, message.endswith(f"Currently in 'error' status. {TOLD}")) == (400, True)
            mapping = [{**device("volume", volume_id), "boot_index": 1}]
            body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none"}
            asked = {"server": {**body, "block_device_mapping_v2": mapping}}
            status, _, message = fault(await c.post("/servers", asked, version="2.96"))
            assert (status, message.endswith(TOLD)) == (400, True)

    run(scenario())


def test_a_volume_that_broke_on_the_way_is_not_attached(sqlite_url: str) -> None:
    """It was fine when the caller asked for it."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            volume_id, server = await broken_volume(c), await c.active()
            between = Between(c)

            async def fine(method: str, path: str, json: Any) -> Response | None:
                if method != "GET" or not path.endswith(f"/volumes/{volume_id}"):
                    return None
                between.after = None
                known = {"id": volume_id, "status": "available", "multiattach": False, "size": 1}
                return Response(200, {}, orjson.dumps({"volume": known}))

            between.after = fine
            assert (await ask_attach(c, server["id"], volume_id)).status in (200, 202)
            await idle(c, server["id"])
            row = await c.db.fetch_one("SELECT fault FROM servers WHERE id = $1", server["id"])
            assert row is not None
            kept = orjson.loads(row["fault"])
            assert kept["message"].startswith("The volume service refused: ")
            assert kept["message"].endswith(TOLD)
            assert "VOLUME_VOLUME_101_004" in kept["details"]

    run(scenario())


def test_an_image_that_cannot_take_the_place_of_the_old_one(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await boot_from(c, device("image", c.image_id, volume_size=1))
            asked = {"imageRef": await evil_image(c)}
            answer = await act(c, server["id"], "rebuild", asked, version="2.96")
            assert answer.status == 202, answer.body
            await c.settled(server["id"])
            shown = await c.show(server["id"], as_="member")
            assert shown["status"] == "ERROR"
            assert f"The volume service says: reimage volume: {WHY}" in shown["fault"]["message"]
            assert "VOLUME_VOLUME_104_004" in (await c.show(server["id"]))["fault"]["details"]
            # Another attempt is refused, and says the same.
            await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
            await c.settled(server["id"])
            message = (await c.show(server["id"], as_="member"))["fault"]["message"]
            assert ("an operator has to look" in message, message.endswith(WHY)) == (True, True)

    run(scenario())


def test_a_snapshot_that_cannot_be_made(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await boot_from(c, device("image", c.image_id, volume_size=1))
            next((Path(c.services.config.data) / "volumes").glob(f"{root_of(server)}.*")).unlink()
            answer = await act(c, server["id"], "createImage", {"name": "copy"}, version="2.96")
            assert answer.status == 202, answer.body
            await idle(c, server["id"])
            event = await failed_event(c, server["id"], "admin")
            assert event["details"].endswith(
                "The volume service says: create snapshot: The content of the volume is missing."
            )
            assert "VOLUME_VOLUME_SNAPSHOT_107_004" in event["traceback"]

    run(scenario())
