"""The content of volumes: requested by the API, and compared by checksums of their files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kilonova.image.files import ImageFiles
from kilonova.operations import Operation
from kilonova.volume import conversion
from kilonova.volume.files import VolumeFiles
from kilonova.volume.operations import content
from tests.volume.operations.worlds import IMAGE, OTHER, checksum, expected
from tests.volume.support import VolumeCloud, volume_cloud

RAW = {"disk_format": "raw", "container_format": "bare"}
# A GiB is too much to read and write in a test.
SMALL = 1 << 20
SERVER = "33333333-3333-4333-8333-333333333333"
ONE_FILE = 'createType="monolithicSparse"'

Scene = Callable[[VolumeCloud], Awaitable[None]]


@pytest.fixture
def qemu() -> None:
    """Skips tests without qemu-img."""
    if shutil.which("qemu-img") is None:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("qemu-img is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("qemu-img is not installed")


def play(url: str, scene: Scene, **flags: Any) -> None:
    async def run_scene() -> None:
        async with volume_cloud(url, **flags) as cloud:
            await scene(cloud)

    asyncio.run(run_scene())


async def image(cloud: VolumeCloud, content: bytes, **attributes: Any) -> str:
    created = await cloud.services.image.create({"name": "i", "visibility": "public", **RAW, **attributes}, "admin")
    await cloud.services.image.upload(created.id, content, "admin")
    return created.id


async def make(cloud: VolumeCloud, status: str = "available", **keys: Any) -> str:
    response = await cloud.post("/volumes", {"volume": {"size": 1, **keys}})
    assert response.status == 202, response.body
    volume_id = str(response.json()["volume"]["id"])
    shown = await ended(cloud, volume_id)
    assert shown["status"] == status
    return volume_id


async def snapshot(cloud: VolumeCloud, volume_id: str) -> str:
    response = await cloud.post("/snapshots", {"snapshot": {"volume_id": volume_id, "force": True}})
    assert response.status == 202, response.body
    snapshot_id = str(response.json()["snapshot"]["id"])
    shown = await cloud.until(f"/snapshots/{snapshot_id}", lambda one: one["status"] != "creating")
    assert shown["status"] == "available"
    return snapshot_id


async def act(cloud: VolumeCloud, volume_id: str, name: str, **keys: Any) -> Any:
    """Run the action to its end; return its response."""
    response = await cloud.post(
        f"/volumes/{volume_id}/action", {name: keys}, as_="kilonova" if name == "os-attach" else "member"
    )
    assert response.status == 202, response.body
    await ended(cloud, volume_id)
    return response.json() if response.body else None


async def ended(cloud: VolumeCloud, volume_id: str) -> dict[str, Any]:
    busy = ("creating", "downloading", "uploading", "extending", "reverting", "deleting")
    return await cloud.until(f"/volumes/{volume_id}", lambda one: one["status"] not in busy)


async def path_of(cloud: VolumeCloud, volume_id: str) -> Path:
    data_id = await cloud.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
    return VolumeFiles.of(cloud.services.config).volume(volume_id, data_id)


async def content_checksum(cloud: VolumeCloud, volume_id: str) -> str:
    return checksum(await path_of(cloud, volume_id))


async def write(cloud: VolumeCloud, volume_id: str, data: bytes) -> None:
    """Write to the file like a guest."""
    with (await path_of(cloud, volume_id)).open("r+b") as file:
        file.write(data)


def test_volume_has_content_of_its_source(database_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        blank = await make(cloud)
        assert await content_checksum(cloud, blank) == expected(b"")
        first = await make(cloud, imageRef=await image(cloud, IMAGE))
        assert await content_checksum(cloud, first) == expected(IMAGE)
        kept = await snapshot(cloud, first)
        await write(cloud, first, OTHER)
        changed = OTHER + IMAGE[len(OTHER) :]
        copied = await make(cloud, source_volid=first, size=2)
        assert await content_checksum(cloud, copied) == expected(changed, 2)
        older = await make(cloud, snapshot_id=kept)
        assert await content_checksum(cloud, older) == expected(IMAGE)
        for volume_id in (copied, older):
            shown = await cloud.item(f"/volumes/{volume_id}")
            assert shown["bootable"] == "true"
            assert shown["volume_image_metadata"]["image_name"] == "i"
        assert "volume_image_metadata" not in await cloud.item(f"/volumes/{blank}")

    play(database_url, scene)


def test_reimage_replaces_content(database_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        before = await path_of(cloud, volume_id)
        other = await image(cloud, OTHER)
        await act(cloud, volume_id, "os-reimage", image_id=other)
        assert await content_checksum(cloud, volume_id) == expected(OTHER)
        shown = await cloud.item(f"/volumes/{volume_id}")
        assert (shown["status"], shown["volume_image_metadata"]["image_id"]) == ("available", other)
        async with asyncio.timeout(60):
            while before.exists():
                await asyncio.sleep(0.01)

    play(database_url, scene)


def test_image_without_data_is_refused(sqlite_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        empty = await image(cloud, b"")
        response = await cloud.post(f"/volumes/{volume_id}/action", {"os-reimage": {"image_id": empty}})
        assert (response.status, b"has no data" in response.body) == (400, True)
        response = await cloud.post("/volumes", {"volume": {"size": 1, "imageRef": empty}})
        assert (response.status, b"has no data" in response.body) == (400, True)
        assert await content_checksum(cloud, volume_id) == expected(IMAGE)

    play(sqlite_url, scene)


def test_failed_reimage_keeps_content(sqlite_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        wrong = await image(cloud, OTHER, disk_format="qcow2")
        await act(cloud, volume_id, "os-reimage", image_id=wrong)
        assert (await cloud.item(f"/volumes/{volume_id}"))["status"] == "error"
        assert await content_checksum(cloud, volume_id) == expected(IMAGE)
        await act(cloud, volume_id, "os-reimage", image_id=await image(cloud, OTHER))
        assert (await cloud.item(f"/volumes/{volume_id}"))["status"] == "available"
        assert await content_checksum(cloud, volume_id) == expected(OTHER)

    play(sqlite_url, scene)


async def replace_data(cloud: VolumeCloud, image_id: str, data: bytes) -> None:
    """Other data than the image service shows, of the same size."""
    (path,) = ImageFiles.of(cloud.services.config).root.glob(f"{image_id}.*")
    assert path.stat().st_size == len(data)
    path.write_bytes(data)


async def replace_image(cloud: VolumeCloud, image_id: str, data: bytes) -> None:
    """Pretend that the image service gave the id to another image."""
    await replace_data(cloud, image_id, data)
    async with cloud.db.transaction() as tx:
        await tx.execute("UPDATE images SET hash_value = $1 WHERE id = $2", hashlib.sha512(data).hexdigest(), image_id)


async def failure_of(cloud: VolumeCloud, volume_id: str) -> str:
    (message,) = (await cloud.get(f"/messages?resource_uuid={volume_id}")).json()["messages"]
    return str(message["user_message"])


@pytest.mark.usefixtures("qemu")
@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
def test_damaged_image_becomes_no_volume(sqlite_url: str, disk_format: str, tmp_path: Path) -> None:
    original = IMAGE if disk_format == "raw" else qcow2(tmp_path)
    damaged = original[:-1] + bytes([original[-1] ^ 1])

    async def scene(cloud: VolumeCloud) -> None:
        image_id = await image(cloud, original, disk_format=disk_format)
        await replace_data(cloud, image_id, damaged)
        created = await make(cloud, "error", imageRef=image_id, size=4)
        kept = await make(cloud, imageRef=await image(cloud, OTHER), size=4)
        await act(cloud, kept, "os-reimage", image_id=image_id)
        assert (await cloud.item(f"/volumes/{kept}"))["status"] == "error"
        assert await content_checksum(cloud, kept) == expected(OTHER, 4)
        hashes = [f"sha512:{hashlib.sha512(data).hexdigest()}" for data in (damaged, original)]
        for volume_id in (created, kept):
            text = await failure_of(cloud, volume_id)
            assert f"the data of image {image_id} is damaged: its hash is {hashes[0]}, not {hashes[1]}" in text

    play(sqlite_url, scene)


def test_image_replaced_after_the_request_becomes_no_volume(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume service compares with the hash at the time of the request, not with the present one."""
    gate, write = asyncio.Event(), content.write

    async def later(*args: Any) -> Any:
        await gate.wait()
        return await write(*args)

    other = bytes(reversed(IMAGE))

    async def scene(cloud: VolumeCloud) -> None:
        image_id = await image(cloud, IMAGE)
        kept = await make(cloud, imageRef=await image(cloud, OTHER))
        monkeypatch.setattr(content, "write", later)
        requested = await cloud.post("/volumes", {"volume": {"size": 1, "imageRef": image_id}})
        created = requested.json()["volume"]["id"]
        await cloud.post(f"/volumes/{kept}/action", {"os-reimage": {"image_id": image_id}})
        await replace_image(cloud, image_id, other)
        gate.set()
        for volume_id in (created, kept):
            assert (await ended(cloud, volume_id))["status"] == "error"
            assert f"Image {image_id} was replaced" in await failure_of(cloud, volume_id)
        assert await content_checksum(cloud, kept) == expected(OTHER)
        # A later request records the new hash.
        await act(cloud, kept, "os-reimage", image_id=image_id)
        assert await content_checksum(cloud, kept) == expected(other)

    play(database_url, scene)


def test_image_without_hash_is_checked_by_its_checksum(sqlite_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        image_id = await image(cloud, IMAGE)
        async with cloud.db.transaction() as tx:
            await tx.execute("UPDATE images SET hash_value = NULL, hash_algo = NULL WHERE id = $1", image_id)
        await make(cloud, imageRef=image_id)
        await replace_data(cloud, image_id, bytes(reversed(IMAGE)))
        volume_id = await make(cloud, "error", imageRef=image_id)
        assert "its hash is md5:" in await failure_of(cloud, volume_id)
        async with cloud.db.transaction() as tx:
            await tx.execute("UPDATE images SET checksum = NULL WHERE id = $1", image_id)
        await make(cloud, imageRef=image_id)

    play(sqlite_url, scene)


def test_extend_keeps_content(database_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        await act(cloud, volume_id, "os-extend", new_size=2)
        assert await content_checksum(cloud, volume_id) == expected(IMAGE, 2)
        await act(cloud, volume_id, "os-attach", instance_uuid=SERVER, mountpoint="/dev/vdb")
        where = await path_of(cloud, volume_id)
        await act(cloud, volume_id, "os-extend", new_size=3)
        assert await content_checksum(cloud, volume_id) == expected(IMAGE, 3)
        assert await path_of(cloud, volume_id) == where, "the guest has this file open"
        assert (await cloud.item(f"/volumes/{volume_id}"))["status"] == "in-use"

    play(database_url, scene)


@pytest.mark.usefixtures("qemu")
@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
def test_upload_creates_image_with_content(sqlite_url: str, disk_format: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE, hw_rng_model="virtio"))
        os.truncate(await path_of(cloud, volume_id), SMALL)
        response = await act(cloud, volume_id, "os-volume_upload_image", image_name="u", disk_format=disk_format)
        image_id = response["os-volume_upload_image"]["image_id"]
        shown = await cloud.services.image.show(image_id, "member")
        assert shown is not None
        assert (shown.status, shown.disk_format, shown.visibility) == ("active", disk_format, "private")
        assert (shown.virtual_size, shown.properties["hw_rng_model"]) == (SMALL, "virtio")
        again = await make(cloud, imageRef=image_id)
        assert await content_checksum(cloud, again) == expected(IMAGE)
        left = VolumeFiles.of(cloud.services.config).parts
        assert list(left.iterdir()) == []

    play(sqlite_url, scene)


def test_revert_restores_content_of_snapshot(database_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        kept = await snapshot(cloud, volume_id)
        await write(cloud, volume_id, OTHER)
        await act(cloud, volume_id, "os-extend", new_size=2)
        await act(cloud, volume_id, "revert", snapshot_id=kept)
        assert await content_checksum(cloud, volume_id) == expected(IMAGE, 2)
        assert (await cloud.item(f"/snapshots/{kept}"))["status"] == "available"

    play(database_url, scene)


@pytest.mark.usefixtures("qemu")
@pytest.mark.parametrize("disk_format", ["qcow2", "vmdk", "vdi", "vhd", "vhdx"])
def test_image_formats_are_converted(sqlite_url: str, disk_format: str, tmp_path: Path) -> None:
    """The size is a multiple of the sector size, because formats round it up."""
    plain = (IMAGE + bytes(-len(IMAGE) % 512)) * 2
    (tmp_path / "raw").write_bytes(plain)
    name = {"vhd": "vpc"}.get(disk_format, disk_format)
    subprocess.run(
        ["qemu-img", "convert", "-f", "raw", "-O", name, tmp_path / "raw", tmp_path / "disk"], check=True, timeout=60
    )
    disk = (tmp_path / "disk").read_bytes()

    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, disk, disk_format=disk_format))
        assert await content_checksum(cloud, volume_id) == expected(plain)

    play(sqlite_url, scene)


def qcow2(tmp_path: Path, *options: str) -> bytes:
    target = tmp_path / "disk"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, target, "3G"], check=True, timeout=60)
    return target.read_bytes()


def vmdk(tmp_path: Path, capacity: int, *lines: str) -> bytes:
    """The header and the descriptor of a disk."""
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    numbers = (1, 3), (capacity, 128, 1, 20), (512,), (21, 26, 128)
    header = b"KDMV" + b"".join(struct.pack(f"<{len(n)}{code}", *n) for n, code in zip(numbers, "IQIQ", strict=True))
    descriptor = "\n".join(("# Disk DescriptorFile", "version=1", "CID=fffffffe", *lines))
    return (
        header.ljust(512, b"\0") + descriptor.encode().ljust(20 * 512, b"\0") + ONE_FILE.encode().ljust(1 << 16, b"\0")
    )


@pytest.mark.usefixtures("qemu")
def test_invalid_images_are_refused(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    backed = qcow2(tmp_path, "-b", str(tmp_path / "secret"), "-F", "raw")
    outside = qcow2(tmp_path, "-o", f"data_file={tmp_path / 'data'}")
    large = qcow2(tmp_path)
    extent = f'RW 8 FLAT "{tmp_path / "secret"}" 0'
    parent = f'parentFileNameHint="{tmp_path / "secret"}"'

    async def scene(cloud: VolumeCloud) -> None:
        for data, disk_format in (
            (backed, "qcow2"),
            (outside, "qcow2"),
            (large, "raw"),
            (IMAGE, "qcow2"),
            (IMAGE, "vhd"),
            (b"# Disk DescriptorFile\n" + extent.encode(), "vmdk"),
            (vmdk(tmp_path, 0, "parentCID=ffffffff", 'createType="monolithicFlat"', extent), "vmdk"),
            (vmdk(tmp_path, 0, "parentCID=ffffffff", ONE_FILE, extent), "vmdk"),
            (vmdk(tmp_path, 8, "parentCID=fffffffe", ONE_FILE, parent), "vmdk"),
        ):
            image_id = await image(cloud, data, disk_format=disk_format)
            volume_id = await make(cloud, "error", imageRef=image_id, size=4)
            row = await cloud.db.fetch_one("SELECT data_id, progress FROM volumes WHERE id = $1", volume_id)
            assert row == {"data_id": None, "progress": None}
        root = VolumeFiles.of(cloud.services.config).root
        assert [path for path in root.rglob("*") if path.is_file()] == []

    play(sqlite_url, scene)


@pytest.mark.usefixtures("qemu")
def test_user_message_names_no_file(sqlite_url: str) -> None:
    """The message of qemu-img, which names the file, is only for operators."""
    broken = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(12) + (99).to_bytes(4, "big") + bytes(200)

    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, "error", imageRef=await image(cloud, broken, disk_format="qcow2"))
        (message,) = (await cloud.get(f"/messages?resource_uuid={volume_id}")).json()["messages"]
        assert "the disk is broken" in message["user_message"]
        assert "/" not in message["user_message"]
        kept = await cloud.db.fetch_value("SELECT error FROM operations WHERE state = 'failed'")
        assert "qemu-img info failed" in str(kept)

    play(sqlite_url, scene)


@pytest.mark.usefixtures("qemu")
def test_virtual_size_refuses_references_to_other_files(tmp_path: Path) -> None:
    for name, disk in (
        ("backed", qcow2(tmp_path, "-b", "/dev/null", "-F", "raw")),
        ("outside", qcow2(tmp_path, "-o", f"data_file={tmp_path / 'data'}")),
    ):
        (tmp_path / name).write_bytes(disk)
        with pytest.raises(conversion.Unacceptable, match="other files"):
            asyncio.run(conversion.virtual_size(tmp_path / name, "qcow2"))


def test_content_written_during_forced_deletion_is_removed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced deletion removes the files that exist; a running operation must not add new ones."""
    write = content.write

    async def and_then_deleted(op: Operation, *args: Any) -> Any:
        created = await write(op, *args)
        table = "volume_snapshots" if hasattr(op.params, "snapshot_id") else "volumes"
        async with op.db.transaction() as tx:
            await tx.execute(f"UPDATE {table} SET status = 'deleting' WHERE data_id IS NULL")
        return created

    async def scene(cloud: VolumeCloud) -> None:
        kept = await make(cloud)
        monkeypatch.setattr(content, "write", and_then_deleted)
        created = (await cloud.post("/volumes", {"volume": {"size": 1}})).json()["volume"]["id"]
        snapshot_id = (await cloud.post("/snapshots", {"snapshot": {"volume_id": kept}})).json()["snapshot"]["id"]
        await all_ended(cloud)
        for path in (f"/volumes/{created}", f"/snapshots/{snapshot_id}"):
            assert (await cloud.item(path))["status"] == "deleting"
        names = VolumeFiles.of(cloud.services.config).names()
        assert [name.partition(".")[0] for name in names] == [kept]

    play(sqlite_url, scene)


async def all_ended(cloud: VolumeCloud) -> None:
    async with asyncio.timeout(60):
        while await cloud.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)


def test_raw_images_need_no_qemu_img(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kilonova.volume.conversion.PROGRAM", "no-such-program")

    async def scene(cloud: VolumeCloud) -> None:
        qcow = b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(200)
        await make(cloud, "error", imageRef=await image(cloud, qcow, disk_format="qcow2"))
        assert await content_checksum(cloud, await make(cloud, imageRef=await image(cloud, IMAGE))) == expected(IMAGE)

    play(sqlite_url, scene)


def test_number_of_concurrent_copies_is_limited(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kilonova.volume.files import NewFile

    fill, at_once, most, two = NewFile.fill, 0, 0, asyncio.Event()

    async def slow(self: NewFile, chunks: Any, on_progress: Any, hasher: Any) -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 2:
            two.set()
        await two.wait()
        await asyncio.sleep(0.02)  # time for a third copy to start
        try:
            return await fill(self, chunks, on_progress, hasher)
        finally:
            at_once -= 1

    monkeypatch.setattr(NewFile, "fill", slow)

    async def scene(cloud: VolumeCloud) -> None:
        image_id = await image(cloud, IMAGE)
        await asyncio.gather(*(make(cloud, imageRef=image_id) for _ in range(6)))
        assert most == 2

    play(sqlite_url, scene, volume__concurrent_copies=2)


def test_delete_removes_files(sqlite_url: str) -> None:
    async def scene(cloud: VolumeCloud) -> None:
        volume_id = await make(cloud, imageRef=await image(cloud, IMAGE))
        await snapshot(cloud, volume_id)
        response = await cloud.delete(f"/volumes/{volume_id}?cascade=true")
        assert response.status == 202, response.body
        await cloud.gone(f"/volumes/{volume_id}")
        root = VolumeFiles.of(cloud.services.config).root
        assert [path for path in root.rglob("*") if path.is_file()] == []

    play(sqlite_url, scene)
