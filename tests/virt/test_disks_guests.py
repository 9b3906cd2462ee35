"""Snapshots, rescue and passwords with running guests."""

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
from tests.hosts.libvirt.support import FakeImageService, run_tool, transfer
from tests.hosts.support import disk
from tests.support.ports import free_port
from tests.support.virt_hosts import Host, wait_until
from tests.virt.disks_support import build_config, disk_bench


def ticks(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"TICK (\d{5})", text)]


# Snapshots


def test_snapshot_of_running_guest(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot(flavor=Flavor(name="micro", vcpus=1, ram_mb=32, disk_gb=1))
            await bench.wait_for_output(guest_id, "TICK 00001")
            before = bench.files(guest_id)
            await bench.driver.snapshot(guest_id, transfer("snap"))
            now = ticks(await bench.console(guest_id))[-1]
            await bench.wait_for_output(guest_id, f"TICK {now + 2:05}")
            counted = ticks(await bench.console(guest_id))
            assert counted == list(range(1, len(counted) + 1)), "the guest has not rebooted"
            assert bench.files(guest_id) == before
            assert (await bench.domain_xml(guest_id)).find("devices/disk/mirror") is None

            # The snapshot boots without the original image.
            path = tmp_path / "snap"
            path.write_bytes(bench.service.data["snap"])
            info = run_tool("qemu-img", "info", path)
            assert "file format: qcow2" in info
            assert "backing file" not in info
            assert "1 GiB" in info
            other = await bench.boot(
                Image(id="snap", disk_format="qcow2"), flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=2)
            )
            await bench.wait_for_output(other, "HELLO plain")

            # A repeated snapshot does nothing.
            await bench.driver.snapshot(guest_id, transfer("snap"))
            assert bench.service.writes == ["snap"]

    asyncio.run(scenario())


@pytest.mark.parametrize("power", ["pause", "suspend", "power_off"])
def test_snapshot_of_inactive_guest(host: Host, tmp_path: Path, power: str) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            await bench.wait_for_output(guest_id, "TICK")
            before = (await getattr(bench.driver, power)(guest_id)).power
            bench.service.facts["snap"] = {"disk_format": "raw"}
            await bench.driver.snapshot(guest_id, transfer("snap"))
            assert bench.service.data["snap"] == bench.service.data["plain"]
            assert (await bench.hypervisor.state(guest_id)).power == before
            assert "snapshot" not in bench.files(guest_id)

    asyncio.run(scenario())


def test_cancelled_snapshot_leaves_no_files(host: Host, tmp_path: Path) -> None:
    class BlockingImageService(FakeImageService):
        async def write(self, transfer: Transfer, data: Any) -> None:
            async for _ in data:
                started.set()
                await asyncio.sleep(60)

    started = asyncio.Event()

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            working = bench.hypervisor.images.images
            bench.hypervisor.images.images = BlockingImageService()
            task = asyncio.create_task(bench.driver.snapshot(guest_id, transfer("snap")))
            await asyncio.wait_for(started.wait(), 60)
            assert "snapshot" in bench.files(guest_id)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert "snapshot" not in bench.files(guest_id)
            # The same during the copy.
            for seconds in (0.0, 0.02, 0.05, 0.1, 0.2):
                task = asyncio.create_task(bench.driver.snapshot(guest_id, transfer("snap")))
                await asyncio.sleep(seconds)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert "snapshot" not in bench.files(guest_id)
                assert (await bench.domain_xml(guest_id)).find("devices/disk/mirror") is None
            bench.hypervisor.images.images = working
            await bench.driver.snapshot(guest_id, transfer("snap"))
            assert "snap" in bench.service.data

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["the next snapshot", "the next start of the agent"])
def test_killed_snapshot_is_cleaned_up(host: Host, tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            directory = bench.hypervisor.layout.guest_directory(guest_id) / "snapshot"
            directory.mkdir()
            run_tool("qemu-img", "create", "-q", "-f", "qcow2", directory / "copy", "1M")
            domain = await bench.hypervisor.domain(guest_id)
            await bench.hypervisor.connection.run(snapshots._begin_copy, domain, "vda", str(directory / "copy"), False)
            assert (await bench.domain_xml(guest_id)).find("devices/disk/mirror") is not None
            if by == "the next snapshot":
                await bench.driver.snapshot(guest_id, transfer("snap"))
                assert "snap" in bench.service.data
            else:
                await snapshots.recover(bench.hypervisor)
            assert (await bench.domain_xml(guest_id)).find("devices/disk/mirror") is None
            assert "snapshot" not in bench.files(guest_id)

    asyncio.run(scenario())


def test_snapshot_without_free_space_is_refused(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            usage = shutil.disk_usage(tmp_path)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
            with pytest.raises(DriverError, match="only 1000 are free"):
                await bench.driver.snapshot(guest_id, transfer("snap"))
            assert "snapshot" not in bench.files(guest_id)

    asyncio.run(scenario())


def test_recovery_leaves_running_snapshots_alone(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            task = asyncio.create_task(bench.driver.snapshot(guest_id, transfer("snap")))
            while not task.done():
                await snapshots.recover(bench.hypervisor)
                await asyncio.sleep(0.01)
            await task
            assert "snap" in bench.service.data

    asyncio.run(scenario())


def test_required_quiesce_needs_a_guest_agent(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot(Image(id="plain", properties={"os_require_quiesce": "yes"}))
            with pytest.raises(DriverError, match="freeze") as caught:
                await bench.driver.snapshot(guest_id, transfer("snap"))
            assert caught.value.kind == "no guest agent"
            assert "snapshot" not in bench.files(guest_id)
            assert (await bench.domain_xml(guest_id)).find("devices/disk/mirror") is None
            # A stopped guest needs no freeze.
            await bench.driver.power_off(guest_id)
            await bench.driver.snapshot(guest_id, transfer("snap"))

    asyncio.run(scenario())


# Rescue


def test_rescue_survives_restarts_until_unrescue(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot(config_drive=True)
            await bench.wait_for_output(guest_id, "HELLO plain")
            before = bench.files(guest_id)
            for _ in range(2):
                state = await bench.driver.rescue(guest_id, Image(id="helper"), transfer("helper"), "secret")
                assert state.power == "running"
            await bench.wait_for_output(guest_id, "HELLO helper")
            assert (await bench.console(guest_id)).count("HELLO helper") == 1, (
                "a repeated rescue does not reboot the guest"
            )
            assert await bench.disks(guest_id) == [
                ("hda", "disk.config.rescue", None),
                ("vda", "disk.rescue", "1"),
                ("vdb", "disk", None),
            ]
            drive = bench.hypervisor.layout.guest_directory(guest_id) / "disk.config.rescue"
            assert '"admin_pass":"secret"' in run_tool(
                "isoinfo", "-J", "-x", "/openstack/latest/meta_data.json", "-i", drive
            )

            # The rescue survives the loss of domain and agent.
            for restart in ("hard reboot", "off and on", "another agent"):
                offset = await bench.console_length(guest_id)
                if restart == "hard reboot":
                    await bench.driver.reboot(guest_id, hard=True)
                elif restart == "off and on":
                    await bench.driver.power_off(guest_id)
                    await bench.driver.power_on(guest_id)
                else:
                    await bench.hypervisor.undefine(guest_id)
                    driver = LibvirtDriver("disks", build_config(host, tmp_path), bench.service)
                    await driver.rescue(guest_id, Image(id="helper"), None)
                    await driver.close()
                await bench.wait_for_output(guest_id, "HELLO helper", after=offset)

            # A snapshot contains the guest's own disk.
            bench.service.facts["snap"] = {"disk_format": "raw"}
            await bench.driver.snapshot(guest_id, transfer("snap"))
            assert bench.service.data["snap"] == bench.service.data["plain"]

            offset = await bench.console_length(guest_id)
            for _ in range(2):
                assert (await bench.driver.unrescue(guest_id)).power == "running"
            await bench.wait_for_output(guest_id, "HELLO plain", after=offset)
            assert (await bench.console(guest_id))[offset:].count("HELLO") == 1
            assert bench.files(guest_id) == before
            assert await bench.disks(guest_id) == [("hda", "disk.config", None), ("vda", "disk", "1")]

    asyncio.run(scenario())


def test_rescue_without_image_uses_the_guests_image(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            await bench.driver.power_off(guest_id)
            offset = await bench.console_length(guest_id)
            await bench.driver.rescue(guest_id, None, transfer("plain"))
            await bench.wait_for_output(guest_id, "HELLO plain", after=offset)
            assert ("vda", "disk.rescue", "1") in await bench.disks(guest_id)

    asyncio.run(scenario())


def test_stable_rescue_keeps_device_names(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot(flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=0, swap_mb=1))
            for bus, device, target in (
                ("virtio", "", "vdc"),
                ("scsi", "disk", "sda"),
                ("", "cdrom", "hda"),
                ("", "floppy", "fda"),
            ):
                offset = await bench.console_length(guest_id)
                properties = {"hw_rescue_bus": bus, "hw_rescue_device": device}
                image = Image(id="helper", properties={name: value for name, value in properties.items() if value})
                await bench.driver.rescue(guest_id, image, transfer("helper"))
                if device != "cdrom":
                    await bench.wait_for_output(guest_id, "HELLO helper", after=offset)
                disks = await bench.disks(guest_id)
                assert (target, "disk.rescue", "1") in disks
                assert {("vda", "disk", None), ("vdb", "disk.swap", None)} <= set(disks)
                await bench.driver.unrescue(guest_id)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "image, reason",
    [
        (Image(id="helper", properties={"hw_rescue_device": "tape"}), "tape"),
        (Image(id="helper", properties={"hw_rescue_bus": "fdc"}), "fdc"),
        (Image(id="liar", disk_format="qcow2"), "declared disk format is qcow2"),
        (Image(id="nowhere"), "queued"),
    ],
)
def test_refused_rescue_leaves_the_guest_running(host: Host, tmp_path: Path, image: Image, reason: str) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            before = bench.files(guest_id)
            with pytest.raises(DriverError, match=reason):
                await bench.driver.rescue(guest_id, image, transfer(image.id))
            assert bench.files(guest_id) == before
            assert (await bench.hypervisor.state(guest_id)).power == "running"

    asyncio.run(scenario())


def test_stable_rescue_of_guest_booted_from_volume(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "volume"
    path.write_bytes(host.site.micro_image("plain").read_bytes())
    port = free_port(host.site.address)
    command = ["qemu-nbd", "-f", "raw", "-x", "vol", "-b", host.site.address, "-p", str(port), "-t", "-e", "0"]
    server = subprocess.Popen([*command, str(path)])
    wait_until(lambda: _is_listening(host.site.address, port), "the volume is exported")
    data = {"host": host.site.address, "port": port, "export": "vol", "access_mode": "rw"}
    volume = disk(connection={"driver_volume_type": "nbd", "data": data}, device="/dev/vda", boot_index=0)

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot(image=None, disks=[volume])
            await bench.wait_for_output(guest_id, "HELLO plain")
            image = Image(id="helper", properties={"hw_rescue_bus": "virtio"})
            offset = await bench.console_length(guest_id)
            await bench.driver.rescue(guest_id, image, transfer("helper"))
            await bench.wait_for_output(guest_id, "HELLO helper", after=offset)
            assert await bench.disks(guest_id) == [("vda", "", "2"), ("vdb", "disk.rescue", "1")]
            offset = await bench.console_length(guest_id)
            await bench.driver.unrescue(guest_id)
            await bench.wait_for_output(guest_id, "HELLO plain", after=offset)

    try:
        asyncio.run(scenario())
    finally:
        server.kill()
        server.wait()


def _is_listening(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_guest_booted_from_volume_requires_a_stable_rescue(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest = Guest(
                id=ids.new_id(),
                name="of a volume",
                project_id="p",
                user_id="u",
                flavor=Flavor(vcpus=1, ram_mb=32, disk_gb=1),
            )
            bench.hypervisor.write_spec(guest)
            bench.guest_ids.append(guest.id)
            with pytest.raises(DriverError, match="hw_rescue_device"):
                await bench.driver.rescue(guest.id, Image(id="helper"), transfer("helper"))
            with pytest.raises(DriverError, match="requires an image"):
                await bench.driver.rescue(guest.id, None, None)
            with pytest.raises(DriverError, match="volume"):
                await bench.driver.snapshot(guest.id, transfer("snap"))

    asyncio.run(scenario())


# Passwords


def test_set_password_requires_a_guest_agent(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            for properties in ({}, {"hw_qemu_guest_agent": "yes"}):
                guest_id = await bench.boot(Image(id="plain", properties=properties))
                with pytest.raises(DriverError, match="agent") as caught:
                    await bench.driver.set_password(guest_id, "", "geheim")
                assert caught.value.kind == "no guest agent"
                assert "geheim" not in caught.value.message
            await bench.driver.power_off(guest_id)
            with pytest.raises(DriverError) as caught:
                await bench.driver.set_password(guest_id, "", "geheim")
            assert caught.value.kind == "not running"

    asyncio.run(scenario())


# Unsafe images


def test_image_with_backing_file_is_not_booted(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret".ljust(1 << 20, b"\0"))
    evil = tmp_path / "evil"
    run_tool("qemu-img", "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", evil)

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            bench.service.put("evil", evil.read_bytes())
            for disk_format, reason in (("qcow2", "backing file"), ("raw", "image is qcow2")):
                with pytest.raises(DriverError, match=reason):
                    await bench.boot(Image(id="evil", disk_format=disk_format))
                assert await bench.hypervisor.power(bench.guest_ids[-1]) is None

    asyncio.run(scenario())


def test_base_image_of_a_guest_is_not_removed(host: Host, tmp_path: Path) -> None:
    from kilonova.hosts.drivers.libvirt import disks

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            guest_id = await bench.boot()
            base = await bench.hypervisor.images.get(Image(id="plain"), transfer("plain"))
            used = disks.base_images_in_use(bench.hypervisor.layout)
            assert base.path in used
            assert base.path not in await bench.hypervisor.images.remove_unused(used, -10)
            await bench.wait_for_output(guest_id, "TICK")
            await bench.driver.destroy(guest_id)
            assert base.path in await bench.hypervisor.images.remove_unused(
                disks.base_images_in_use(bench.hypervisor.layout), -10
            )

    asyncio.run(scenario())


def test_rescue_mode_is_read_as_written() -> None:
    from kilonova.hosts.drivers.libvirt.rescue import Mode

    mode = Mode(image_id="i", stable=True, device="cdrom", bus="ide")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mode), type=Mode) == mode
