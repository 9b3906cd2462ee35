"""Volumes that servers cannot have: encrypted ones, and with `volume.cross_az_attach` off those of other zones."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from kilonova.http.client import ClientResponse
from tests.compute.volume_attachments.support import NEWEST, attach, create_multiattach_volume, path, request_attach
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.volumes import (
    InterceptedVolumeService,
    attachments,
    block_device,
    make_volume,
    root_volume_id,
    show_volume,
    wait_for_volume,
)

ZONES = ("east", "west")


async def boot(c: FullCloud, device: dict[str, Any], **keys: Any) -> ClientResponse:
    mapping = [{**device, "boot_index": 0}]
    server = {"name": "s", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": mapping, **keys}
    return await c.post("/servers", {"server": server}, version="2.96")


async def boot_settled(c: FullCloud, device: dict[str, Any], **keys: Any) -> dict[str, Any]:
    answer = await boot(c, device, **keys)
    assert answer.status == 202, answer.body
    return await c.wait_until_settled(answer.json()["server"]["id"])


def encrypt_volumes(c: FullCloud) -> InterceptedVolumeService:
    """Let the volume service say that all volumes are encrypted, as Cinder does for volumes of an encrypted type."""
    between = InterceptedVolumeService(c)

    async def encrypt(method: str, path: str, body: Any) -> ClientResponse | None:
        is_volume = path.split("/")[-2] == "volumes" and method == "GET" and "?" not in path
        if not is_volume and not (path.endswith("/volumes") and method == "POST"):
            return None
        volume_id = path.split("/")[-1] if method == "GET" else (await newest_volume(c))
        shown = {**(await show_volume(c, volume_id)), "encrypted": True}
        return ClientResponse(200, {}, orjson.dumps({"volume": shown}))

    between.after = encrypt
    return between


async def newest_volume(c: FullCloud) -> str:
    return str(await c.db.fetch_value("SELECT id FROM volumes ORDER BY created_at DESC LIMIT 1"))


def test_encrypted_volumes_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c, imageRef=c.image_id)
            encrypt_volumes(c)
            for answer in (
                await request_attach(c, server_id, volume_id),
                await boot(c, block_device("volume", volume_id)),
            ):
                assert answer.status == 400
                assert fault(answer)[2].endswith("is encrypted, and encrypted volumes are not supported yet.")
            assert (await show_volume(c, volume_id))["status"] == "available"
            assert await attachments(c, volume_id) == []

            made = block_device("image", c.image_id, volume_size=1, delete_on_termination=True)
            server = await boot_settled(c, made)
            assert server["status"] == "ERROR"
            assert "is encrypted" in server["fault"]["message"]
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await c.db.fetch_value("SELECT 1 FROM volumes WHERE id <> $1", volume_id):
                    await asyncio.sleep(0.01)

    run(scenario())


def test_volumes_of_other_zones_are_refused_on_request(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, zones=ZONES, volume__cross_az_attach=False) as c:
            server_id = (await c.boot_active(availability_zone="east"))["id"]
            near, far = [await make_volume(c, availability_zone=zone, imageRef=c.image_id) for zone in ZONES]
            answer = await request_attach(c, server_id, far)
            assert answer.status == 400
            assert fault(answer)[2] == (
                f"Invalid volume: Instance {server_id} and volume {far} are not in the same availability_zone."
                " Instance is in east. Volume is in west"
            )
            await attach(c, server_id, near)
            body = {"volumeAttachment": {"volumeId": far}}
            swapped = await c.put(path(server_id, near), body, as_="admin", version=NEWEST)
            assert swapped.status == 400

            answer = await boot(c, block_device("volume", far), availability_zone="east")
            assert answer.status == 400
            assert fault(answer)[2].endswith(
                f"volume {far} is in availability zone west, and the requested availability zone is east"
            )
            server = await boot_settled(c, block_device("volume", far))
            assert (server["status"], server["OS-EXT-AZ:availability_zone"]) == ("ACTIVE", "west")
            assert server["pinned_availability_zone"] == "west"

            # The server cannot leave the zone of its volume.
            await c.post(f"/servers/{server['id']}/action", {"shelve": None}, version=NEWEST)
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHELVED_OFFLOADED"
            action = {"unshelve": {"availability_zone": "east"}}
            answer = await c.post(f"/servers/{server['id']}/action", action, version=NEWEST)
            assert answer.status == 400
            assert "its volumes are there" in fault(answer)[2]

    run(scenario())


def test_created_volumes_are_in_the_zone_of_their_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        flags = {"volume__cross_az_attach": False, "scheduler__default_zone": "west"}
        async with full_cloud(sqlite_url, hosts=2, zones=ZONES, **flags) as c:
            device = block_device("image", c.image_id, volume_size=1, delete_on_termination=True)
            for zone in ZONES:
                server = await boot_settled(c, device, availability_zone=zone)
                assert (await show_volume(c, root_volume_id(server)))["availability_zone"] == zone
            server = await boot_settled(c, device)
            assert (await show_volume(c, root_volume_id(server)))["availability_zone"] == "west"
            assert server["OS-EXT-AZ:availability_zone"] == server["pinned_availability_zone"] == "west"

    run(scenario())


def test_volume_of_another_server_that_is_being_attached_is_waited_for(sqlite_url: str) -> None:
    """Cinder refuses to reserve a multiattach volume while another server reserves or detaches it."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await create_multiattach_volume(c)
            between, refused = InterceptedVolumeService(c), []
            shown = {**(await show_volume(c, volume_id)), "status": "reserved"}

            async def refuse_once(method: str, path: str, body: Any) -> ClientResponse | None:
                if method == "POST" and path.endswith("/attachments") and not refused:
                    refused.append(path)
                    message = "status must be available or in-use, but the current status is reserved."
                    return ClientResponse(400, {}, orjson.dumps({"badRequest": {"code": 400, "message": message}}))
                if len(refused) == 1 and method == "GET" and path.endswith(f"/volumes/{volume_id}"):
                    refused.append(path)
                    return ClientResponse(200, {}, orjson.dumps({"volume": shown}))
                return None

            between.hook = refuse_once
            answer = await request_attach(c, server_id, volume_id)
            assert answer.status == 202, answer.body
            await wait_for_volume(c, volume_id, "in-use")
            assert len(refused) == 2

    run(scenario())
