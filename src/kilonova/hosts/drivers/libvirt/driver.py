"""The libvirt driver: passes each call of the driver interface to the module that implements it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from kilonova.hosts.drivers.base import DriverError, Images
from kilonova.hosts.drivers.libvirt import admin_password as passwords
from kilonova.hosts.drivers.libvirt import (
    cold_moves,
    console,
    devices,
    disk_transfer,
    disks,
    displays,
    encrypted_password,
    facts,
    guest_info,
    lifecycle,
    live_migration,
    migration_records,
    nics,
    power,
    pre_live_migration,
    rescue,
    snapshots,
)
from kilonova.hosts.drivers.libvirt import shares as file_shares
from kilonova.hosts.drivers.libvirt.connection import Connection, Event, in_thread, wait_until_done
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor, make_directory
from kilonova.hosts.drivers.libvirt.images import ImageCache
from kilonova.hosts.drivers.libvirt.layout import CONSOLE_LOG, Layout
from kilonova.hosts.drivers.libvirt.networks.host_networks import HostNetworks
from kilonova.hosts.drivers.libvirt.volumes import Volumes
from kilonova.hosts.messages import (
    Disk,
    Guest,
    GuestState,
    HostFacts,
    Image,
    MigrationState,
    MoveTicket,
    NetworkPlan,
    Nic,
    Share,
    Transfer,
)

if TYPE_CHECKING:
    from kilonova.config import Config


log = logging.getLogger(__name__)

_IMAGE_CACHE_CLEANUP_SECONDS = 600.0


class LibvirtDriver:
    """`images`: reads and writes image data."""

    def __init__(self, host: str, config: Config, images: Images) -> None:
        layout = Layout(instances_directory(config))
        _prepare(config, layout)
        self.hypervisor = hv = Hypervisor(host, config, Connection(config.libvirt.uri), layout)
        hv.images = ImageCache(layout.base, images, config.reserved_disk_gb)
        hv.volumes = Volumes(hv)
        if config.builds_networks:
            hv.networks = HostNetworks(config, host, config.data_dir / "networks", hv.find_spec)
            hv.networks.store_password = lambda guest, password: encrypted_password.store(hv, guest, password)
            hv.networks.addresses = lambda guest_id: devices.read_addresses(hv, guest_id)

    async def run(self) -> None:
        """Run the driver's background work until cancelled."""
        hv = self.hypervisor
        work = [
            hv.connection.keep_open(),
            migration_records.watch_arrivals(hv),
            disk_transfer.serve(hv),
            self._clean_image_cache(),
        ]
        work += [migration_records.resume_removals(hv), snapshots.recover(hv)]
        work.append(hv.volumes.connections.retry_disconnections())
        if hv.networks is not None:
            work.append(hv.networks.run())
        async with asyncio.TaskGroup() as tasks:
            for part in work:
                tasks.create_task(part)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the power state of a guest may have changed."""

        def on_event(event: Event) -> None:
            if event.kind in ("lifecycle", "reconnected"):
                callback()

        self.hypervisor.connection.on_event(on_event)

    async def _clean_image_cache(self) -> None:
        """Regularly remove cached images that no guest has used for a while."""
        hv = self.hypervisor
        while True:
            await asyncio.sleep(_IMAGE_CACHE_CLEANUP_SECONDS)
            try:
                in_use = await wait_until_done(in_thread(disks.base_images_in_use, hv.layout))
                await hv.images.remove_unused(in_use, hv.config.libvirt.image_cache_seconds)
            except (DriverError, OSError) as error:
                log.warning("the image cache could not be cleaned: %s", error)

    async def close(self) -> None:
        """Close the connection. Guests keep running."""
        if self.hypervisor.networks is not None:
            await self.hypervisor.networks.close()
        await self.hypervisor.connection.close()

    # Guests

    async def spawn(
        self, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
    ) -> GuestState:
        return await lifecycle.spawn(self.hypervisor, guest, start=start, data=data, disk_of=disk_of)

    async def destroy(self, guest_id: str) -> None:
        await lifecycle.destroy(self.hypervisor, guest_id)

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
        await lifecycle.set_metadata(self.hypervisor, guest_id, name, metadata, forgetting)

    # Moves

    async def park(self, guest_id: str, slot: str, ticket: MoveTicket | None = None) -> GuestState:
        return await cold_moves.park(self.hypervisor, guest_id, slot, ticket)

    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState:
        return await cold_moves.unpark(self.hypervisor, guest_id, slot, start, disks)

    async def discard(self, guest_id: str, slot: str) -> None:
        await cold_moves.discard(self.hypervisor, guest_id, slot)

    async def receive(
        self,
        guest: Guest,
        source: str,
        slot: str,
        start: bool,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> GuestState:
        return await cold_moves.receive(self.hypervisor, guest, source, slot, start, reach or {}, ticket)

    async def check_migration_source(
        self,
        guest_id: str,
        destination: str,
        slot: str,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> dict[str, Any]:
        return await pre_live_migration.check_source(self.hypervisor, guest_id, destination, slot, reach or {}, ticket)

    async def prepare_migration(
        self,
        guest: Guest,
        source: str,
        slot: str,
        block: bool | None,
        offer: dict[str, Any] | None = None,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> None:
        await pre_live_migration.prepare(self.hypervisor, guest, source, slot, block, offer or {}, reach or {}, ticket)

    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None:
        await live_migration.migrate_live(self.hypervisor, guest_id, destination, slot, block, reach or {})

    async def stop_migration(self, guest_id: str) -> None:
        await live_migration.abort(self.hypervisor, guest_id)

    async def force_complete_migration(self, guest_id: str) -> None:
        await live_migration.force_complete(self.hypervisor, guest_id)

    async def get_migration(self, guest_id: str) -> MigrationState | None:
        return await live_migration.progress(self.hypervisor, guest_id)

    # Disks

    async def snapshot(self, guest_id: str, data: Transfer) -> None:
        await snapshots.create(self.hypervisor, guest_id, data)

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

    async def set_shares(self, guest_id: str, shares: list[Share]) -> GuestState:
        return await file_shares.set_shares(self.hypervisor, guest_id, shares)

    # Information

    async def get_console_log(self, guest_id: str, lines: int | None) -> bytes:
        self.hypervisor.spec(guest_id)
        path = self.hypervisor.layout.file(guest_id, CONSOLE_LOG)
        return await asyncio.to_thread(console.tail, path, lines)

    async def check_display(self, guest_id: str, kind: str) -> None:
        await displays.check(self.hypervisor, guest_id, kind)

    async def open_display(self, guest_id: str, kind: str) -> socket:
        return await displays.connect(self.hypervisor, guest_id, kind)

    async def get_diagnostics(self, guest_id: str) -> dict[str, Any]:
        return await guest_info.diagnostics(self.hypervisor, guest_id)

    async def get_connector(self) -> dict[str, Any]:
        return await facts.connector(self.hypervisor)

    async def apply_network(self, plan: NetworkPlan) -> None:
        if self.hypervisor.networks is None:
            raise DriverError(f"{self.hypervisor.host} has no networks of its own: bridges.enabled is off")
        await self.hypervisor.networks.apply(plan)

    async def list_guests(self) -> list[GuestState]:
        return await guest_info.list_guests(self.hypervisor)

    async def describe(self) -> HostFacts:
        return await facts.describe(self.hypervisor)


def instances_directory(config: Config) -> Path:
    """The directory with the files of this host's guests."""
    return (
        Path(config.agent.instances_path).absolute() if config.agent.instances_path else config.data_dir / "instances"
    )


def _prepare(config: Config, layout: Layout) -> None:
    """Make the directories. QEMU, which usually runs as another user, must be able to enter but not to list them."""
    for path in (layout.root, layout.base):
        make_directory(path)
    if config.data_dir in layout.root.parents:
        config.data_dir.chmod(0o711)
