"""A libvirt driver in the test's process, without networks."""

from __future__ import annotations

import asyncio
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kilonova import ids
from kilonova.config import Agent, Bridges, Config, Libvirt
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor, Image
from tests.hosts import support
from tests.hosts.libvirt.support import FakeImageService, transfer
from tests.support.virt_hosts import Host

IMAGE_NAMES = ("plain", "helper", "liar")


class DiskBench:
    """The driver and its guests. A guest prints the name of its image."""

    def __init__(self, host: Host, driver: LibvirtDriver, service: FakeImageService) -> None:
        self.host = host
        self.driver = driver
        self.hypervisor = driver.hypervisor
        self.service = service
        self.guest_ids: list[str] = []

    async def boot(self, image: Image | None = Image(id="plain"), **fields: Any) -> str:
        flavor = Flavor(name="micro", vcpus=1, ram_mb=32, disk_gb=0)
        guest = support.guest(ids.new_id(), **{"image": image, "flavor": flavor, "nics": [], **fields})
        self.guest_ids.append(guest.id)
        await self.driver.spawn(guest, data=transfer(image.id) if image else None)
        return guest.id

    async def console(self, guest_id: str) -> str:
        return (await self.driver.get_console_log(guest_id, None)).decode(errors="replace")

    async def wait_for_output(self, guest_id: str, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait until the guest's console, from the offset `after`, matches the pattern."""
        deadline = time.monotonic() + 300
        while not (found := re.search(pattern, output := (await self.console(guest_id))[after:])):
            assert time.monotonic() < deadline, f"the console does not match {pattern}: {output[-2000:]}"
            await asyncio.sleep(0.05)
        return found

    async def console_length(self, guest_id: str) -> int:
        return len(await self.console(guest_id))

    async def domain_xml(self, guest_id: str) -> ET.Element:
        domain = await self.hypervisor.domain(guest_id)
        return ET.fromstring(await self.hypervisor.connection.run(domain.XMLDesc))

    async def disks(self, guest_id: str) -> list[tuple[str, str, str | None]]:
        """The disks of the domain, each with target, file name and boot order."""
        found = []
        for disk in (await self.domain_xml(guest_id)).findall("devices/disk"):
            source, target, boot = disk.find("source"), disk.find("target"), disk.find("boot")
            assert source is not None
            assert target is not None
            order = boot.get("order") if boot is not None else None
            found.append((target.get("dev", ""), Path(source.get("file", "")).name, order))
        return sorted(found)

    def files(self, guest_id: str) -> set[str]:
        return {path.name for path in self.hypervisor.layout.guest_directory(guest_id).iterdir()}


@asynccontextmanager
async def disk_bench(host: Host, data: Path) -> AsyncIterator[DiskBench]:
    service = FakeImageService()
    for name in IMAGE_NAMES:
        service.put(name, host.site.micro_image(name).read_bytes())
    driver = LibvirtDriver("disks", build_config(host, data), service)
    bench = DiskBench(host, driver, service)
    try:
        yield bench
    finally:
        for guest_id in bench.guest_ids:
            await driver.destroy(guest_id)
        await driver.close()


def build_config(host: Host, data: Path) -> Config:
    return Config(
        data=str(data),
        agent=Agent(instances_path=str(host.instances)),
        libvirt=Libvirt(uri=host.uri, virt_type="qemu"),
        bridges=Bridges(enabled=False),
    )
