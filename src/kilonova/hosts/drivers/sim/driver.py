"""The driver of one simulated host: each method waits for its latency, applies failure rules, then changes `sim.db`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from socket import socket
from typing import Any

from msgspec import structs

from kilonova import ids
from kilonova.hosts.drivers.base import (
    DifferentGuest,
    DriverError,
    Images,
    MissingDisk,
    MissingGuest,
    NoAnswer,
    NoSuchSlot,
    NotRunning,
    StillRunning,
)
from kilonova.hosts.drivers.sim import displays, guest_info, snapshots
from kilonova.hosts.drivers.sim.disks import copy_volume, has_only_volumes, has_volume, without_volume
from kilonova.hosts.drivers.sim.facts import Hardware, connector, host_facts, shared_disk_stores
from kilonova.hosts.drivers.sim.migration import Migration
from kilonova.hosts.drivers.sim.rules import Rule, Rules, Step
from kilonova.hosts.drivers.sim.store import SimStore
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
    Power,
    Share,
    Transfer,
)

_HANG_POLL_SECONDS = 0.1


class SimDriver:
    """`peers`: the hardware of all hosts in the store, by name."""

    def __init__(
        self,
        host: str,
        peers: Mapping[str, Hardware],
        store: SimStore,
        rules: Rules,
        latency: Mapping[str, float],
        images: Images | None = None,
    ) -> None:
        self._host = host
        self._peers = peers
        self._store = store
        self._rules = rules
        self._latency = latency
        self._images = images
        self._migrations: dict[str, Migration] = {}

    async def spawn(
        self, guest: Guest, *, start: bool = True, data: Transfer | None = None, disk_of: str = ""
    ) -> GuestState:
        await self._simulate("spawn")
        found = self._find_identical(guest)
        if found is None:
            disk = (
                self._disk_on_failed_host(guest.id, disk_of)
                or await self._disk_from_snapshot(guest, data)
                or ids.new_id()
            )
            if start:
                self._check_writers(guest, failed_host=disk_of)
            self._store.add_guest(self._host, guest, disk, running=start)
            return self._guest(guest.id)
        return self._start(guest.id) if start else found

    async def destroy(self, guest_id: str) -> None:
        await self._simulate("destroy")
        self._store.remove_guest(self._host, guest_id)

    async def power_on(self, guest_id: str) -> GuestState:
        await self._simulate("power_on")
        return self._start(guest_id)

    async def power_off(self, guest_id: str, grace: float = 0.0) -> GuestState:
        await self._simulate("power_off")
        return self._stop(guest_id)

    async def reboot(self, guest_id: str, hard: bool) -> GuestState:
        await self._simulate("reboot")
        self._store.set_power(self._host, guest_id, "running", boots=1)
        return self._guest(guest_id)

    async def pause(self, guest_id: str) -> GuestState:
        await self._simulate("pause")
        return self._halt(guest_id, "paused")

    async def unpause(self, guest_id: str) -> GuestState:
        await self._simulate("unpause")
        return self._continue(guest_id, "paused")

    async def suspend(self, guest_id: str) -> GuestState:
        await self._simulate("suspend")
        return self._halt(guest_id, "suspended")

    async def resume(self, guest_id: str) -> GuestState:
        await self._simulate("resume")
        return self._continue(guest_id, "suspended")

    async def rescue(self, guest_id: str, image: Image | None, data: Transfer | None, password: str = "") -> GuestState:
        await self._simulate("rescue")
        guest = self._spec(guest_id)
        if self._store.rescue(self._host, guest_id) is None:
            if image is None and guest.image is None:
                raise DriverError(f"guest {guest_id} boots from a volume: its rescue needs an image")
            self._check_writers(guest)
            self._store.set_rescue(self._host, guest_id, image.id if image else "")
            self._store.set_power(self._host, guest_id, "running", boots=1)
        return self._start(guest_id)

    async def unrescue(self, guest_id: str) -> GuestState:
        await self._simulate("unrescue")
        self._spec(guest_id)
        if self._store.rescue(self._host, guest_id) is not None:
            self._store.set_rescue(self._host, guest_id, None)
            self._store.set_power(self._host, guest_id, "running", boots=1)
        return self._start(guest_id)

    async def set_password(self, guest_id: str, user: str, password: str) -> None:
        await self._simulate("set_password")
        self._running_guest(guest_id)

    async def crash_dump(self, guest_id: str) -> None:
        await self._simulate("crash_dump")
        self._running_guest(guest_id)
        self._store.set_power(self._host, guest_id, "running", boots=1)

    async def attach_nic(self, guest_id: str, nic: Nic) -> GuestState:
        await self._simulate("attach_nic")
        guest = self._spec(guest_id)
        if all(other.port_id != nic.port_id for other in guest.nics):
            self._store.set_spec(self._host, structs.replace(guest, nics=[*guest.nics, nic]))
        return self._guest(guest_id)

    async def detach_nic(self, guest_id: str, port_id: str) -> GuestState | None:
        await self._simulate("detach_nic")
        guest = self._store.spec(self._host, guest_id)
        if guest is None:
            return None
        nics = [nic for nic in guest.nics if nic.port_id != port_id]
        self._store.set_spec(self._host, structs.replace(guest, nics=nics))
        return self._guest(guest_id)

    async def set_metadata(self, guest_id: str, name: str, metadata: dict[str, str], forgetting: bool = False) -> None:
        await self._simulate("set_metadata")
        self._store.set_spec(self._host, structs.replace(self._spec(guest_id), name=name, metadata=metadata))

    async def park(self, guest_id: str, slot: str, ticket: MoveTicket | None = None) -> GuestState:
        await self._simulate("park")
        if self._store.slot(self._host, guest_id, slot) is None:
            self._guest(guest_id)
            self._store.park(self._host, guest_id, slot)
        return self._slot(self._host, guest_id, slot)

    async def unpark(self, guest_id: str, slot: str, start: bool, disks: list[Disk] | None = None) -> GuestState:
        await self._simulate("unpark")
        if self._store.slot(self._host, guest_id, slot) is not None:
            self._store.unpark(self._host, guest_id, slot)
        elif self._store.guest(self._host, guest_id) is None:
            raise NoSuchSlot(guest_id, slot, self._host)
        if disks is not None:
            self._store.set_spec(self._host, structs.replace(self._spec(guest_id), disks=disks))
        return self._start(guest_id) if start else self._stop(guest_id)

    async def discard(self, guest_id: str, slot: str) -> None:
        await self._simulate("discard")
        self._store.remove_slot(self._host, guest_id, slot)

    async def receive(
        self,
        guest: Guest,
        source: str,
        slot: str,
        start: bool,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> GuestState:
        await self._simulate("receive")
        found = self._find_identical(guest)
        if found is None:
            self._check_reachable(source)
            disk = self._slot(source, guest.id, slot).disk
            if start:
                self._check_writers(guest)
            self._store.add_guest(self._host, guest, disk, running=start)
            return self._guest(guest.id)
        return self._start(guest.id) if start else found

    async def check_migration_source(
        self,
        guest_id: str,
        destination: str,
        slot: str,
        reach: dict[str, str] | None = None,
        ticket: MoveTicket | None = None,
    ) -> dict[str, Any]:
        await self._simulate("offer")
        self._guest(guest_id)
        return {}

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
        await self._simulate("expect")
        self._moves_disks(guest, source, block)
        if self._store.guest(self._host, guest.id) is None:
            self._store.prepare_slot(self._host, guest, slot)
        elif self._store.guest(source, guest.id) is not None:
            raise DifferentGuest(f"guest {guest.id} is here already, and on {source} too")

    async def migrate_live(
        self, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str] | None = None
    ) -> None:
        is_here = self._store.guest(self._host, guest_id) is not None
        if not is_here and self._store.guest(destination, guest_id) is not None:
            return
        guest = self._guest(guest_id)
        self._slot(destination, guest_id, slot)
        disks = self._moves_disks(self._spec(guest_id), destination, block)
        migration = Migration(guest, disks, self._latency_of("migrate_live"))
        self._migrations[guest_id] = migration
        try:
            while await migration.advance():
                self._check_reachable(destination)
                self._slot(destination, guest_id, slot)  # fails if the destination has discarded the slot
            await self._apply_failures("migrate_live")
            self._complete_migration(guest_id, destination, slot)
        finally:
            del self._migrations[guest_id]

    async def stop_migration(self, guest_id: str) -> None:
        # The agent has cancelled the migration already.
        await self._simulate("stop_migration")

    async def force_complete_migration(self, guest_id: str) -> None:
        await self._simulate("hurry_migration")
        migration = self._migrations.get(guest_id)
        if migration is not None:
            migration.hurry()

    async def snapshot(self, guest_id: str, data: Transfer) -> None:
        await self._simulate("snapshot")
        await self._image_service().write(data, snapshots.content_of(self._guest(guest_id)))

    async def attach_disk(self, guest_id: str, disk: Disk) -> GuestState:
        await self._simulate("attach_disk")
        guest = self._spec(guest_id)
        if not has_volume(guest, disk.volume_id):
            changed = structs.replace(guest, disks=[*guest.disks, disk])
            if self._guest(guest_id).power == "running":
                self._check_writers(changed)
            self._store.set_spec(self._host, changed)
        return self._guest(guest_id)

    async def detach_disk(self, guest_id: str, volume_id: str) -> GuestState | None:
        await self._simulate("detach_disk")
        guest = self._store.spec(self._host, guest_id)
        if guest is None:
            return None
        self._store.set_spec(self._host, structs.replace(guest, disks=without_volume(guest, volume_id)))
        return self._guest(guest_id)

    async def swap_disk(self, guest_id: str, volume_id: str, disk: Disk) -> GuestState:
        await self._simulate("swap_disk")
        guest = self._spec(guest_id)
        old = next((current for current in guest.disks if current.volume_id == volume_id), None)
        if old is None and not has_volume(guest, disk.volume_id):
            raise MissingDisk(guest_id, volume_id)
        if old is not None:
            self._check_writers(structs.replace(guest, disks=[disk]))
            await copy_volume(old, disk)
            guest = self._spec(guest_id)
            self._store.set_spec(self._host, structs.replace(guest, disks=[*without_volume(guest, volume_id), disk]))
        return self._guest(guest_id)

    async def grow_disk(self, guest_id: str, volume_id: str, size_gb: int) -> GuestState:
        await self._simulate("grow_disk")
        if not has_volume(self._spec(guest_id), volume_id):
            raise MissingDisk(guest_id, volume_id)
        return self._guest(guest_id)

    async def set_shares(self, guest_id: str, shares: list[Share]) -> GuestState:
        await self._simulate("set_shares")
        guest = self._spec(guest_id)
        if guest.shares != shares:
            if self._guest(guest_id).power != "shutdown":
                raise StillRunning(guest_id)
            self._store.set_spec(self._host, structs.replace(guest, shares=shares))
        return self._guest(guest_id)

    async def get_connector(self) -> dict[str, Any]:
        await self._simulate("look_connector")
        return connector(self._host)

    async def get_migration(self, guest_id: str) -> MigrationState | None:
        await self._simulate("look_migration")
        migration = self._migrations.get(guest_id)
        return None if migration is None else migration.state()

    async def get_console_log(self, guest_id: str, lines: int | None) -> bytes:
        await self._simulate("look_console")
        return guest_info.console_log(self._guest(guest_id), lines)

    async def check_display(self, guest_id: str, kind: str) -> None:
        await self._simulate("look_display")
        displays.check(self._guest(guest_id), kind)

    async def open_display(self, guest_id: str, kind: str) -> socket:
        await self.check_display(guest_id, kind)
        return await displays.connect(lambda: self._store.guest(self._host, guest_id))

    async def get_diagnostics(self, guest_id: str) -> dict[str, Any]:
        await self._simulate("look_diagnostics")
        guest = self._running_guest(guest_id)
        return guest_info.diagnostics(guest, self._spec(guest_id))

    async def apply_network(self, plan: NetworkPlan) -> None:
        """Do nothing: simulated guests have no networks."""

    async def list_guests(self) -> list[GuestState]:
        await self._simulate("guests")
        return self._store.guests(self._host)

    async def describe(self) -> HostFacts:
        await self._simulate("describe")
        return host_facts(self._host, self._peers[self._host], self._store.booted_at(self._host))

    def _guest(self, guest_id: str) -> GuestState:
        guest = self._store.guest(self._host, guest_id)
        if guest is None:
            raise MissingGuest(guest_id)
        return guest

    def _spec(self, guest_id: str) -> Guest:
        guest = self._store.spec(self._host, guest_id)
        if guest is None:
            raise MissingGuest(guest_id)
        return guest

    def _start(self, guest_id: str) -> GuestState:
        guest = self._guest(guest_id)
        if guest.power == "running":
            return guest
        self._check_writers(self._spec(guest_id))
        continues = guest.power in ("paused", "suspended")
        self._store.set_power(self._host, guest_id, "running", boots=0 if continues else 1)
        return self._guest(guest_id)

    def _running_guest(self, guest_id: str) -> GuestState:
        guest = self._guest(guest_id)
        if guest.power != "running":
            raise NotRunning(guest_id)
        return guest

    def _halt(self, guest_id: str, power: Power) -> GuestState:
        guest = self._guest(guest_id)
        if guest.power != power:
            self._running_guest(guest_id)
            self._store.set_power(self._host, guest_id, power)
        return self._guest(guest_id)

    def _continue(self, guest_id: str, power: Power) -> GuestState:
        if self._guest(guest_id).power == power:
            self._check_writers(self._spec(guest_id))
            self._store.set_power(self._host, guest_id, "running")
        return self._running_guest(guest_id)

    def _stop(self, guest_id: str) -> GuestState:
        self._store.set_power(self._host, guest_id, "shutdown")
        return self._guest(guest_id)

    def _find_identical(self, guest: Guest) -> GuestState | None:
        built = self._store.spec(self._host, guest.id)
        if built is None:
            return None
        if not built.has_same_hardware(guest):
            raise DifferentGuest(f"the host has guest {guest.id} with other hardware")
        return self._guest(guest.id)

    def _slot(self, host: str, guest_id: str, slot: str) -> GuestState:
        found = self._store.slot(host, guest_id, slot)
        if found is None:
            raise NoSuchSlot(guest_id, slot, host)
        return found

    # Disks

    def _check_writers(self, guest: Guest, failed_host: str = "") -> None:
        """Refuse a second writer of a volume: another guest, or the same guest on another host.

        The same guest on a failed or unreachable host does not count: the evacuation has made sure that it is down.
        """
        for disk in guest.disks:
            for host, other in () if disk.shared else self._store.writers(disk.volume_id):
                is_self = (host, other.id) == (self._host, guest.id)
                is_lost = other.id == guest.id and (host == failed_host or self._rules.unreachable([host]))
                if not is_self and not is_lost:
                    raise DriverError(f"volume {disk.volume_id} is written to by guest {other.id} on {host}")

    def _disk_on_failed_host(self, guest_id: str, host: str) -> str:
        """Return the disk that the guest had on a failed host, if it is on shared storage; else ""."""
        found = self._store.guest(host, guest_id) if host and self._shares_storage(host) else None
        return "" if found is None else found.disk

    async def _disk_from_snapshot(self, guest: Guest, data: Transfer | None) -> str:
        """Return the disk that a simulated snapshot was taken of. Any other image gives ""."""
        if data is None or guest.image is None or guest.image.properties.get("image_type") != "snapshot":
            return ""
        return await snapshots.read_disk(self._image_service().read(data), guest.image)

    def _image_service(self) -> Images:
        if self._images is None:
            raise DriverError(f"host {self._host} has no image service")
        return self._images

    def _shares_storage(self, other: str) -> bool:
        here, there = (shared_disk_stores(self._peers.get(host)) for host in (self._host, other))
        return not here.isdisjoint(there)

    def _moves_disks(self, guest: Guest, other: str, block: bool | None) -> bool:
        """Return whether a migration between both hosts copies the disks. Refuses an impossible `block`."""
        if has_only_volumes(guest):
            return False
        shared = self._shares_storage(other)
        if block is False and not shared:
            raise DriverError(f"{self._host} and {other} share no storage: block migration is required")
        if block and shared:
            raise DriverError(f"{self._host} and {other} share storage: block migration is not possible")
        return not shared

    # Moves

    def _check_reachable(self, other: str) -> None:
        if other != self._host and self._rules.unreachable([other]):
            raise DriverError(f"{other} cannot be reached from {self._host}")

    def _complete_migration(self, guest_id: str, destination: str, slot: str) -> None:
        self._check_reachable(destination)
        if not self._store.hand_over(self._host, guest_id, destination, slot):
            self._guest(guest_id)
            self._slot(destination, guest_id, slot)
            raise DifferentGuest(f"guest {guest_id} is on {destination} already, and here too")

    # Latency and failures

    async def _simulate(self, step: Step) -> None:
        seconds = self._latency_of(step)
        if seconds > 0:
            await asyncio.sleep(seconds)
        await self._apply_failures(step)

    def _latency_of(self, step: Step) -> float:
        seconds = self._rules.latency(self._host, step)
        return self._latency.get(step, 0.0) if seconds is None else seconds

    async def _apply_failures(self, step: Step) -> None:
        while (rule := self._rules.take_failure(self._host, step)) is not None:
            await self._fail(rule, step)

    async def _fail(self, rule: Rule, step: Step) -> None:
        """Fail by the rule. A hang ends when its rule is cleared; the next rule applies then."""
        message = rule.message or f"simulated failure of {step}"
        match rule.mode:
            case "unreachable":
                raise NoAnswer(message)
            case "hang":
                while self._rules.exists(rule):
                    await asyncio.sleep(_HANG_POLL_SECONDS)
            case _:
                raise DriverError(message)
