"""Volumes of the built-in service over NBD in libvirt guests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError, MissingDisk, NotRunning
from kilonova.hosts.drivers.libvirt import volumes
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Disk, Flavor, Guest, Image
from kilonova.ids import new_id
from tests.support import micro_guest
from tests.support.virt_driver import IMAGE_TRANSFER, DriverBench, FileImageService
from tests.support.virt_hosts import linux_image
from tests.volume.exports import support
from tests.volume.exports.support import attach, exporting
from tests.volume.operations.test_content import act, image, make, path_of
from tests.volume.support import VolumeCloud

GIB_SECTORS = 2097152
# Prints its disks, and repeatedly writes a number to the last one.
SCRIPT = b"""#!/bin/sh
n=0
while :; do
    disks=
    for disk in /sys/block/vd?; do disks="$disks ${disk##*/}:$(cat $disk/size):$(cut -c1-8 $disk/serial)"; done
    echo "DISKS$disks;"
    if [ -b /dev/vdb ]; then
        n=$((n + 1))
        echo "NUMBER $n." | dd of=/dev/vdb conv=fsync,notrunc 2>/dev/null && echo "WROTE $n;" || echo "LOST $n;"
    fi
    sleep 0.3
done
"""

Scenario = Callable[[VolumeCloud, LibvirtDriver], Awaitable[None]]


def run_scenario(bench: DriverBench, url: str, scenario: Scenario, *, watch: bool = False) -> None:
    async def run() -> None:
        flags = {"volume__nbd_address": bench.host.site.address}
        async with exporting(url, watch=watch, **flags) as (c, _), bench.running() as driver:
            try:
                await scenario(c, driver)
            finally:
                # QEMU does not end cleanly while its volumes are unreachable.
                await asyncio.to_thread(bench.remove_domains)

    asyncio.run(run())


async def disk_of(c: VolumeCloud, volume_id: str, server_id: str, **keys: Any) -> Disk:
    """The volume's disk as in compute's command to the host."""
    info = dict((await attach(c, volume_id, server_id))["connection_info"])
    connection = {"driver_volume_type": info.pop("driver_volume_type"), "data": info}
    return Disk(volume_id=volume_id, connection=connection, **keys)


async def read_number(c: VolumeCloud, volume_id: str) -> int:
    with (await path_of(c, volume_id)).open("rb") as file:
        found = re.match(rb"NUMBER (\d+)\.", file.read(64))
    return int(found[1]) if found else 0


def volume_ids(guest: Guest) -> list[str]:
    return [disk.volume_id for disk in guest.disks]


def test_attach_detach_swap_and_extend_volumes(bench: DriverBench, sqlite_url: str) -> None:
    bench.images = FileImageService(linux_image())
    guest = bench.guest(
        flavor=Flavor(vcpus=1, ram_mb=192, disk_gb=1),
        image=Image(id="linux", disk_format="qcow2"),
        config_drive=True,
        user_data=SCRIPT,
    )

    async def wait_for_output(pattern: str, since: int) -> re.Match[str]:
        return await bench.wait_for_output(guest, pattern, since)

    def console_length() -> int:
        return len(bench.console(guest))

    async def scenario(c: VolumeCloud, driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await wait_for_output(r"DISKS vda:\d+:;", 0)
        volume_id = await make(c)
        disk = await disk_of(c, volume_id, guest.id)
        for _ in range(2):
            state = await driver.attach_disk(guest.id, disk)
            assert state.volumes == [volume_id]
        await wait_for_output(rf"DISKS vda:\S+ vdb:{GIB_SECTORS}:{volume_id[:8]};", 0)
        await wait_for_output(r"WROTE 2;", 0)
        assert await read_number(c, volume_id) > 0

        # The volume service dies, and the guest's writes wait for it.
        support.kill(Path(c.services.config.data_dir))
        since = console_length()
        await wait_for_output(r"WROTE \d+;[^$]*WROTE", since)
        assert "LOST" not in bench.console(guest)

        await act(c, volume_id, "os-extend", new_size=2)
        for _ in range(2):
            await driver.grow_disk(guest.id, volume_id, 2)
        await wait_for_output(rf"vdb:{2 * GIB_SECTORS}:", since)
        with pytest.raises(MissingDisk):
            await driver.grow_disk(guest.id, new_id(), 2)

        other = await make(c, size=2)
        small = await disk_of(c, await make(c), guest.id)
        with pytest.raises(DriverError, match="bytes"):
            await driver.swap_disk(guest.id, volume_id, small)
        new = await disk_of(c, other, guest.id)
        for _ in range(2):
            state = await driver.swap_disk(guest.id, volume_id, new)
            assert state.volumes == [other]
        before, since = await read_number(c, volume_id), console_length()
        await wait_for_output(r"WROTE \d+;[^$]*WROTE", since)
        assert await read_number(c, volume_id) == before
        assert await read_number(c, other) > before
        with pytest.raises(MissingDisk):
            await driver.swap_disk(guest.id, new_id(), disk)

        # From now on the volume may be detached during writes.
        assert "LOST" not in bench.console(guest)
        since = console_length()
        for _ in range(2):
            detached = await driver.detach_disk(guest.id, other)
            assert detached is not None
            assert detached.volumes == []
        await wait_for_output(r"DISKS vda:\d+:;", since)
        assert await reconnecting_clients(driver, guest) == []

        # A stopped guest has the volume at its next start.
        await driver.power_off(guest.id)
        await driver.attach_disk(guest.id, disk)
        await driver.attach_disk(guest.id, disk)
        since = console_length()
        await driver.power_on(guest.id)
        await wait_for_output(rf"vdb:{2 * GIB_SECTORS}:{volume_id[:8]};", since)
        await wait_for_reconnect(driver, guest)
        await driver.power_off(guest.id)
        await driver.detach_disk(guest.id, volume_id)
        assert volume_ids(driver.hypervisor.spec(guest.id)) == []
        assert volume_id not in bench.host.execute("virsh", "dumpxml", f"kn-{guest.id}")

    run_scenario(bench, sqlite_url, scenario, watch=True)


async def reconnecting_clients(driver: LibvirtDriver, guest: Guest) -> list[str]:
    """The NBD clients of the running guest that reconnect."""
    from kilonova.hosts.drivers.libvirt.nbd_reconnect import monitor_command

    domain = await driver.hypervisor.domain(guest.id)
    nodes = await driver.hypervisor.connection.run(monitor_command, domain, "query-named-block-nodes", {"flat": True})
    return [node["node-name"] for node in nodes if node["node-name"].startswith("kn-")]


async def wait_for_reconnect(driver: LibvirtDriver, guest: Guest) -> None:
    async with asyncio.timeout(300):
        while not await reconnecting_clients(driver, guest):
            await asyncio.sleep(0.05)


def test_boot_from_volume_and_from_its_reimaged_content(bench: DriverBench, sqlite_url: str) -> None:
    async def scenario(c: VolumeCloud, driver: LibvirtDriver) -> None:
        images = {word: await image(c, micro_guest.image(word)) for word in ("first", "second")}
        volume_id = await make(c, imageRef=images["first"])
        guest = bench.guest(image=None)
        disk = await disk_of(c, volume_id, guest.id, boot_index=0, device="/dev/vda")
        guest = bench.guest(id=guest.id, image=None, disks=[disk])
        await driver.spawn(guest)
        await bench.wait_for_output(guest, "HELLO first")
        await wait_for_reconnect(driver, guest)

        # As in a rebuild: the guest is destroyed, the volume reserved, and connected again afterwards.
        await driver.destroy(guest.id)
        body = {"volume_uuid": volume_id, "instance_uuid": guest.id}
        reserved = (await c.post("/attachments", {"attachment": body}, as_="admin")).json()["attachment"]["id"]
        answer = await c.delete(f"/attachments/{disk.connection['data']['attachment_id']}", as_="admin")
        assert answer.status == 200
        await act(c, volume_id, "os-reimage", image_id=images["second"], reimage_reserved=True)
        answer = await c.put(f"/attachments/{reserved}", {"attachment": {"connector": support.CONNECTOR}}, as_="admin")
        info = answer.json()["attachment"]["connection_info"]
        new = Disk(
            volume_id=volume_id,
            connection={"driver_volume_type": info.pop("driver_volume_type"), "data": info},
            boot_index=0,
            device="/dev/vda",
        )
        again = bench.guest(id=guest.id, image=None, disks=[new])
        await driver.spawn(again)
        await bench.wait_for_output(again, "HELLO second")

    run_scenario(bench, sqlite_url, scenario)


def test_volume_that_the_guest_does_not_release_stays(
    bench: DriverBench, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The micro guest ignores detach requests."""
    monkeypatch.setattr(volumes, "DETACH_ATTEMPT_SECONDS", 0.4)
    monkeypatch.setattr(volumes, "DETACH_ATTEMPTS", 1)

    async def scenario(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest, volume_id = bench.guest(), await make(c)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await bench.wait_for_output(guest, "TICK 00001")
        await driver.attach_disk(guest.id, await disk_of(c, volume_id, guest.id))
        with pytest.raises(DriverError, match="does not release volume"):
            await driver.detach_disk(guest.id, volume_id)
        assert volume_ids(driver.hypervisor.spec(guest.id)) == [volume_id]
        await driver.suspend(guest.id)
        with pytest.raises(NotRunning):
            await driver.detach_disk(guest.id, volume_id)
        await driver.power_off(guest.id)
        with pytest.raises(NotRunning):
            await driver.swap_disk(guest.id, volume_id, await disk_of(c, await make(c), guest.id))
        assert volume_ids(driver.hypervisor.spec(guest.id)) == [volume_id]
        await driver.detach_disk(guest.id, volume_id)
        assert volume_ids(driver.hypervisor.spec(guest.id)) == []

    run_scenario(bench, sqlite_url, scenario)


def test_missing_export_is_not_attached(bench: DriverBench, sqlite_url: str) -> None:
    async def scenario(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest, volume_id = bench.guest(), await make(c)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        disk = await disk_of(c, volume_id, guest.id)
        answer = await c.delete(f"/attachments/{disk.connection['data']['attachment_id']}", as_="admin")
        assert answer.status == 200
        with pytest.raises(DriverError):
            await driver.attach_disk(guest.id, disk)
        assert volume_ids(driver.hypervisor.spec(guest.id)) == []
        other = await disk_of(c, volume_id, guest.id)
        await driver.attach_disk(guest.id, other)
        assert volume_ids(driver.hypervisor.spec(guest.id)) == [volume_id]

    run_scenario(bench, sqlite_url, scenario)


def test_new_agent_makes_volumes_reconnect(bench: DriverBench, sqlite_url: str) -> None:
    """As after a live migration, or a start without a running agent."""

    async def scenario(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest = bench.guest()
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await driver.attach_disk(guest.id, await disk_of(c, await make(c), guest.id))
        await driver.power_off(guest.id)
        await driver.hypervisor.connection.close()
        bench.host.execute("virsh", "start", f"kn-{guest.id}")
        async with bench.running() as new:
            await wait_for_reconnect(new, guest)
            assert len(await reconnecting_clients(new, guest)) == 1
            await new.hypervisor.volumes.ensure_reconnect(guest.id)
            assert len(await reconnecting_clients(new, guest)) == 1

    run_scenario(bench, sqlite_url, scenario)
