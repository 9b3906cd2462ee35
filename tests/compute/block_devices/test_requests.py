"""Servers with all kinds of block devices: the guests' disks, the views, and deletion with the server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.hosts.messages import LocalDisk
from tests.compute.block_devices.support import (
    MEMBER,
    create_flavor,
    create_snapshot,
    find_guest,
    wait_until_deleted,
)
from tests.compute.servers.support import create_refusal
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import make_image, make_volume, show_volume, wait_for_volume

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
ATTACHED = "os-extended-volumes:volumes_attached"


def to_volume(source: str, identity: str | None = None, **keys: Any) -> dict[str, Any]:
    named = {} if identity is None else {"uuid": identity}
    return {"source_type": source, "destination_type": "volume", **named, **keys}


async def booted(c: FullCloud, *devices: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return await c.boot_active(**{"imageRef": "", "block_device_mapping_v2": list(devices), **keys})


async def deleted(c: FullCloud, shown: dict[str, Any]) -> None:
    assert (await c.delete(f"/servers/{shown['id']}")).status == 204
    await c.wait_until_deleted(shown["id"])


def test_root_volume_from_image(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            root = to_volume("image", c.image_id, boot_index="0", volume_size="2", delete_on_termination=True)
            shown = await booted(c, root)
            assert (shown["image"], shown["OS-EXT-SRV-ATTR:root_device_name"]) == ("", "/dev/vda")
            (attached,) = shown[ATTACHED]
            assert attached["delete_on_termination"] is True
            made = await show_volume(c, attached["id"])
            assert (made["status"], made["size"], made["bootable"]) == ("in-use", 2, "true")
            assert (made["attachments"][0]["server_id"], made["name"]) == (shown["id"], "")
            assert made["os-vol-tenant-attr:tenant_id"] == shown["tenant_id"]
            (disk,) = find_guest(c, shown).disks
            assert (disk.volume_id, disk.device, disk.boot_index) == (attached["id"], "/dev/vda", 0)
            assert find_guest(c, shown).image is None
            # A volume-backed server has the image's properties, but no image.
            kept = await c.db.fetch_value("SELECT image_properties FROM servers WHERE id = $1", shown["id"])
            assert orjson.loads(kept)["hw_rng_model"] == "virtio"
            used = await c.db.fetch("SELECT resource_class FROM allocations ORDER BY 1")
            assert [row["resource_class"] for row in used] == ["MEMORY_MB", "VCPU"]
            below = await c.show(shown["id"], version="2.2")
            assert below[ATTACHED] == [{"id": attached["id"]}]
            listed = (await c.get("/servers/detail", version="2.96")).json()["servers"]
            assert listed[0][ATTACHED] == shown[ATTACHED]
            await deleted(c, shown)
            await wait_until_deleted(c, attached["id"])

    run(scenario())


def test_root_volume_beside_an_image_need_not_be_bootable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            blank = await make_volume(c)
            shown = await booted(c, to_volume("volume", blank, boot_index=0), imageRef=c.image_id)
            assert [attached["id"] for attached in shown[ATTACHED]] == [blank]
            (disk,) = find_guest(c, shown).disks
            assert (disk.volume_id, disk.device, disk.boot_index) == (blank, "/dev/vda", 0)

    run(scenario())


def test_root_volume_existing_or_from_snapshot(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            given = await make_volume(c, imageRef=c.image_id)
            first = await booted(c, to_volume("volume", given, boot_index=0))
            assert first[ATTACHED] == [{"id": given, "delete_on_termination": False}]
            taken = await create_snapshot(c, given)
            second = await booted(c, to_volume("snapshot", taken, boot_index=0))
            (made,) = second[ATTACHED]
            copied = await show_volume(c, made["id"])
            assert (copied["snapshot_id"], copied["size"], copied["status"]) == (taken, 1, "in-use")
            for shown, volume_id in ((first, given), (second, made["id"])):
                await deleted(c, shown)
                await wait_for_volume(c, volume_id, "available")

    run(scenario())


def test_all_kinds_of_devices_beside_an_image(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            given = await make_volume(c)
            flavor = await create_flavor(c, "roomy", ephemeral=3, swap=512)
            root = {"source_type": "image", "uuid": c.image_id, "boot_index": 0, "destination_type": "local"}
            shown = await booted(
                c,
                root,
                {"source_type": "blank", "destination_type": "local", "guest_format": "ext4", "volume_size": 2},
                to_volume("volume", given, boot_index=1, disk_bus="scsi", device_type="cdrom", tag="data"),
                # JSON Schema takes 1.0 for an integer.
                to_volume("blank", volume_size=1.0, device_name="vdx", boot_index=-1.0),
                to_volume("image", c.image_id, volume_size=1, boot_index=None),
                imageRef=c.image_id,
                flavorRef=flavor,
            )
            assert shown["image"]["id"] == c.image_id
            guest = find_guest(c, shown)
            assert guest.local_disks == [
                LocalDisk(size_mb=2048, device="/dev/vdb", format="ext4"),
                LocalDisk(size_mb=512, device="/dev/vdc", format="swap"),
            ]
            names = [(disk.device, disk.bus, disk.type, disk.tag) for disk in guest.disks]
            assert names == [
                ("/dev/sda", "scsi", "cdrom", "data"),
                ("/dev/vdx", "", "disk", ""),
                ("/dev/vdd", "", "disk", ""),
            ]
            used = await c.db.fetch_value("SELECT used FROM allocations WHERE resource_class = 'DISK_GB'")
            assert used == 1 + 3 + 1
            plain = await c.boot_active(flavorRef=flavor)
            assert find_guest(c, plain).local_disks is None

    run(scenario())


def test_legacy_syntax(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root, data = await make_volume(c, imageRef=c.image_id), await make_volume(c)
            unwanted = {"device_name": "vdz", "no_device": True}
            named = [{"volume_id": data, "device_name": "vdb"}, {"volume_id": root, "device_name": "vda"}, unwanted]
            # With and without an image, the device named vda is the root.
            for keys in ({"imageRef": ""}, {}):
                shown = await c.boot_active(block_device_mapping=named, **keys)
                disks = {disk.device: (disk.volume_id, disk.boot_index) for disk in find_guest(c, shown).disks}
                assert (shown["image"], disks) == ("", {"/dev/vda": (root, 0), "/dev/vdb": (data, None)})
                await deleted(c, shown)
            taken = await create_snapshot(c, root)
            first = {"snapshot_id": taken, "volume_size": "2", "delete_on_termination": "1"}
            shown = await c.boot_active(imageRef="", block_device_mapping=[first], version="2.1", networks=[])
            (made,) = shown[ATTACHED]
            assert (made["delete_on_termination"], (await show_volume(c, made["id"]))["size"]) == (True, 2)
            shown = await c.boot_active(block_device_mapping=[{"volume_id": data, "device_name": "/dev/vdc"}])
            assert shown["image"]["id"] == c.image_id
            assert [disk.device for disk in find_guest(c, shown).disks] == ["/dev/vdc"]

    run(scenario())


def test_block_device_mapping_of_image(sqlite_url: str) -> None:
    """The mapping of an image applies for imageRef and for a root device of the image; the caller may override it."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            source = await make_volume(c, imageRef=c.image_id)
            root = {
                "source_type": "snapshot",
                "destination_type": "volume",
                "snapshot_id": await create_snapshot(c, source),
                "boot_index": 0,
                "device_name": "/dev/vda",
                "volume_size": 1,
                "delete_on_termination": True,
                "image_id": None,
                "volume_id": None,
                "no_device": None,
                "guest_format": None,
                "tag": None,
            }
            data = {**root, "boot_index": None, "device_name": "/dev/vdb", "delete_on_termination": False}
            properties = {"block_device_mapping": orjson.dumps([root, data]).decode(), "bdm_v2": "True"}
            image_id = await make_image(c, b"disk", root_device_name="/dev/vda", **properties)
            named = {"source_type": "image", "destination_type": "local", "uuid": image_id, "boot_index": 0}
            for keys in ({"imageRef": image_id}, {"imageRef": image_id, "block_device_mapping_v2": [named]}):
                shown = await c.boot_active(**keys)
                assert shown["image"] == ""
                assert [one["delete_on_termination"] for one in shown[ATTACHED]] == [True, False]
                await deleted(c, shown)
            other = await make_volume(c)
            instead = to_volume("volume", other, device_name="vdb")
            shown = await c.boot_active(imageRef=image_id, block_device_mapping_v2=[instead])
            assert other in [one["id"] for one in shown[ATTACHED]]
            assert len(shown[ATTACHED]) == 2

    run(scenario())


def test_each_of_several_servers_gets_its_own_volume(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            types = {"volume_type": {"name": "quick"}}
            assert (await c.post("/types", types, as_="admin", root="/volume/v3")).status == 200
            root = to_volume("image", c.image_id, boot_index=0, volume_size=1, volume_type="quick")
            made = await c.boot(imageRef="", block_device_mapping_v2=[root], min_count=2, max_count=2)
            await c.wait_until_settled(made["id"])
            servers = (await c.get("/servers", version="2.96")).json()["servers"]
            volumes = {(await c.wait_until_settled(one["id"]))[ATTACHED][0]["id"] for one in servers}
            assert len(servers) == len(volumes) == 2
            assert {(await show_volume(c, one))["volume_type"] for one in volumes} == {"quick"}

    run(scenario())


def test_resize_of_volume_backed_server_ignores_root_disk_size(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            shown = await booted(c, to_volume("image", c.image_id, boot_index=0, volume_size=1))
            flavor = await create_flavor(c, "diskless", disk=0)
            answer = await c.post(f"/servers/{shown['id']}/action", {"resize": {"flavorRef": flavor}})
            assert answer.status == 202, answer.body
            assert (await c.wait_until_settled(shown["id"]))["status"] == "VERIFY_RESIZE"

    run(scenario())


@pytest.mark.parametrize("source", ["blank", "volume", "snapshot", "image"])
def test_image_beside_root_volume(sqlite_url: str, source: str) -> None:
    """The image supplies the server's properties; the server boots from the volume."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            image = await make_image(c, b"\0" * 512, hw_disk_bus="scsi", min_disk=1)
            given = await make_volume(c, imageRef=c.image_id)
            uuids = {"volume": given, "snapshot": await create_snapshot(c, given), "image": c.image_id}
            root = to_volume(source, uuids.get(source), boot_index=0)
            root |= {"volume_size": 1} if source in ("blank", "image") else {}
            data = to_volume("blank", boot_index=1, volume_size=1)
            shown = await booted(c, root, data, imageRef=image)
            assert shown["image"] == ""
            assert len(shown[ATTACHED]) == 2
            guest = find_guest(c, shown)
            assert (guest.image, guest.volume_properties["hw_disk_bus"]) == (None, "scsi")
            (disk,) = [disk for disk in guest.disks if disk.boot_index == 0]
            assert (disk.device, disk.volume_id == given) == ("/dev/vda", source == "volume")
            await deleted(c, shown)

    run(scenario())


def test_image_beside_root_volume_is_checked(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root = to_volume("volume", await make_volume(c, imageRef=c.image_id), boot_index=0)
            for image, text in (
                (UNKNOWN_ID, "Can not find requested image"),
                (await make_image(c, b"disk", min_disk=2), "Volume is smaller than the minimum size"),
                (await make_image(c, b"disk", min_ram=1024), "memory is too small"),
            ):
                status, message = await create_refusal(c, imageRef=image, block_device_mapping_v2=[root])
                assert (status, text in message) == (400, True), message

    run(scenario())


def test_two_boots_with_same_volume_only_one_succeeds(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            given = await make_volume(c, imageRef=c.image_id)
            keys = {"imageRef": "", "block_device_mapping_v2": [to_volume("volume", given, boot_index=0)]}
            body = {"server": {"name": "s", "flavorRef": "1", "networks": "none", **keys}}
            answers = [await c.post("/servers", body, version="2.96") for _ in range(2)]
            assert [answer.status for answer in answers] == [202, 400]
            shown = await c.wait_until_settled(answers[0].json()["server"]["id"])
            assert shown["status"] == "ACTIVE"
            volume = await c.services.volume.show(given, MEMBER)
            assert volume is not None
            assert volume.attachments[0].server_id == shown["id"]

    run(scenario())
