"""Volumes of the built-in service in real guests, over NBD: from the service's operations to what the guest sees."""

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
from tests.support.virt_driver import DATA, Bench, Files
from tests.support.virt_hosts import linux_image
from tests.volume.content.test_content import act, image, make, path_of
from tests.volume.exports import support
from tests.volume.exports.support import attach, exporting
from tests.volume.support import VolumeCloud

GIB_SECTORS = 2097152
# Says which disks there are, and writes a number to the last one over and over.
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

Scene = Callable[[VolumeCloud, LibvirtDriver], Awaitable[None]]


def play(bench: Bench, url: str, scene: Scene, *, watch: bool = False) -> None:
    async def whole() -> None:
        flags = {"volume__nbd_address": bench.host.site.address}
        async with exporting(url, watch=watch, **flags) as (c, _), bench.running() as driver:
            try:
                await scene(c, driver)
            finally:
                # QEMU does not like to end while its volumes are away.
                await asyncio.to_thread(bench.clear)

    asyncio.run(whole())


async def disk_of(c: VolumeCloud, volume_id: str, server_id: str, **keys: Any) -> Disk:
    """The volume for the guest, as compute tells a host of it."""
    way = dict((await attach(c, volume_id, server_id))["connection_info"])
    connection = {"driver_volume_type": way.pop("driver_volume_type"), "data": way}
    return Disk(volume_id=volume_id, connection=connection, **keys)


async def number_on(c: VolumeCloud, volume_id: str) -> int:
    with (await path_of(c, volume_id)).open("rb") as file:
        found = re.match(rb"NUMBER (\d+)\.", file.read(64))
    return int(found[1]) if found else 0


def ids_of(guest: Guest) -> list[str]:
    return [disk.volume_id for disk in guest.disks]


def test_a_linux_guest_gets_loses_swaps_and_sees_the_growth_of_volumes(bench: Bench, sqlite_url: str) -> None:
    bench.images = Files(linux_image())
    guest = bench.guest(
        flavor=Flavor(vcpus=1, ram_mb=192, disk_gb=1),
        image=Image(id="linux", disk_format="qcow2"),
        config_drive=True,
        user_data=SCRIPT,
    )

    async def says(pattern: str, since: int) -> re.Match[str]:
        return await bench.says(guest, pattern, since)

    def now() -> int:
        return len(bench.console(guest))

    async def scene(c: VolumeCloud, driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        await says(r"DISKS vda:\d+:;", 0)
        volume_id = await make(c)
        disk = await disk_of(c, volume_id, guest.id)
        for _ in range(2):
            state = await driver.attach_disk(guest.id, disk)
            assert state.volumes == [volume_id]
        await says(rf"DISKS vda:\S+ vdb:{GIB_SECTORS}:{volume_id[:8]};", 0)
        await says(r"WROTE 2;", 0)
        assert await number_on(c, volume_id) > 0

        # The volume service dies, and what the guest writes meanwhile waits for it.
        support.kill(Path(c.services.config.data_dir))
        since = now()
        await says(r"WROTE \d+;[^$]*WROTE", since)
        assert "LOST" not in bench.console(guest)

        await act(c, volume_id, "os-extend", new_size=2)
        for _ in range(2):
            await driver.grow_disk(guest.id, volume_id, 2)
        await says(rf"vdb:{2 * GIB_SECTORS}:", since)
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
        before, since = await number_on(c, volume_id), now()
        await says(r"WROTE \d+;[^$]*WROTE", since)
        assert await number_on(c, volume_id) == before
        assert await number_on(c, other) > before
        with pytest.raises(MissingDisk):
            await driver.swap_disk(guest.id, new_id(), disk)

        # From here on it may be taken away while it is written to.
        assert "LOST" not in bench.console(guest)
        since = now()
        for _ in range(2):
            left = await driver.detach_disk(guest.id, other)
            assert left is not None
            assert left.volumes == []
        await says(r"DISKS vda:\d+:;", since)
        assert await clients(driver, guest) == []

        # One that stands still has it when it starts.
        await driver.power_off(guest.id)
        await driver.attach_disk(guest.id, disk)
        await driver.attach_disk(guest.id, disk)
        since = now()
        await driver.power_on(guest.id)
        await says(rf"vdb:{2 * GIB_SECTORS}:{volume_id[:8]};", since)
        await until_steady(driver, guest)
        await driver.power_off(guest.id)
        await driver.detach_disk(guest.id, volume_id)
        assert ids_of(driver.hypervisor.spec(guest.id)) == []
        assert volume_id not in bench.host.do("virsh", "dumpxml", f"kn-{guest.id}")

    play(bench, sqlite_url, scene, watch=True)


async def clients(driver: LibvirtDriver, guest: Guest) -> list[str]:
    """Of volumes, below disks of the running guest: those that wait for the volume service."""
    from kilonova.hosts.drivers.libvirt.reconnecting import command

    domain = await driver.hypervisor.domain(guest.id)
    nodes = await driver.hypervisor.connection.run(command, domain, "query-named-block-nodes", {"flat": True})
    return [node["node-name"] for node in nodes if node["node-name"].startswith("kn-")]


async def until_steady(driver: LibvirtDriver, guest: Guest) -> None:
    async with asyncio.timeout(300):
        while not await clients(driver, guest):
            await asyncio.sleep(0.05)


def test_a_server_boots_from_a_volume_and_then_from_what_took_its_place(bench: Bench, sqlite_url: str) -> None:
    async def scene(c: VolumeCloud, driver: LibvirtDriver) -> None:
        images = {word: await image(c, micro_guest.image(word)) for word in ("first", "second")}
        volume_id = await make(c, imageRef=images["first"])
        guest = bench.guest(image=None)
        disk = await disk_of(c, volume_id, guest.id, boot_index=0, device="/dev/vda")
        guest = bench.guest(id=guest.id, image=None, disks=[disk])
        await driver.spawn(guest)
        await bench.says(guest, "HELLO first")
        await until_steady(driver, guest)

        # As compute rebuilds it: the guest is gone, the volume reserved, and connected again afterwards.
        await driver.destroy(guest.id)
        asked = {"volume_uuid": volume_id, "instance_uuid": guest.id}
        reserved = (await c.post("/attachments", {"attachment": asked}, as_="admin")).json()["attachment"]["id"]
        answer = await c.delete(f"/attachments/{disk.connection['data']['attachment_id']}", as_="admin")
        assert answer.status == 200
        await act(c, volume_id, "os-reimage", image_id=images["second"], reimage_reserved=True)
        answer = await c.put(f"/attachments/{reserved}", {"attachment": {"connector": support.CONNECTOR}}, as_="admin")
        way = answer.json()["attachment"]["connection_info"]
        new = Disk(
            volume_id=volume_id,
            connection={"driver_volume_type": way.pop("driver_volume_type"), "data": way},
            boot_index=0,
            device="/dev/vda",
        )
        again = bench.guest(id=guest.id, image=None, disks=[new])
        await driver.spawn(again)
        await bench.says(again, "HELLO second")

    play(bench, sqlite_url, scene)


def test_a_guest_that_does_not_let_a_volume_go_keeps_it(
    bench: Bench, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The micro guest hears nothing of devices that come and go."""
    monkeypatch.setattr(volumes, "DETACH_SECONDS", 0.4)
    monkeypatch.setattr(volumes, "DETACH_TRIES", 1)

    async def scene(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest, volume_id = bench.guest(), await make(c)
        await driver.spawn(guest, data=DATA)
        await bench.says(guest, "TICK 00001")
        await driver.attach_disk(guest.id, await disk_of(c, volume_id, guest.id))
        with pytest.raises(DriverError, match="does not let volume"):
            await driver.detach_disk(guest.id, volume_id)
        assert ids_of(driver.hypervisor.spec(guest.id)) == [volume_id]
        await driver.suspend(guest.id)
        with pytest.raises(NotRunning):
            await driver.detach_disk(guest.id, volume_id)
        await driver.power_off(guest.id)
        with pytest.raises(NotRunning):
            await driver.swap_disk(guest.id, volume_id, await disk_of(c, await make(c), guest.id))
        assert ids_of(driver.hypervisor.spec(guest.id)) == [volume_id]
        await driver.detach_disk(guest.id, volume_id)
        assert ids_of(driver.hypervisor.spec(guest.id)) == []

    play(bench, sqlite_url, scene)


def test_an_export_that_is_not_there_is_no_disk(bench: Bench, sqlite_url: str) -> None:
    async def scene(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest, volume_id = bench.guest(), await make(c)
        await driver.spawn(guest, data=DATA)
        disk = await disk_of(c, volume_id, guest.id)
        answer = await c.delete(f"/attachments/{disk.connection['data']['attachment_id']}", as_="admin")
        assert answer.status == 200
        with pytest.raises(DriverError):
            await driver.attach_disk(guest.id, disk)
        assert ids_of(driver.hypervisor.spec(guest.id)) == []
        other = await disk_of(c, volume_id, guest.id)
        await driver.attach_disk(guest.id, other)
        assert ids_of(driver.hypervisor.spec(guest.id)) == [volume_id]

    play(bench, sqlite_url, scene)


def test_a_new_agent_finds_guests_whose_volumes_do_not_wait(bench: Bench, sqlite_url: str) -> None:
    """As after a live migration, or a start while no agent looked."""

    async def scene(c: VolumeCloud, driver: LibvirtDriver) -> None:
        guest = bench.guest()
        await driver.spawn(guest, data=DATA)
        await driver.attach_disk(guest.id, await disk_of(c, await make(c), guest.id))
        await driver.power_off(guest.id)
        await driver.hypervisor.connection.close()
        bench.host.do("virsh", "start", f"kn-{guest.id}")
        async with bench.running() as new:
            await until_steady(new, guest)
            assert len(await clients(new, guest)) == 1
            await new.hypervisor.volumes.steady(guest.id)
            assert len(await clients(new, guest)) == 1

    play(bench, sqlite_url, scene)
