"""A guest's own disks: made once, as large as its flavor says, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import disks
from kilonova.hosts.drivers.libvirt.images import Base
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.drivers.libvirt.rescue import Mode
from kilonova.hosts.messages import Flavor, Guest, Image, LocalDisk
from tests.hosts import support
from tests.hosts.libvirt.support import GIB, MIB, do, need


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("qemu-img", "mkfs.ext4", "mkswap", "blkid")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "instances")


@pytest.fixture
def base(layout: Layout) -> Base:
    layout.base.mkdir(parents=True)
    path = layout.base / "image.raw"
    path.write_bytes(b"boot".ljust(2 * MIB, b"\1"))
    return Base(path, "raw", 2 * MIB)


def flavor(disk_gb: int = 1, **more: Any) -> Flavor:
    return Flavor(vcpus=1, ram_mb=64, disk_gb=disk_gb, **more)


def a_guest(**more: Any) -> Guest:
    return support.guest(**{"flavor": flavor(), **more})


def info(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(do("qemu-img", "info", "--output=json", path))
    return found


def names(layout: Layout, guest: Guest) -> list[str]:
    return sorted(path.name for path in layout.guest(guest.id).iterdir())


def test_the_root_lies_over_the_image_and_has_the_size_of_the_flavor(layout: Layout, base: Base) -> None:
    guest = a_guest()
    asyncio.run(disks.build(layout, guest, base))
    found = info(layout.guest(guest.id) / "disk")
    assert found["virtual-size"] == GIB
    assert found["full-backing-filename"] == str(base.path)
    assert found["backing-filename-format"] == "raw"
    assert disks.base_of(layout.guest(guest.id) / "disk") == base.path
    assert disks.bases(layout) == {base.path}
    assert names(layout, guest) == ["disk"]


def test_without_a_size_the_root_is_as_large_as_the_image(layout: Layout, base: Base) -> None:
    guest = a_guest(flavor=flavor(0))
    asyncio.run(disks.build(layout, guest, base))
    assert info(layout.guest(guest.id) / "disk")["virtual-size"] == 2 * MIB


def test_an_image_larger_than_the_flavor_is_refused(layout: Layout, base: Base) -> None:
    guest = a_guest()
    with pytest.raises(DriverError, match=f"{GIB + 512} bytes, but the flavor gives {GIB}"):
        asyncio.run(disks.build(layout, guest, Base(base.path, "raw", GIB + 512)))


def test_building_again_keeps_what_the_guest_has_written(layout: Layout, base: Base) -> None:
    need("qemu-io")
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=16))
    asyncio.run(disks.build(layout, guest, base))
    root = layout.guest(guest.id) / "disk"
    do("qemu-io", "-f", "qcow2", "-c", "write -P 7 0 4k", root)
    before = {path: path.read_bytes() for path in layout.guest(guest.id).iterdir() if path.stat().st_size < 100 * MIB}
    asyncio.run(disks.build(layout, guest, base))
    assert all(path.read_bytes() == content for path, content in before.items())
    assert names(layout, guest) == ["disk", "disk.eph0", "disk.swap"]


def test_what_was_made_half_is_made_anew(layout: Layout, base: Base) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=1))
    directory = layout.guest(guest.id)
    directory.mkdir(parents=True)
    (directory / "disk").write_bytes(b"QFI")
    (directory / "disk.part").write_bytes(b"rest")
    (directory / "disk.eph0.part").write_bytes(b"rest")
    asyncio.run(disks.build(layout, guest, base))
    assert info(directory / "disk")["virtual-size"] == GIB
    assert names(layout, guest) == ["disk", "disk.eph0"]


def test_a_root_over_another_image_is_made_anew(layout: Layout, base: Base) -> None:
    guest = a_guest()
    other = Base(layout.base / "other.raw", "raw", 2 * MIB)
    other.path.write_bytes(bytes(2 * MIB))
    asyncio.run(disks.build(layout, guest, other))
    asyncio.run(disks.build(layout, guest, base))
    assert disks.base_of(layout.guest(guest.id) / "disk") == base.path


def test_building_that_is_stopped_leaves_no_parts(layout: Layout, base: Base) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=20))

    async def is_caught() -> bool:
        task = asyncio.create_task(disks.build(layout, guest, base))
        while not (layout.guest(guest.id) / "disk.eph0.part").exists() and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    while not asyncio.run(is_caught()):
        shutil.rmtree(layout.guest(guest.id))  # it was too quick
    assert names(layout, guest) == ["disk"]


def test_ephemeral_disks_and_swap_are_ready_for_use(layout: Layout, base: Base) -> None:
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=16))
    asyncio.run(disks.build(layout, guest, base))
    directory = layout.guest(guest.id)
    assert do("blkid", "-o", "value", "-s", "LABEL", "-s", "TYPE", directory / "disk.eph0").split() == [
        "ephemeral0",
        "ext4",
    ]
    assert do("blkid", "-o", "value", "-s", "TYPE", directory / "disk.swap").split() == ["swap"]
    assert (directory / "disk.eph0").stat().st_size == GIB
    assert (directory / "disk.swap").stat().st_size == 16 * MIB
    assert (directory / "disk.eph0").stat().st_blocks * 512 < 200 * MIB


def test_local_disks_that_were_asked_for_replace_those_of_the_flavor(layout: Layout, base: Base) -> None:
    asked = [
        LocalDisk(size_mb=32, device="/dev/vdd", format="ext3", tag="scratch"),
        LocalDisk(size_mb=48),
        LocalDisk(size_mb=8, format="swap"),
    ]
    guest = a_guest(flavor=flavor(ephemeral_gb=1, swap_mb=512), local_disks=asked)
    asyncio.run(disks.build(layout, guest, base))
    directory = layout.guest(guest.id)
    assert names(layout, guest) == ["disk", "disk.eph0", "disk.eph1", "disk.swap"]
    kind = do("blkid", "-o", "value", "-s", "TYPE", "-s", "LABEL", directory / "disk.eph0").split()
    assert kind == ["ephemeral0", "ext3"]
    assert (directory / "disk.eph1").stat().st_size == 48 * MIB
    assert [(file.name, file.target, file.tag) for file in disks.files(guest)] == [
        ("disk", "vda", ""),
        ("disk.eph0", "vdd", "scratch"),
        ("disk.eph1", "vdb", ""),
        ("disk.swap", "vdc", ""),
    ]


def test_a_file_system_that_nobody_makes_is_refused(layout: Layout, base: Base) -> None:
    guest = a_guest(local_disks=[LocalDisk(size_mb=32, format="; rm -rf /")])
    with pytest.raises(DriverError, match="makes no"):
        asyncio.run(disks.build(layout, guest, base))


def test_a_guest_that_boots_from_a_volume_has_no_root_here(layout: Layout) -> None:
    guest = a_guest(image=None, disks=[support.disk(boot_index=0, device="/dev/vda")], flavor=flavor(swap_mb=8))
    asyncio.run(disks.build(layout, guest, None))
    assert names(layout, guest) == ["disk.swap"]
    assert [(file.name, file.target) for file in disks.files(guest)] == [("disk.swap", "vdb")]


def test_a_root_grows_and_never_shrinks(layout: Layout, base: Base) -> None:
    guest = a_guest()
    asyncio.run(disks.build(layout, guest, base))
    root = layout.guest(guest.id) / "disk"
    for _ in range(2):
        asyncio.run(disks.grow_root(root, flavor(3)))
        assert info(root)["virtual-size"] == 3 * GIB
    asyncio.run(disks.grow_root(root, flavor(0)))
    with pytest.raises(DriverError, match="do not shrink"):
        asyncio.run(disks.grow_root(root, flavor(2)))
    assert info(root)["virtual-size"] == 3 * GIB


def test_buses_are_what_the_image_says() -> None:
    guest = a_guest(image=Image(id="i", properties={"hw_disk_bus": "scsi"}), config_drive=True)
    assert [(file.target, file.bus, file.device, file.boot) for file in disks.files(guest)] == [
        ("sda", "scsi", "disk", 1),
        ("hda", "ide", "cdrom", None),
    ]
    odd = a_guest(image=Image(id="i", properties={"hw_disk_bus": "<bus/>"}), config_drive=True)
    assert [(file.target, file.bus) for file in disks.files(odd, "q35")] == [("vda", "virtio"), ("sda", "sata")]


def test_a_cd_is_booted_as_a_cd(layout: Layout, base: Base) -> None:
    guest = a_guest(image=Image(id="i", disk_format="iso"))
    asyncio.run(disks.build(layout, guest, base))
    assert info(layout.guest(guest.id) / "disk")["virtual-size"] == 2 * MIB
    (file,) = disks.files(guest)
    assert (file.device, file.target, file.boot) == ("cdrom", "hda", 1)


def test_the_disks_of_a_guest_in_rescue() -> None:
    guest = a_guest(flavor=flavor(swap_mb=8), disks=[support.disk(device="/dev/vdc")], config_drive=True)
    replaced = Mode(image_id="i", stable=False, device="disk", bus="virtio")
    assert [(file.name, file.target, file.boot) for file in disks.files(guest, rescue=replaced)] == [
        ("disk.rescue", "vda", 1),
        ("disk", "vdb", None),
        ("disk.swap", "vdc", None),
        ("disk.config", "hda", None),
    ]
    stable = Mode(image_id="i", stable=True, device="disk", bus="virtio", config_drive=True)
    assert [(file.name, file.target, file.boot) for file in disks.files(guest, rescue=stable)] == [
        ("disk", "vda", None),
        ("disk.swap", "vdb", None),
        ("disk.config.rescue", "hda", None),
        ("disk.rescue", "vdd", 1),
    ]
