"""Snapshots, rescue and passwords of guests that really run."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova import ids
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import snapshots
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor, Guest, Image, Transfer
from tests.hosts.libvirt.support import Shelf, do, transfer
from tests.hosts.support import disk
from tests.support.ports import free_port
from tests.support.virt_hosts import Host, until
from tests.virt.disks_support import bench, config_of


def ticks(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"TICK (\d{5})", text)]


# Snapshots


def test_a_running_guest_is_snapshotted_and_goes_on(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot(flavor=Flavor(name="micro", vcpus=1, ram_mb=32, disk_gb=1))
            await place.says(guest_id, "TICK 00001")
            before = place.files(guest_id)
            await place.driver.snapshot(guest_id, transfer("snap"))
            now = ticks(await place.said(guest_id))[-1]
            await place.says(guest_id, f"TICK {now + 2:05}")
            counted = ticks(await place.said(guest_id))
            assert counted == list(range(1, len(counted) + 1)), "the guest began anew"
            assert place.files(guest_id) == before
            assert (await place.document(guest_id)).find("devices/disk/mirror") is None

            # It is an image of its own, and boots.
            path = tmp_path / "snap"
            path.write_bytes(place.shelf.data["snap"])
            told = do("qemu-img", "info", path)
            assert "file format: qcow2" in told
            assert "backing file" not in told
            assert "1 GiB" in told
            other = await place.boot(
                Image(id="snap", disk_format="qcow2"), flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=2)
            )
            await place.says(other, "HELLO plain")

            # A second time there is nothing to do.
            await place.driver.snapshot(guest_id, transfer("snap"))
            assert place.shelf.writes == ["snap"]

    asyncio.run(scenario())


@pytest.mark.parametrize("power", ["pause", "suspend", "power_off"])
def test_a_guest_that_stands_still_is_snapshotted(host: Host, tmp_path: Path, power: str) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            await place.says(guest_id, "TICK")
            before = (await getattr(place.driver, power)(guest_id)).power
            place.shelf.facts["snap"] = {"disk_format": "raw"}
            await place.driver.snapshot(guest_id, transfer("snap"))
            assert place.shelf.data["snap"] == place.shelf.data["plain"]
            assert (await place.hv.state(guest_id)).power == before
            assert "snapshot" not in place.files(guest_id)

    asyncio.run(scenario())


def test_a_snapshot_that_is_stopped_leaves_nothing(host: Host, tmp_path: Path) -> None:
    class Stuck(Shelf):
        async def write(self, transfer: Transfer, data: Any) -> None:
            async for _ in data:
                reached.set()
                await asyncio.sleep(60)

    reached = asyncio.Event()

    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            good = place.hv.images.images
            place.hv.images.images = Stuck()
            task = asyncio.create_task(place.driver.snapshot(guest_id, transfer("snap")))
            await asyncio.wait_for(reached.wait(), 60)
            assert "snapshot" in place.files(guest_id)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert "snapshot" not in place.files(guest_id)
            # While the copy is under way: the same.
            for moment in (0.0, 0.02, 0.05, 0.1, 0.2):
                task = asyncio.create_task(place.driver.snapshot(guest_id, transfer("snap")))
                await asyncio.sleep(moment)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert "snapshot" not in place.files(guest_id)
                assert (await place.document(guest_id)).find("devices/disk/mirror") is None
            place.hv.images.images = good
            await place.driver.snapshot(guest_id, transfer("snap"))
            assert "snap" in place.shelf.data

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["the next snapshot", "the next start of the agent"])
def test_what_a_killed_snapshot_left_goes(host: Host, tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            directory = place.hv.layout.guest(guest_id) / "snapshot"
            directory.mkdir()
            do("qemu-img", "create", "-q", "-f", "qcow2", directory / "copy", "1M")
            domain = await place.hv.domain(guest_id)
            await place.hv.connection.run(snapshots._begin_copy, domain, "vda", str(directory / "copy"), False)
            assert (await place.document(guest_id)).find("devices/disk/mirror") is not None
            if by == "the next snapshot":
                await place.driver.snapshot(guest_id, transfer("snap"))
                assert "snap" in place.shelf.data
            else:
                await snapshots.recover(place.hv)
            assert (await place.document(guest_id)).find("devices/disk/mirror") is None
            assert "snapshot" not in place.files(guest_id)

    asyncio.run(scenario())


def test_a_snapshot_that_would_fill_the_host_is_not_tried(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            usage = shutil.disk_usage(tmp_path)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
            with pytest.raises(DriverError, match="only 1000 are free"):
                await place.driver.snapshot(guest_id, transfer("snap"))
            assert "snapshot" not in place.files(guest_id)

    asyncio.run(scenario())


def test_what_an_agent_finds_at_its_start_is_not_what_it_does(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            task = asyncio.create_task(place.driver.snapshot(guest_id, transfer("snap")))
            while not task.done():
                await snapshots.recover(place.hv)
                await asyncio.sleep(0.01)
            await task
            assert "snap" in place.shelf.data

    asyncio.run(scenario())


def test_quiet_disks_need_an_agent(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot(Image(id="plain", properties={"os_require_quiesce": "yes"}))
            with pytest.raises(DriverError, match="quiet") as caught:
                await place.driver.snapshot(guest_id, transfer("snap"))
            assert caught.value.kind == "no guest agent"
            assert "snapshot" not in place.files(guest_id)
            assert (await place.document(guest_id)).find("devices/disk/mirror") is None
            # One that stands still is quiet.
            await place.driver.power_off(guest_id)
            await place.driver.snapshot(guest_id, transfer("snap"))

    asyncio.run(scenario())


# Rescue


def test_a_guest_is_rescued_stays_so_and_comes_back(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot(config_drive=True)
            await place.says(guest_id, "HELLO plain")
            before = place.files(guest_id)
            for _ in range(2):
                state = await place.driver.rescue(guest_id, Image(id="helper"), transfer("helper"), "secret")
                assert state.power == "running"
            await place.says(guest_id, "HELLO helper")
            assert (await place.said(guest_id)).count("HELLO helper") == 1, "a repeat is no new boot"
            assert await place.disks(guest_id) == [
                ("hda", "disk.config.rescue", None),
                ("vda", "disk.rescue", "1"),
                ("vdb", "disk", None),
            ]
            drive = place.hv.layout.guest(guest_id) / "disk.config.rescue"
            assert '"admin_pass":"secret"' in do("isoinfo", "-J", "-x", "/openstack/latest/meta_data.json", "-i", drive)

            # Whatever becomes of domain and agent.
            for again in ("hard reboot", "off and on", "another agent"):
                at = await place.length(guest_id)
                if again == "hard reboot":
                    await place.driver.reboot(guest_id, hard=True)
                elif again == "off and on":
                    await place.driver.power_off(guest_id)
                    await place.driver.power_on(guest_id)
                else:
                    await place.hv.undefine(guest_id)
                    driver = LibvirtDriver("disks", config_of(host, tmp_path), place.shelf)
                    await driver.rescue(guest_id, Image(id="helper"), None)
                    await driver.close()
                await place.says(guest_id, "HELLO helper", after=at)

            # A snapshot is of the guest's own disk.
            place.shelf.facts["snap"] = {"disk_format": "raw"}
            await place.driver.snapshot(guest_id, transfer("snap"))
            assert place.shelf.data["snap"] == place.shelf.data["plain"]

            at = await place.length(guest_id)
            for _ in range(2):
                assert (await place.driver.unrescue(guest_id)).power == "running"
            await place.says(guest_id, "HELLO plain", after=at)
            assert (await place.said(guest_id))[at:].count("HELLO") == 1
            assert place.files(guest_id) == before
            assert await place.disks(guest_id) == [("hda", "disk.config", None), ("vda", "disk", "1")]

    asyncio.run(scenario())


def test_without_an_image_the_guests_own_rescues_it(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            await place.driver.power_off(guest_id)
            at = await place.length(guest_id)
            await place.driver.rescue(guest_id, None, None)
            await place.says(guest_id, "HELLO plain", after=at)
            assert ("vda", "disk.rescue", "1") in await place.disks(guest_id)

    asyncio.run(scenario())


def test_a_stable_rescue_leaves_everything_in_its_place(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot(flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=0, swap_mb=1))
            for bus, device, target in (
                ("virtio", "", "vdc"),
                ("scsi", "disk", "sda"),
                ("", "cdrom", "hda"),
                ("", "floppy", "fda"),
            ):
                at = await place.length(guest_id)
                said = {"hw_rescue_bus": bus, "hw_rescue_device": device}
                image = Image(id="helper", properties={name: value for name, value in said.items() if value})
                await place.driver.rescue(guest_id, image, transfer("helper"))
                if device != "cdrom":
                    await place.says(guest_id, "HELLO helper", after=at)
                disks = await place.disks(guest_id)
                assert (target, "disk.rescue", "1") in disks
                assert {("vda", "disk", None), ("vdb", "disk.swap", None)} <= set(disks)
                await place.driver.unrescue(guest_id)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "image, why",
    [
        (Image(id="helper", properties={"hw_rescue_device": "tape"}), "tape"),
        (Image(id="helper", properties={"hw_rescue_bus": "fdc"}), "fdc"),
        (Image(id="liar", disk_format="qcow2"), "not qcow2"),
        (Image(id="nowhere"), "queued"),
    ],
)
def test_a_rescue_that_cannot_be_leaves_the_guest_running(host: Host, tmp_path: Path, image: Image, why: str) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            before = place.files(guest_id)
            with pytest.raises(DriverError, match=why):
                await place.driver.rescue(guest_id, image, transfer(image.id))
            assert place.files(guest_id) == before
            assert (await place.hv.state(guest_id)).power == "running"

    asyncio.run(scenario())


def test_a_guest_of_a_volume_is_rescued_beside_it(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "volume"
    path.write_bytes(host.site.micro_image("plain").read_bytes())
    port = free_port(host.site.address)
    command = ["qemu-nbd", "-f", "raw", "-x", "vol", "-b", host.site.address, "-p", str(port), "-t", "-e", "0"]
    server = subprocess.Popen([*command, str(path)])
    until(lambda: _listens(host.site.address, port), "the volume is exported")
    data = {"host": host.site.address, "port": port, "export": "vol", "access_mode": "rw"}
    volume = disk(connection={"driver_volume_type": "nbd", "data": data}, device="/dev/vda", boot_index=0)

    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot(image=None, disks=[volume])
            await place.says(guest_id, "HELLO plain")
            image = Image(id="helper", properties={"hw_rescue_bus": "virtio"})
            at = await place.length(guest_id)
            await place.driver.rescue(guest_id, image, transfer("helper"))
            await place.says(guest_id, "HELLO helper", after=at)
            assert await place.disks(guest_id) == [("vda", "", "2"), ("vdb", "disk.rescue", "1")]
            at = await place.length(guest_id)
            await place.driver.unrescue(guest_id)
            await place.says(guest_id, "HELLO plain", after=at)

    try:
        asyncio.run(scenario())
    finally:
        server.kill()
        server.wait()


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_a_guest_of_a_volume_needs_a_stable_rescue(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest = Guest(
                id=ids.new_id(),
                name="of a volume",
                project_id="p",
                user_id="u",
                flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=1),
            )
            place.hv.write_spec(guest)
            place.made.append(guest.id)
            with pytest.raises(DriverError, match="hw_rescue_device"):
                await place.driver.rescue(guest.id, Image(id="helper"), transfer("helper"))
            with pytest.raises(DriverError, match="needs an image"):
                await place.driver.rescue(guest.id, None, None)
            with pytest.raises(DriverError, match="volume"):
                await place.driver.snapshot(guest.id, transfer("snap"))

    asyncio.run(scenario())


# Passwords


def test_a_password_needs_somebody_in_the_guest(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            for properties in ({}, {"hw_qemu_guest_agent": "yes"}):
                guest_id = await place.boot(Image(id="plain", properties=properties))
                with pytest.raises(DriverError, match="agent") as caught:
                    await place.driver.set_password(guest_id, "", "geheim")
                assert caught.value.kind == "no guest agent"
                assert "geheim" not in caught.value.message
            await place.driver.power_off(guest_id)
            with pytest.raises(DriverError) as caught:
                await place.driver.set_password(guest_id, "", "geheim")
            assert caught.value.kind == "not running"

    asyncio.run(scenario())


# Images that lie


def test_an_image_that_would_show_the_hosts_files_boots_nothing(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret".ljust(1 << 20, b"\0"))
    evil = tmp_path / "evil"
    do("qemu-img", "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", evil)

    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            place.shelf.put("evil", evil.read_bytes())
            for disk_format, why in (("qcow2", "backing file"), ("raw", "is qcow2")):
                with pytest.raises(DriverError, match=why):
                    await place.boot(Image(id="evil", disk_format=disk_format))
                assert await place.hv.power(place.made[-1]) is None

    asyncio.run(scenario())


def test_a_base_is_in_use_while_a_guest_is(host: Host, tmp_path: Path) -> None:
    from kilonova.hosts.drivers.libvirt import disks

    async def scenario() -> None:
        async with bench(host, tmp_path) as place:
            guest_id = await place.boot()
            base = await place.hv.images.ensure(Image(id="plain"), None)
            used = disks.bases(place.hv.layout)
            assert base.path in used
            assert base.path not in await place.hv.images.tidy(used, -10)
            await place.says(guest_id, "TICK")
            await place.driver.destroy(guest_id)
            assert base.path in await place.hv.images.tidy(disks.bases(place.hv.layout), -10)

    asyncio.run(scenario())


def test_what_is_written_of_a_rescue_is_read_again() -> None:
    from kilonova.hosts.drivers.libvirt.rescue import Mode

    mode = Mode(image_id="i", stable=True, device="cdrom", bus="ide")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mode), type=Mode) == mode
