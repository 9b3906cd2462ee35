"""Invalid block device mappings are refused with a message that names the error, and nothing is created."""

from __future__ import annotations

from typing import Any

from kilonova.identity.client import Auth
from tests.compute.block_devices.support import (
    UNKNOWN_ID,
    create_flavor,
    create_refused,
    create_snapshot,
)
from tests.compute.volume_attachments.support import create_multiattach_volume
from tests.support import run
from tests.support.cloud import ADMIN
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import make_image, make_volume

INVALID = "Block Device Mapping is Invalid: "
SEQUENCE = INVALID + "Boot sequence for the instance and image/block device mapping combination is not valid"


async def devices_refused(c: FullCloud, *devices: dict[str, Any], **keys: Any) -> str:
    status, message = await create_refused(c, block_device_mapping_v2=list(devices), **keys)
    assert status == 400, (status, message)
    return message


def test_invalid_devices_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            image = {"source_type": "image", "uuid": c.image_id}
            root = {**image, "destination_type": "volume", "boot_index": 0, "volume_size": 1}
            local = {"source_type": "blank", "destination_type": "local"}
            cases: list[tuple[str, dict[str, Any]]] = [
                ("source_type is missing", {"uuid": c.image_id, "boot_index": 0}),
                ("Missing device UUID", {**root, "uuid": ...}),
                ("Invalid device UUID", {**local, "uuid": UNKNOWN_ID}),
                ("Mapping image to local is not supported", {**image, "destination_type": "local"}),
                ("Mapping image to local is not supported", {**image, "destination_type": "local", "boot_index": 0}),
                # An image is local unless the request says otherwise.
                ("Mapping image to local is not supported", {**image, "boot_index": 0}),
                ("Mapping volume to local is not supported", {**local, "source_type": "volume", "uuid": UNKNOWN_ID}),
                (
                    "Mapping snapshot to local is not supported",
                    {**local, "source_type": "snapshot", "uuid": UNKNOWN_ID},
                ),
                ("boot_index 0", {**local, "boot_index": 0}),
                ("Images with destination_type 'volume' need to have a non-zero size", {**root, "volume_size": ...}),
                ("Blank volumes need to have a non-zero size", {"source_type": "blank", "destination_type": "volume"}),
                ("device_type 'tape'", {**root, "device_type": "tape"}),
                ("disk_bus 'tram'", {**root, "disk_bus": "tram"}),
                ("volume_type with destination_type=local", {**local, "volume_type": "x"}),
                ("failed to get volume", {**root, "source_type": "volume", "uuid": UNKNOWN_ID}),
                ("failed to get volume", {**root, "source_type": "volume", "uuid": "summary"}),
                ("failed to get snapshot", {**root, "source_type": "snapshot", "uuid": UNKNOWN_ID}),
                ("failed to get snapshot", {**root, "source_type": "snapshot", "uuid": "detail"}),
                ("failed to get image", {**root, "uuid": UNKNOWN_ID}),
                ("Ephemeral disks requested are larger", {**local, "volume_size": 1}),
                ("Swap drive requested is larger", {**local, "volume_size": 1, "guest_format": "swap"}),
            ]
            for reason, device in cases:
                given = {key: value for key, value in device.items() if value is not ...}
                others = [] if given.get("boot_index") == 0 else [root]
                message = await devices_refused(c, *others, given)
                assert message.startswith(INVALID), message
                assert reason in message, message
            volume_type = {**root, "volume_type": "no-such-type"}
            assert await devices_refused(c, volume_type) == "Volume type no-such-type could not be found."
            for key, value in (("destination_type", "invalid"), ("volume_size", 0), ("boot_index", "x"), ("odd", 1)):
                assert "block_device_mapping_v2" in await devices_refused(c, {**root, key: value})

    run(scenario())


def test_invalid_boot_sequences_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            made = {"source_type": "image", "uuid": c.image_id, "destination_type": "volume", "volume_size": 1}
            for indexes in ([None], [1], [0, 0], [0, 2]):
                devices = [{**made, "boot_index": index} for index in indexes]
                assert (await devices_refused(c, *devices)).startswith(SEQUENCE), indexes
            # imageRef has boot index 0, unless a volume has it.
            blank = {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "boot_index": 0}
            local = {"source_type": "image", "uuid": c.image_id, "destination_type": "local", "boot_index": 0}
            assert (await devices_refused(c, local, imageRef=UNKNOWN_ID)).startswith(SEQUENCE)
            assert (await devices_refused(c, {**made, "boot_index": 1}, blank, local)).startswith(SEQUENCE)
            assert (await devices_refused(c, local, blank, imageRef=c.image_id)).startswith(SEQUENCE)
            assert (await create_refused(c))[1].startswith("Invalid imageRef provided")
            status, message = await create_refused(
                c, block_device_mapping=[{"volume_id": UNKNOWN_ID}], block_device_mapping_v2=[blank]
            )
            assert (status, "different block_device_mapping syntaxes" in message) == (400, True)
            status, message = await create_refused(c, block_device_mapping=[{"device_name": "vda"}])
            assert (status, "volume_id" in message) == (400, True)

    run(scenario())


def test_unsuitable_volumes_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            blank, full = await make_volume(c), await make_volume(c, imageRef=c.image_id)
            given = {"source_type": "volume", "destination_type": "volume"}
            root = {**given, "uuid": full, "boot_index": 0}
            assert "is not bootable" in await devices_refused(c, {**root, "uuid": blank})
            assert "is mapped twice" in await devices_refused(c, root, {**given, "uuid": full})
            twice = {**given, "uuid": blank, "device_name": "vdb"}
            other = await make_volume(c)
            assert "/dev/vdb" in await devices_refused(
                c, root, twice, {**twice, "uuid": other, "device_name": "/dev/vdb"}
            )
            # The default root device name is in use, too.
            assert "/dev/vda" in await devices_refused(c, {**twice, "device_name": "vda"}, imageRef=c.image_id)
            several = await devices_refused(c, root, max_count=2)
            assert several == "Cannot attach one or more volumes to multiple instances"
            assert "volume_type with source_type=volume" in await devices_refused(c, {**root, "volume_type": "x"})
            shared = await create_multiattach_volume(c)
            both: list[dict[str, Any]] = [root, {**given, "uuid": shared}]
            assert "2.60" in await devices_refused(c, *both, version="2.59")
            await c.services.volume.create_attachment(full, UNKNOWN_ID, Auth("kilonova", ADMIN))
            message = await devices_refused(c, root)
            assert message.startswith("Invalid volume: "), message
            assert "Currently in 'reserved' status" in message

    run(scenario())


def test_too_small_volumes_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            large = await make_image(c, b"disk", min_disk=3, min_ram=1024)
            root = {"source_type": "image", "uuid": large, "destination_type": "volume", "boot_index": 0}
            small = "Volume is smaller than the minimum size specified in image metadata."
            assert (await devices_refused(c, {**root, "volume_size": 2})).startswith(small)
            memory = "Flavor's memory is too small for requested image."
            assert await devices_refused(c, {**root, "volume_size": 3}) == memory
            # min_disk of the volume's image applies, too.
            made = await make_volume(c, size=3, imageRef=large)
            assert await devices_refused(c, {**root, "source_type": "volume", "uuid": made}) == memory
            taken = await create_snapshot(c, made)
            assert "is less than the size" in await devices_refused(
                c, {**root, "source_type": "snapshot", "uuid": taken, "volume_size": 1}
            )
            flavor = await create_flavor(c, "roomy", ephemeral=2, swap=64)
            local = {"source_type": "blank", "destination_type": "local"}
            swap = {**local, "guest_format": "swap", "volume_size": 32}
            keys = {"imageRef": c.image_id, "flavorRef": flavor}
            assert "More than one swap drive" in await devices_refused(c, swap, swap, **keys)
            assert "Ephemeral disks" in await devices_refused(c, local, {**local, "volume_size": 1}, **keys)
            ones = [{**local, "volume_size": 1}] * 4
            assert "more local devices than the limit" in await devices_refused(c, *ones, **keys)

    run(scenario())


def test_keys_of_newer_versions_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root = {"source_type": "image", "uuid": c.image_id, "destination_type": "volume", "boot_index": 0}
            for key, versions in (("tag", ("2.31", "2.33", "2.41")), ("volume_type", ("2.66",))):
                for version in versions:
                    message = await devices_refused(c, {**root, "volume_size": 1, key: "x"}, version=version)
                    assert key in message, (version, message)
            for version in ("2.32", "2.42"):
                tagged = {**root, "tag": "x"}
                assert "non-zero size" in await devices_refused(c, tagged, version=version)

    run(scenario())
