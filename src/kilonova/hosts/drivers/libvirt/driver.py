"""The driver of a host with libvirt: which part does what is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kilonova.hosts.drivers.base import DriverError, Images
from kilonova.hosts.drivers.libvirt import (
    arrivals,
    building,
    console,
    devices,
    disks,
    facts,
    looks,
    migration,
    moves,
    nics,
    peers,
    power,
    rescue,
    sealed,
    snapshots,
)
from kilonova.hosts.drivers.libvirt import password as passwords
from kilonova.hosts.drivers.libvirt.connection import Connection, Event, finished, in_thread
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor, make_directory
from kilonova.hosts.drivers.libvirt.images import ImageCache
from kilonova.hosts.drivers.libvirt.layout import CONSOLE, Layout
from kilonova.hosts.drivers.libvirt.networks.wiring import Wiring
from kilonova.hosts.drivers.libvirt.volumes import Volumes
from kilonova.hosts.messages import (
    Disk,
    Display,
    Guest,
    GuestState,
    HostFacts,
    Image,
    MigrationState,
    NetworkPlan,
    Nic,
    Transfer,
)

if TYPE_CHECKING:
    from kilonova.config import Config


log = logging.getLogger(__name__)

_TIDY_EVERY = 600.0


class LibvirtDriver:
    """`images`: how the data of images are read and written."""

    def __init__(self, host: str, config: Config, images: Images) -> None:
        layout = Layout(instances(config))
        _prepare(config, layout)
        self.hypervisor = hv = Hypervisor(host, config, Connection(config.libvirt.uri), layout)
        hv.images = ImageCache(layout.base, images)
        hv.volumes = Volumes(hv)
        if config.bridges.enabled:
            hv.wiring = Wiring(config, host, config.data_dir / "networks", hv.find_spec)
            hv.wiring.keep_password = lambda guest, password: sealed.keep(hv, guest, password)
            hv.wiring.addresses = lambda guest_id: devices.addresses(hv, guest_id)

    async def run(self) -> None:
        """Everything that goes on beside commands, until cancelled."""
        hv = self.hypervisor
        work = [hv.connection.keep(), arrivals.watch(hv), peers.serve(hv), self._tidy()]
        work += [arrivals.recover(hv), snapshots.recover(hv)]
        if hv.wiring is not None:
            work.append(hv.wiring.run())
        async with asyncio.TaskGroup() as tasks:
            for part in work:
                tasks.create_task(part)

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback` is called when a guest may have another power than before."""

        def hear(event: Event) -> None:
            if event.kind in ("lifecycle", "reconnected"):
                callback()

        self.hypervisor.connection.on_event(hear)

    async def _tidy(self) -> None:
        """Images that nobody has used for long go."""
        hv = self.hypervisor
        while True:
            await asyncio.sleep(_TIDY_EVERY)
            try:
                in_use = await finished(in_thread(disks.bases, hv.layout))
                await hv.images.tidy(in_use, hv.config.libvirt.image_cache_seconds)
            except (DriverError, OSError) as trouble:
                log.warning("the cache of images is not tidied this time: %s", trouble)

    async def close(self) -> None:
        """Guests go on without us."""
        if self.hypervisor.wiring is not None:
            await self.hypervisor.wiring.close()
        await self.hypervisor.connection.close()

    # Guests

    async def spawn(
        self, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
    ) -> GuestState:
        return await building.spawn(self.hypervisor, guest, start=start, data=data, disk_of=disk_of)

    async def destroy(self, guest_id: str) -> None:
        await building.destroy(self.hypervisor, guest_id)

    async def power_on(self, guest_id: str) -> GuestState:
        return await power.on(self.hypervisor, guest_id)

    async def power_off(self, guest_id: str, grace: float = 0.0) -> GuestState:
        return await power.off(self.hypervisor, guest_id, grace)

    async def reboot(self, guest_id: str, hard: bool) -> GuestState:
        return await power.reboot(self.hypervisor, guest_id, hard)

    async def pause(self, guest_id: str) -> GuestState:
        return await power.pause(self.hypervisor, guest_id)

    async def unpause(self, guest_id: str) -> GuestState:
        return await power.unpause(self.hypervisor, guest_id)

    async def suspend(self, guest_id: str) -> GuestState:
        return await power.suspend(self.hypervisor, guest_id)

    async def resume(self, guest_id: str) -> GuestState:
        return await power.resume(self.hypervisor, guest_id)

    async def rescue(self, guest_id: str, image: Image | None, data: Transfer | None, password: str = "") -> GuestState:
        return await rescue.rescue(self.hypervisor, guest_id, image, data, password)

    async def unrescue(self, guest_id: str) -> GuestState:
        return await rescue.unrescue(self.hypervisor, guest_id)

    async def set_password(self, guest_id: str, user: str, password: str) -> None:
        await passwords.set_password(self.hypervisor, guest_id, user, password)

    async def crash_dump(self, guest_id: str) -> None:
        await power.crash_dump(self.hypervisor, guest_id)

    async def attach_nic(self, guest_id: str, nic: Nic) -> GuestState:
        return await nics.attach(self.hypervisor, guest_id, nic)

    async def detach_nic(self, guest_id: str, port_id: str) -> GuestState | None:
        return await nics.detach(self.hypervisor, guest_id, port_id)

    async def set_metadata(self, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False) -> None:
        await building.set_metadata(self.hypervisor, guest_id, name, metadata, forgetting)

    # Moves

    async def park(self, guest_id: str, slot: str) -> GuestState:
        return await moves.park(self.hypervisor, guest_id, slot)

    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState:
        return await moves.unpark(self.hypervisor, guest_id, slot, start, disks)

    async def discard(self, guest_id: str, slot: str) -> None:
        await moves.discard(self.hypervisor, guest_id, slot)

    async def receive(
        self, guest: Guest, source: str, slot: str, start: bool, reach: dict[str, str] | None = None
    ) -> GuestState:
        return await moves.receive(self.hypervisor, guest, source, slot, start, reach or {})

    async def offer(
        self, guest_id: str, destination: str, slot: str, reach: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return await moves.offer(self.hypervisor, guest_id, destination, slot, reach or {})

    async def expect(
        self,
        guest: Guest,
        source: str,
        slot: str,
        block: bool | None,
        offer: dict[str, Any] | None = None,
        reach: dict[str, str] | None = None,
    ) -> None:
        await moves.expect(self.hypervisor, guest, source, slot, block, offer or {}, reach or {})

    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None:
        await migration.migrate_live(self.hypervisor, guest_id, destination, slot, block, reach or {})

    async def stop_migration(self, guest_id: str) -> None:
        await migration.stop(self.hypervisor, guest_id)

    async def hurry_migration(self, guest_id: str) -> None:
        await migration.hurry(self.hypervisor, guest_id)

    async def look_migration(self, guest_id: str) -> MigrationState | None:
        return await migration.look(self.hypervisor, guest_id)

    # Disks

    async def snapshot(self, guest_id: str, data: Transfer) -> None:
        await snapshots.take(self.hypervisor, guest_id, data)

    async def attach_disk(self, guest_id: str, disk: Disk) -> GuestState:
        await self.hypervisor.volumes.attach(guest_id, disk)
        return await self.hypervisor.state(guest_id)

    async def detach_disk(self, guest_id: str, volume_id: str) -> GuestState | None:
        if self.hypervisor.find_spec(guest_id) is None:
            return None
        await self.hypervisor.volumes.detach(guest_id, volume_id)
        return await self.hypervisor.state(guest_id)

    async def swap_disk(self, guest_id: str, volume_id: str, disk: Disk) -> GuestState:
        await self.hypervisor.volumes.swap(guest_id, volume_id, disk)
        return await self.hypervisor.state(guest_id)

    async def grow_disk(self, guest_id: str, volume_id: str, size_gb: int) -> GuestState:
        await self.hypervisor.volumes.grow(guest_id, volume_id, size_gb)
        return await self.hypervisor.state(guest_id)

    # Looks

    async def look_console(self, guest_id: str, lines: int | None) -> bytes:
        self.hypervisor.spec(guest_id)
        path = self.hypervisor.layout.file(guest_id, CONSOLE)
        return await asyncio.to_thread(console.tail, path, lines)

    async def look_display(self, guest_id: str, kind: str) -> Display:
        return await looks.display(self.hypervisor, guest_id, kind)

    async def look_diagnostics(self, guest_id: str) -> dict[str, Any]:
        return await looks.diagnostics(self.hypervisor, guest_id)

    async def look_connector(self) -> dict[str, Any]:
        return facts.connector(self.hypervisor)

    async def apply_network(self, plan: NetworkPlan) -> None:
        if self.hypervisor.wiring is None:
            raise DriverError(f"{self.hypervisor.host} has no networks of its own: bridges.enabled is off")
        await self.hypervisor.wiring.apply(plan)

    async def guests(self) -> list[GuestState]:
        return await looks.guests(self.hypervisor)

    async def describe(self) -> HostFacts:
        return await facts.describe(self.hypervisor)


def instances(config: Config) -> Path:
    """Where the guests of this host lie."""
    return Path(config.agent.instances).absolute() if config.agent.instances else config.data_dir / "instances"


def _prepare(config: Config, layout: Layout) -> None:
    """QEMU, which is often another user, has to get through to what it opens; to look around it has not."""
    for path in (layout.root, layout.base):
        make_directory(path)
    if config.data_dir in layout.root.parents:
        config.data_dir.chmod(0o711)
