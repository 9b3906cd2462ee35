"""Local disks of guests."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import disks
from kilonova.hosts.drivers.libvirt.images import BaseImage
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.drivers.libvirt.rescue import Mode
from kilonova.hosts.messages import Flavor, Guest, Image, LocalDisk
from tests.hosts import support
from tests.hosts.libvirt.support import GIB, MIB, require_tools, run_tool


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tools("qemu-img", "mkfs.ext4", "mkswap", "blkid")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "instances")


@pytest.fixture
def base(layout: Layout) -> BaseImage:
    layout.base.mkdir(parents=True)
    path = layout.base / "image.raw"
    path.write_bytes(b"boot".ljust(2 * MIB, b"\1"))
    return BaseImage(path, "raw", 2 * MIB)


def flavor(disk_gb: int = 1, **more: Any) -> Flavor:
    return Flavor(vcpus=1, ram_mb=64, disk_gb=disk_gb, **more)


def a_guest(**more: Any) -> Guest:
    return support.guest(**{"flavor": flavor(), **more})


def info(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_tool("qemu-img", "info", "--output=json", path))
    return found


def names(layout: Layout, guest: Guest) -> list[str]:
    return sorted(path.name for path in layout.guest_directory(guest.id).iterdir())


def test_root_disk_is_an_overlay_of_the_flavors_size(layout: Layout, base: BaseImage) -> None:
    guest = a_guest()
    asyncio.run(disks.build(layout, guest, base))
    found = info(layout.guest_directory(guest.id) / "disk")
    assert found["virtual-size"] == GIB
    assert found["full-backing-filename"] == str(base.path)
    assert found["backing-filename-format"] == "raw"
    assert disks.base_image(layout.guest_directory(guest.id) / "disk") == base.path
    assert disks.base_images_in_use(layout) == {base.path}
    assert names(layout, guest) == ["disk"]


def test_root_disk_without_flavor_size_has_the_size_of_the_image(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(flavor=flavor(0))
    asyncio.run(disks.build(layout, guest, base))
    assert info(layout.guest_directory(guest.id) / "disk")["virtual-size"] == 2 * MIB


def test_image_larger_than_the_flavor_is_refused(layout: Layout, base: BaseImage) -> None:
    guest = a_guest()
    with pytest.raises(DriverError, match=f"{GIB + 512} bytes, but the flavor's disk has {GIB}"):
        asyncio.run(disks.build(layout, guest, BaseImage(base.path, "raw", GIB + 512)))


def test_repeated_build_keeps_the_disks(layout: Layout, base: BaseImage) -> None:
    require_tools("qemu-io")
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=16))
    asyncio.run(disks.build(layout, guest, base))
    root = layout.guest_directory(guest.id) / "disk"
    run_tool("qemu-io", "-f", "qcow2", "-c", "write -P 7 0 4k", root)
    before = {
        path: path.read_bytes()
        for path in layout.guest_directory(guest.id).iterdir()
        if path.stat().st_size < 100 * MIB
    }
    asyncio.run(disks.build(layout, guest, base))
    assert all(path.read_bytes() == content for path, content in before.items())
    assert names(layout, guest) == ["disk", "disk.eph0", "disk.swap"]


def test_partial_disk_is_rebuilt(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=1))
    directory = layout.guest_directory(guest.id)
    directory.mkdir(parents=True)
    (directory / "disk").write_bytes(b"QFI")
    (directory / "disk.part").write_bytes(b"rest")
    (directory / "disk.eph0.part").write_bytes(b"rest")
    asyncio.run(disks.build(layout, guest, base))
    assert info(directory / "disk")["virtual-size"] == GIB
    assert names(layout, guest) == ["disk", "disk.eph0"]


def test_root_disk_over_another_image_is_rebuilt(layout: Layout, base: BaseImage) -> None:
    guest = a_guest()
    other = BaseImage(layout.base / "other.raw", "raw", 2 * MIB)
    other.path.write_bytes(bytes(2 * MIB))
    asyncio.run(disks.build(layout, guest, other))
    asyncio.run(disks.build(layout, guest, base))
    assert disks.base_image(layout.guest_directory(guest.id) / "disk") == base.path


def test_cancelled_build_leaves_no_partial_files(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=20))

    async def was_cancelled() -> bool:
        task = asyncio.create_task(disks.build(layout, guest, base))
        while not (layout.guest_directory(guest.id) / "disk.eph0.part").exists() and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    while not asyncio.run(was_cancelled()):
        shutil.rmtree(layout.guest_directory(guest.id))  # the build ended before the cancellation
    assert names(layout, guest) == ["disk"]


def test_ephemeral_disks_and_swap_are_formatted(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=16))
    asyncio.run(disks.build(layout, guest, base))
    directory = layout.guest_directory(guest.id)
    assert run_tool("blkid", "-o", "value", "-s", "LABEL", "-s", "TYPE", directory / "disk.eph0").split() == [
        "ephemeral0",
        "ext4",
    ]
    assert run_tool("blkid", "-o", "value", "-s", "TYPE", directory / "disk.swap").split() == ["swap"]
    assert (directory / "disk.eph0").stat().st_size == GIB
    assert (directory / "disk.swap").stat().st_size == 16 * MIB
    assert (directory / "disk.eph0").stat().st_blocks * 512 < 200 * MIB


def test_requested_local_disks_replace_those_of_the_flavor(layout: Layout, base: BaseImage) -> None:
    asked = [
        LocalDisk(size_mb=32, device="/dev/vdd", format="ext3", tag="scratch"),
        LocalDisk(size_mb=48),
        LocalDisk(size_mb=8, format="swap"),
    ]
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=512), local_disks=asked)
    asyncio.run(disks.build(layout, guest, base))
    directory = layout.guest_directory(guest.id)
    assert names(layout, guest) == ["disk", "disk.eph0", "disk.eph1", "disk.swap"]
    kind = run_tool("blkid", "-o", "value", "-s", "TYPE", "-s", "LABEL", directory / "disk.eph0").split()
    assert kind == ["ephemeral0", "ext3"]
    assert (directory / "disk.eph1").stat().st_size == 48 * MIB
    assert [(file.name, file.target, file.tag) for file in disks.disk_files(guest)] == [
        ("disk", "vda", ""),
        ("disk.eph0", "vdd", "scratch"),
        ("disk.eph1", "vdb", ""),
        ("disk.swap", "vdc", ""),
    ]


def test_unsupported_file_system_is_refused(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(local_disks=[LocalDisk(size_mb=32, format="; rm -rf /")])
    with pytest.raises(DriverError, match="file system"):
        asyncio.run(disks.build(layout, guest, base))


def test_guest_booted_from_volume_has_no_root_disk(layout: Layout) -> None:
    guest = a_guest(image=None, disks=[support.disk(boot_index=0, device="/dev/vda")], flavor=flavor(swap_mb=8))
    asyncio.run(disks.build(layout, guest, None))
    assert names(layout, guest) == ["disk.swap"]
    assert [(file.name, file.target) for file in disks.disk_files(guest)] == [("disk.swap", "vdb")]


def test_root_disk_grows_but_does_not_shrink(layout: Layout, base: BaseImage) -> None:
    guest = a_guest()
    asyncio.run(disks.build(layout, guest, base))
    root = layout.guest_directory(guest.id) / "disk"
    for _ in range(2):
        asyncio.run(disks.grow_root(root, flavor(3)))
        assert info(root)["virtual-size"] == 3 * GIB
    asyncio.run(disks.grow_root(root, flavor(0)))
    with pytest.raises(DriverError, match="cannot shrink"):
        asyncio.run(disks.grow_root(root, flavor(2)))
    assert info(root)["virtual-size"] == 3 * GIB


def test_buses_come_from_image_properties() -> None:
    guest = a_guest(image=Image(id="i", properties={"hw_disk_bus": "scsi"}), config_drive=True)
    assert [(file.target, file.bus, file.device, file.boot) for file in disks.disk_files(guest)] == [
        ("sda", "scsi", "disk", 1),
        ("hda", "ide", "cdrom", None),
    ]
    odd = a_guest(image=Image(id="i", properties={"hw_disk_bus": "<bus/>"}), config_drive=True)
    assert [(file.target, file.bus) for file in disks.disk_files(odd, "q35")] == [("vda", "virtio"), ("sda", "sata")]


def test_iso_image_is_attached_as_cdrom(layout: Layout, base: BaseImage) -> None:
    guest = a_guest(image=Image(id="i", disk_format="iso"))
    asyncio.run(disks.build(layout, guest, base))
    assert info(layout.guest_directory(guest.id) / "disk")["virtual-size"] == 2 * MIB
    (file,) = disks.disk_files(guest)
    assert (file.device, file.target, file.boot) == ("cdrom", "hda", 1)


def test_disk_files_of_a_rescued_guest() -> None:
    guest = a_guest(flavor=flavor(swap_mb=8), disks=[support.disk(device="/dev/vdc")], config_drive=True)
    replaced = Mode(image_id="i", stable=False, device="disk", bus="virtio")
    assert [(file.name, file.target, file.boot) for file in disks.disk_files(guest, rescue=replaced)] == [
        ("disk.rescue", "vda", 1),
        ("disk", "vdb", None),
        ("disk.swap", "vdc", None),
        ("disk.config", "hda", None),
    ]
    stable = Mode(image_id="i", stable=True, device="disk", bus="virtio", config_drive=True)
    assert [(file.name, file.target, file.boot) for file in disks.disk_files(guest, rescue=stable)] == [
        ("disk", "vda", None),
        ("disk.swap", "vdb", None),
        ("disk.config.rescue", "hda", None),
        ("disk.rescue", "vdd", 1),
    ]
