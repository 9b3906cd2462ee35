"""The driver of a host of the test's own, in the test's process, without networks."""

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
from tests.hosts.libvirt.support import Shelf, transfer
from tests.support.virt_hosts import Host

WORDS = ("plain", "helper", "liar")


class Bench:
    """The driver of the host in this process, and images that say a word each."""

    def __init__(self, host: Host, driver: LibvirtDriver, shelf: Shelf) -> None:
        self.host = host
        self.driver = driver
        self.hv = driver.hypervisor
        self.shelf = shelf
        self.made: list[str] = []

    async def boot(self, image: Image | None = Image(id="plain"), **more: Any) -> str:
        flavor = Flavor(name="micro", vcpus=1, ram_mb=32, disk_gb=0)
        guest = support.guest(ids.new_id(), **{"image": image, "flavor": flavor, "nics": [], **more})
        self.made.append(guest.id)
        await self.driver.spawn(guest, data=transfer(image.id) if image else None)
        return guest.id

    async def said(self, guest_id: str) -> str:
        return (await self.driver.look_console(guest_id, None)).decode(errors="replace")

    async def says(self, guest_id: str, pattern: str, after: int = 0) -> re.Match[str]:
        end = time.monotonic() + 300
        while not (found := re.search(pattern, said := (await self.said(guest_id))[after:])):
            assert time.monotonic() < end, f"the guest does not say {pattern}, but {said[-2000:]}"
            await asyncio.sleep(0.05)
        return found

    async def length(self, guest_id: str) -> int:
        return len(await self.said(guest_id))

    async def document(self, guest_id: str) -> ET.Element:
        domain = await self.hv.domain(guest_id)
        return ET.fromstring(await self.hv.connection.run(domain.XMLDesc))

    async def disks(self, guest_id: str) -> list[tuple[str, str, str | None]]:
        """(target, name of the file, place in the order of booting)"""
        found = []
        for disk in (await self.document(guest_id)).findall("devices/disk"):
            source, target, boot = disk.find("source"), disk.find("target"), disk.find("boot")
            assert source is not None
            assert target is not None
            order = boot.get("order") if boot is not None else None
            found.append((target.get("dev", ""), Path(source.get("file", "")).name, order))
        return sorted(found)

    def files(self, guest_id: str) -> set[str]:
        return {path.name for path in self.hv.layout.guest(guest_id).iterdir()}


@asynccontextmanager
async def bench(host: Host, data: Path) -> AsyncIterator[Bench]:
    shelf = Shelf()
    for word in WORDS:
        shelf.put(word, host.site.micro_image(word).read_bytes())
    driver = LibvirtDriver("disks", config_of(host, data), shelf)
    place = Bench(host, driver, shelf)
    try:
        yield place
    finally:
        for guest_id in place.made:
            await driver.destroy(guest_id)
        await driver.close()


def config_of(host: Host, data: Path) -> Config:
    return Config(
        data=str(data),
        agent=Agent(instances=str(host.instances)),
        libvirt=Libvirt(uri=host.uri, virt_type="qemu"),
        bridges=Bridges(enabled=False),
    )
