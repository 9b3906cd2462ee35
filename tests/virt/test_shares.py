"""File shares in real guests, by virtiofs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError, StillRunning
from kilonova.hosts.messages import Flavor, Image, Share
from tests.support.virt_hosts import Host, linux_image
from tests.virt.disks_support import disk_bench

# Mounts the share by its tag, reads what the host wrote, and writes a file for the host.
SCRIPT = b"""#!/bin/sh
mkdir -p /run/data
if mount -t virtiofs data /run/data; then
    echo "SHARE $(cat /run/data/from-host)"
    echo "guest $(cat /proc/sys/kernel/random/boot_id)" >/run/data/from-guest
    sync
    echo "WRITTEN"
else
    echo "SHARE none"
fi
"""


def share_of(directory: Path, machine: str = socket.gethostname()) -> Share:
    return Share(share_id="share-1", tag="data", kind="directory", location=f"{machine}:{directory}")


def test_guest_mounts_a_share_by_its_tag(host: Host, tmp_path: Path) -> None:
    directory = tmp_path / "share"
    directory.mkdir()
    (directory / "from-host").write_text("hello")

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            bench.service.put("linux", linux_image().read_bytes())
            driver = bench.driver
            facts = await driver.describe()
            assert {"COMPUTE_STORAGE_VIRTIO_FS", "COMPUTE_MEM_BACKING_FILE"} <= set(facts.traits)
            guest_id = await bench.boot(
                Image(id="linux", disk_format="qcow2"),
                flavor=Flavor(name="linux", vcpus=1, ram_mb=256, disk_gb=1),
                config_drive=True,
                user_data=SCRIPT,
            )
            await bench.wait_for_output(guest_id, r"SHARE none")
            with pytest.raises(StillRunning):
                await driver.set_shares(guest_id, [share_of(directory)])
            await driver.power_off(guest_id)
            for _ in range(2):
                await driver.set_shares(guest_id, [share_of(directory)])

            before = await bench.console_length(guest_id)
            await driver.power_on(guest_id)
            await bench.wait_for_output(guest_id, r"SHARE hello[\s\S]*WRITTEN", after=before)
            first = (directory / "from-guest").read_text()
            assert first.startswith("guest ")
            await driver.set_shares(guest_id, [share_of(directory)])  # the shares that it has

            before = await bench.console_length(guest_id)
            await driver.reboot(guest_id, hard=True)
            await bench.wait_for_output(guest_id, r"SHARE hello[\s\S]*WRITTEN", after=before)
            assert (directory / "from-guest").read_text() != first

            await driver.power_off(guest_id)
            await driver.set_shares(guest_id, [])
            before = await bench.console_length(guest_id)
            await driver.power_on(guest_id)
            await bench.wait_for_output(guest_id, r"SHARE none", after=before)
            assert (await bench.domain_xml(guest_id)).find("memoryBacking") is None

    asyncio.run(scenario())


def test_share_that_the_host_cannot_reach_is_refused(host: Host, tmp_path: Path) -> None:
    directory = tmp_path / "share"
    directory.mkdir()

    async def scenario() -> None:
        async with disk_bench(host, tmp_path) as bench:
            driver, guest_id = bench.driver, await bench.boot()
            await driver.power_off(guest_id)
            for share, words in (
                (share_of(directory, "elsewhere"), "only hosts on the same machine"),
                (share_of(tmp_path / "missing"), "is missing on this machine"),
                (
                    Share(share_id="s", tag="s", kind="directory", location="nowhere"),
                    "expected `machine:/path`, found 'nowhere'",
                ),
            ):
                with pytest.raises(DriverError, match=words):
                    await driver.set_shares(guest_id, [share])
            await driver.set_shares(guest_id, [share_of(directory)])
            directory.rmdir()
            with pytest.raises(DriverError, match="is missing on this machine"):
                await driver.power_on(guest_id)
            # A share that is gone can always be removed.
            await driver.set_shares(guest_id, [])
            assert (await driver.power_on(guest_id)).power == "running"

    asyncio.run(scenario())
