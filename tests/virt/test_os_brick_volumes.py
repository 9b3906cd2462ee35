"""Volumes of a Cinder in libvirt guests: files, and file systems that os-brick mounts."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import programs
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Disk, Flavor, Guest, Image
from kilonova.ids import new_id
from tests.support.virt_driver import IMAGE_TRANSFER, DriverBench, FileImageService, wait_until
from tests.support.virt_hosts import linux_image
from tests.virt.test_volumes_guests import GIB_SECTORS, SCRIPT

EXPORT = "127.0.0.1:/kn"


def mount_point(bench: DriverBench) -> Path:
    return bench.instances / "_mounts" / hashlib.md5(EXPORT.encode(), usedforsecurity=False).hexdigest()


@contextmanager
def mounted(bench: DriverBench) -> Iterator[Path]:
    """The mount point of the export on the host. The kernel may have no NFS, so the directory is mounted on itself."""
    path = mount_point(bench)
    path.mkdir(parents=True)
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def make_file(path: Path) -> Path:
    path.touch(0o666)
    os.truncate(path, 1 << 30)
    return path


def disk_of(kind: str, **data: Any) -> Disk:
    return Disk(volume_id=new_id(), connection={"driver_volume_type": kind, "data": data})


def read_number(path: Path) -> int:
    found = re.match(rb"NUMBER (\d+)\.", path.read_bytes()[:64])
    return int(found[1]) if found else 0


def records(bench: DriverBench) -> list[str]:
    return sorted(path.name for path in (bench.directory / "data" / "volume_connections").glob("*@*"))


@pytest.mark.parametrize("kind", ["local", "nfs"])
def test_guest_writes_to_a_file(bench: DriverBench, kind: str) -> None:
    if kind == "nfs":
        pytest.importorskip("os_brick")
    bench.images = FileImageService(linux_image())
    flavor, image = Flavor(vcpus=1, ram_mb=192, disk_gb=1), Image(id="linux", disk_format="qcow2")
    guest = bench.guest(flavor=flavor, image=image, config_drive=True, user_data=SCRIPT)

    async def scenario(driver: LibvirtDriver) -> None:
        with mounted(bench) as directory:
            path = make_file(directory / "volume-1")
            if kind == "local":
                disk = disk_of("local", device_path=str(path), format="raw")
            else:
                disk = disk_of("nfs", export=EXPORT, name=path.name, options=None, format="raw", mount_point_base="/no")
            expected = [f"{disk.volume_id}@{guest.id}"] * (kind == "nfs")
            await driver.spawn(guest, data=IMAGE_TRANSFER)
            await bench.wait_for_output(guest, r"DISKS vda:\d+:;", 0)
            for _ in range(2):
                assert (await driver.attach_disk(guest.id, disk)).volumes == [disk.volume_id]
            await bench.wait_for_output(guest, rf"vdb:{GIB_SECTORS}:{disk.volume_id[:8]};", 0)
            await bench.wait_for_output(guest, r"WROTE 2;", 0)
            assert read_number(path) > 0
            assert records(bench) == expected

            os.truncate(path, 2 << 30)
            await driver.grow_disk(guest.id, disk.volume_id, 2)
            await bench.wait_for_output(guest, rf"vdb:{2 * GIB_SECTORS}:", 0)

            # The host disconnects while the guest is stopped.
            await driver.power_off(guest.id)
            assert records(bench) == []
            since = len(bench.console(guest))
            await driver.power_on(guest.id)
            assert records(bench) == expected
            await bench.wait_for_output(guest, r"WROTE 2;", since)
            assert "LOST" not in bench.console(guest)

            for _ in range(2):
                detached = await driver.detach_disk(guest.id, disk.volume_id)
                assert detached is not None
                assert detached.volumes == []
            assert records(bench) == []
            await driver.attach_disk(guest.id, disk)
            await driver.destroy(guest.id)
            assert records(bench) == []

    bench.run(scenario)


def test_connections_that_fail_leave_nothing(bench: DriverBench) -> None:
    pytest.importorskip("os_brick")
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        connector = await driver.get_connector()
        assert (connector["host"], connector["ip"]) == (bench.host.name, bench.host.address)
        assert (connector["multipath"], connector["do_local_attach"]) == (False, False)
        assert ("initiator" in connector) == Path("/etc/iscsi/initiatorname.iscsi").exists()
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        target = {"target_portal": "127.0.0.1:1", "target_iqn": "iqn.2026-01.org:v", "target_lun": 1}
        with pytest.raises(DriverError, match="requires iscsiadm" if programs.find("iscsiadm") is None else "iscsi"):
            await driver.attach_disk(guest.id, disk_of("iscsi", **target))
        with pytest.raises(DriverError, match=r"os-brick on one cannot connect volume .* NFS mount failed"):
            await driver.attach_disk(guest.id, disk_of("nfs", export="127.0.0.1:/none", name="v", format="raw"))
        with pytest.raises(DriverError, match="has no file or device /no/such"):
            await driver.attach_disk(guest.id, disk_of("local", device_path="/no/such"))
        with pytest.raises(DriverError, match="is encrypted"):
            await driver.attach_disk(guest.id, disk_of("local", device_path="/no/such", encrypted=True))
        assert (await driver.list_guests())[0].volumes == []
        assert records(bench) == []

    bench.run(scenario)


@contextmanager
def nfs_volumes(bench: DriverBench, count: int, gigabytes: int = 1) -> Iterator[list[Disk]]:
    pytest.importorskip("os_brick")
    with mounted(bench) as directory:
        names = [make_file(directory / f"volume-{number}").name for number in range(count)]
        yield [disk_of("nfs", export=EXPORT, name=name, options=None, format="raw", size=gigabytes) for name in names]


def elements(bench: DriverBench, guest: Guest, *options: str) -> dict[str, tuple[str, str]]:
    """Target and path of the volumes in the running domain; with `--inactive` in its definition."""
    document = ET.fromstring(bench.host.execute("virsh", "dumpxml", f"kn-{guest.id}", *options))
    found = {}
    for disk in document.findall("devices/disk"):
        target, source = disk.find("target"), disk.find("source")
        assert target is not None
        if source is not None and (serial := disk.findtext("serial")):
            found[serial] = str(target.get("dev")), str(source.get("file"))
    return found


def test_volume_given_at_create_is_detached_from_stopped_guest(bench: DriverBench) -> None:
    async def scenario(driver: LibvirtDriver) -> None:
        with nfs_volumes(bench, 2) as disks:
            first, second = disks
            guest = bench.guest(disks=disks)
            await driver.spawn(guest, data=IMAGE_TRANSFER)
            assert set(elements(bench, guest)) == {first.volume_id, second.volume_id}
            await driver.power_off(guest.id)
            assert records(bench) == []
            for _ in range(2):
                detached = await driver.detach_disk(guest.id, first.volume_id)
                assert detached is not None
                assert detached.volumes == [second.volume_id]
            await driver.power_on(guest.id)
            assert set(elements(bench, guest)) == {second.volume_id}
            # The agent ended after the disconnection, before it wrote the spec.
            spec = driver.hypervisor.spec(guest.id)
            driver.hypervisor.write_spec(msgspec.structs.replace(spec, disks=[*spec.disks, first]))
            detached = await driver.detach_disk(guest.id, first.volume_id)
            assert detached is not None
            assert detached.volumes == [second.volume_id]
            assert set(elements(bench, guest)) == {second.volume_id}
            await driver.destroy(guest.id)

    bench.run(scenario)


def test_stopped_guest_gets_a_volume_with_the_path_of_another(bench: DriverBench) -> None:
    """A stopped guest's volumes are not connected, so the host may give their paths to other volumes."""
    path = make_file(bench.directory / "volume")
    first, second = (disk_of("local", device_path=str(path), format="raw") for _ in range(2))
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, start=False, data=IMAGE_TRANSFER)
        await driver.attach_disk(guest.id, first)
        for _ in range(2):
            await driver.attach_disk(guest.id, second)
            expected = {first.volume_id: ("vdb", str(path)), second.volume_id: ("vdc", str(path))}
            assert elements(bench, guest) == expected
        await driver.detach_disk(guest.id, first.volume_id)
        assert elements(bench, guest) == {second.volume_id: ("vdc", str(path))}
        await driver.power_on(guest.id)
        assert elements(bench, guest) == {second.volume_id: ("vdc", str(path))}
        await driver.destroy(guest.id)

    bench.run(scenario)


def test_suspended_guest_finds_volumes_at_other_paths(bench: DriverBench) -> None:
    """A host that has rebooted may have given a volume another path."""
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        connections = driver.hypervisor.volumes.connections
        with nfs_volumes(bench, 1) as (disk,):
            old, new = mount_point(bench) / "volume-0", mount_point(bench) / "other"
            await driver.spawn(guest, data=IMAGE_TRANSFER)
            await driver.attach_disk(guest.id, disk)
            await driver.suspend(guest.id)
            await driver.resume(guest.id)
            assert elements(bench, guest) == {disk.volume_id: ("vdb", str(old))}

            await driver.suspend(guest.id)
            old.rename(new)
            other = {**disk.connection, "data": {**disk.connection["data"], "name": new.name}}
            spec = driver.hypervisor.spec(guest.id)
            disks = [msgspec.structs.replace(spec.disks[0], connection=other)]
            driver.hypervisor.write_spec(msgspec.structs.replace(spec, disks=disks))
            assert (await driver.resume(guest.id)).power == "running"
            expected = {disk.volume_id: ("vdb", str(new))}
            assert elements(bench, guest) == elements(bench, guest, "--inactive") == expected
            ticks = len(bench.ticks(guest))
            await wait_until(lambda: len(bench.ticks(guest)) > ticks, "the guest counts on")
            assert connections.find(guest.id, disk.volume_id) is not None
            await driver.destroy(guest.id)

    bench.run(scenario)


def test_failed_or_interrupted_swap_leaves_no_volume_connected(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        connections = driver.hypervisor.volumes.connections
        with nfs_volumes(bench, 2) as (old, new):
            os.truncate(mount_point(bench) / "volume-0", 2 << 30)
            await driver.spawn(guest, data=IMAGE_TRANSFER)
            await driver.attach_disk(guest.id, old)
            with pytest.raises(DriverError, match="fewer than"):
                await driver.swap_disk(guest.id, old.volume_id, new)
            # The undo.
            for _ in range(2):
                assert (await driver.swap_disk(guest.id, new.volume_id, old)).volumes == [old.volume_id]
            assert records(bench) == [f"{old.volume_id}@{guest.id}"]

            # The agent ended before it disconnected the old volume.
            connection = {**new.connection, "data": {**new.connection["data"], "size": 2}}
            larger = msgspec.structs.replace(new, connection=connection)
            os.truncate(mount_point(bench) / "volume-1", 2 << 30)
            with pytest.MonkeyPatch.context() as patch:

                async def killed(*args: Any) -> None:
                    raise RuntimeError("killed")

                patch.setattr(connections, "disconnect", killed)
                with pytest.raises(RuntimeError):
                    await driver.swap_disk(guest.id, old.volume_id, larger)
            for _ in range(2):
                assert (await driver.swap_disk(guest.id, old.volume_id, larger)).volumes == [new.volume_id]
            assert records(bench) == [f"{new.volume_id}@{guest.id}"]
            await driver.destroy(guest.id)

    bench.run(scenario)
