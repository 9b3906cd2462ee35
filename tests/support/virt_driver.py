"""The libvirt driver in the test's process, connected to the libvirt of a site's host by its socket."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kilonova.config import Config
from kilonova.hosts.drivers.libvirt import hypervisor
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor, Guest, Image, Transfer, WiredNetwork
from kilonova.ids import new_id
from tests.support.virt_hosts import Host

IMAGE_TRANSFER = Transfer(url="/v2/images/micro/file", ticket="secret")
TIMEOUT_SECONDS = 300.0


class FileImageService:
    """An image service with one file. It keeps uploaded data."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        self.written = b""

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        self.written = data if isinstance(data, bytes) else b"".join([part async for part in data])

    async def read(self, transfer: Transfer) -> AsyncIterator[bytes]:
        self.reads += 1
        content = self.path.read_bytes()
        for start in range(0, len(content), 65536):
            yield content[start : start + 65536]

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        content = self.path.read_bytes()
        return {
            "status": "active",
            "size": len(content),
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
        }


class Bridge:
    """Replaces the host's networks by one bridge for all ports."""

    def __init__(self, host: Host, name: str = "knbench") -> None:
        self._name = name
        if name not in host.execute("ip", "-br", "link"):
            host.execute("ip", "link", "add", name, "type", "bridge")
            host.execute("ip", "link", "set", name, "up")

    async def wait_for_ports(self, ports: list[str], seconds: float) -> list[WiredNetwork]:
        return []

    def bridge_of(self, network_id: str) -> str:
        return self._name

    def tap_of(self, port_id: str) -> str:
        return f"tap{port_id[:8]}"

    def mtu_of(self, network_id: str) -> int:
        return 1400

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


class DriverBench:
    """Creates drivers and guests on a host, and knows the guests that the test has created."""

    def __init__(self, host: Host, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.instances = directory / "instances"
        self.images = FileImageService(host.site.micro_image())
        self._guest_ids: set[str] = set()
        directory.mkdir(parents=True, exist_ok=True)

    def config(self, **libvirt: Any) -> Config:
        config = Config(data=str(self.directory / "data"))
        config.agent.instances_path = str(self.instances)
        config.agent.address = self.host.address
        config.bridges.enabled = False
        config.compute.shutdown_timeout_seconds = 1.0
        config.libvirt.uri = self.host.uri
        config.libvirt.cache_mode = "unsafe"
        for name, value in libvirt.items():
            setattr(config.libvirt, name, value)
        return config

    def driver(self, name: str = "", **libvirt: Any) -> LibvirtDriver:
        return LibvirtDriver(name or self.host.name, self.config(**libvirt), self.images)

    @asynccontextmanager
    async def running(self, name: str = "", **libvirt: Any) -> AsyncIterator[LibvirtDriver]:
        driver = self.driver(name, **libvirt)
        task = asyncio.create_task(driver.run())
        try:
            yield driver
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await driver.close()

    def run(self, scenario: Callable[[LibvirtDriver], Coroutine[Any, Any, Any]], **libvirt: Any) -> Any:
        """Run `scenario` with a running driver."""

        async def run_scenario() -> Any:
            async with self.running(**libvirt) as driver:
                return await scenario(driver)

        return asyncio.run(run_scenario())

    def console(self, guest: Guest) -> str:
        path = self.instances / guest.id / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ticks(self, guest: Guest) -> list[int]:
        return [int(number) for number in re.findall(r"TICK (\d{5})", self.console(guest))]

    async def wait_for_output(
        self, guest: Guest, pattern: str, start: int = 0, seconds: float = TIMEOUT_SECONDS
    ) -> re.Match[str]:
        """Wait until the guest's console, from the offset `start`, matches the pattern."""
        description = f"the console of {guest.id} matches {pattern}"
        found: re.Match[str] = await wait_until(
            lambda: re.search(pattern, self.console(guest)[start:]), description, seconds
        )
        return found

    def domains(self) -> dict[str, str]:
        """Ids and virsh states of the guests of this bench."""
        lines = self.host.execute("virsh", "list", "--all").splitlines()[2:]
        found = {
            parts[1].removeprefix(hypervisor.DOMAIN_PREFIX): " ".join(parts[2:])
            for parts in map(str.split, lines)
            if parts
        }
        return {guest_id: state for guest_id, state in found.items() if guest_id in self._guest_ids}

    def guest(self, **changes: Any) -> Guest:
        guest = Guest(
            **{
                "id": new_id(),
                "name": "web",
                "project_id": "p",
                "user_id": "u",
                "flavor": Flavor(vcpus=1, ram_mb=64, disk_gb=1),
                "image": Image(id="micro"),
                **changes,
            }
        )
        self._guest_ids.add(guest.id)
        return guest

    def guest_resources(self, guest: Guest) -> list[str]:
        """The files, processes and domains of a guest on the host."""
        files = [str(path) for path in self.instances.glob(f"{guest.id}*")]
        processes = [line for line in self.host.guest_processes() if guest.id in line]
        return [*files, *processes, *(domain for domain in self.domains() if domain == guest.id)]

    def remove_domains(self) -> None:
        for guest_id in self._guest_ids:
            self.host.execute("virsh", "destroy", hypervisor.DOMAIN_PREFIX + guest_id, check=False)
            self.host.execute("virsh", "undefine", "--managed-save", hypervisor.DOMAIN_PREFIX + guest_id, check=False)


async def wait_until(condition: Callable[[], Any], description: str, seconds: float = TIMEOUT_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {description}")
        await asyncio.sleep(0.05)
    return found
