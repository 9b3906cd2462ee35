"""What all parts of the driver share: the host, its guests' domains, and what is written down of them."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts import messages
from kilonova.hosts.drivers.base import DriverError, MissingGuest
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt import sealed
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.messages import Guest, GuestState, Power, WiredNetwork

if TYPE_CHECKING:
    import libvirt

    from kilonova.config import Config
    from kilonova.hosts.drivers.libvirt.images import ImageCache
    from kilonova.hosts.drivers.libvirt.networks.wiring import Wiring
    from kilonova.hosts.drivers.libvirt.volumes import Volumes

PREFIX = "kn-"


class Hypervisor:
    """A guest's domain has the guest's id, and the guest's spec is what it is built from whenever it starts.

    Nothing is kept in memory: whoever asks reads libvirt and the files.
    """

    images: ImageCache
    volumes: Volumes

    def __init__(self, host: str, config: Config, connection: Connection, layout: Layout) -> None:
        self.host = host
        self.config = config
        self.connection = connection
        self.layout = layout
        self.wiring: Wiring | None = None
        # How long a guest waits for its networks before whoever starts it is told that they do not come.
        self.wire_seconds = 60.0
        # Guests that this process has leave just now, and those of which it is finding out where they are.
        self.carried: set[str] = set()
        self.settling: dict[str, asyncio.Task[None]] = {}
        # Where other hosts fetch disks from this one; nothing while nobody serves them.
        self.disks_url = ""

    # What is written down

    def find_spec(self, guest_id: str, slot: str = "") -> Guest | None:
        """What the guest is, or the one in the slot; None if nothing is known of it, or it is another host's."""
        directory = self.layout.slot(guest_id, slot) if slot else self.layout.guest(guest_id)
        if not self.owns(guest_id, slot):
            return None
        try:
            return messages.decode_guest((directory / names.SPEC).read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise DriverError(f"{directory / names.SPEC} cannot be read: {error}") from None

    def spec(self, guest_id: str) -> Guest:
        guest = self.find_spec(guest_id)
        if guest is None:
            raise MissingGuest(guest_id)
        return guest

    def write_spec(self, guest: Guest, slot: str = "") -> None:
        directory = self.layout.slot(guest.id, slot) if slot else self.layout.guest(guest.id)
        make_directory(directory)
        write(directory / names.SPEC, messages.encode(guest))

    # Whose the files are: on storage that hosts share, only he who has the guest may remove them.

    def owner(self, guest_id: str, slot: str = "") -> str:
        """Whose host it is; nobody's if nobody said so."""
        directory = self.layout.slot(guest_id, slot) if slot else self.layout.guest(guest_id)
        try:
            return (directory / names.OWNER).read_text()
        except FileNotFoundError:
            return ""

    def owns(self, guest_id: str, slot: str = "") -> bool:
        """Whether what lies there may be removed here. What nobody owns is everybody's."""
        return self.owner(guest_id, slot) in ("", self.host)

    def take(self, guest_id: str, slot: str = "") -> None:
        """This host has the guest from now on."""
        if self.owner(guest_id, slot) == self.host:
            return
        directory = self.layout.slot(guest_id, slot) if slot else self.layout.guest(guest_id)
        make_directory(directory)
        write(directory / names.OWNER, self.host.encode())

    async def remove_files(self, guest_id: str, slot: str = "") -> None:
        """The directory of the guest or the slot, if it is this host's."""
        directory = self.layout.slot(guest_id, slot) if slot else self.layout.guest(guest_id)
        await self.connection.run(_remove, directory, lambda: self.owns(guest_id, slot))

    # Domains

    async def find_domain(self, guest_id: str) -> libvirt.virDomain | None:
        return await self.connection.ask(look_up, guest_id)

    async def domain(self, guest_id: str) -> libvirt.virDomain:
        """Raises MissingGuest."""
        domain = await self.find_domain(guest_id)
        if domain is None:
            raise MissingGuest(guest_id)
        return domain

    async def power(self, guest_id: str) -> Power | None:
        """None: there is no domain."""
        return await self.connection.ask(_power, guest_id)

    async def state(self, guest_id: str) -> GuestState:
        """Raises MissingGuest. A guest without a domain is shut down."""
        guest = self.spec(guest_id)
        return self.state_of(guest, await self.power(guest_id) or "shutdown")

    def state_of(self, guest: Guest, power: Power, slot: str = "") -> GuestState:
        return GuestState(
            id=guest.id,
            name=guest.name,
            power=power,
            vcpus=guest.flavor.vcpus,
            ram_mb=guest.flavor.ram_mb,
            disk_gb=guest.flavor.disk_gb,
            created_at=guest.created_at,
            slot=slot,
            volumes=[disk.volume_id for disk in guest.disks],
            sealed_password="" if slot else sealed.look(self, guest),
        )

    async def define(self, guest: Guest, **variations: Any) -> None:
        """Build the domain of the guest anew; one that runs becomes this at its next start.

        Variations are those of `domain.document`.
        """
        from kilonova.hosts.drivers.libvirt import devices, domain

        guest = await self.volumes.prepare(guest)
        await self.connection.ask(_define, domain.document(self, guest, **variations))
        await devices.note(self, guest)

    async def wire(self, guest: Guest) -> list[WiredNetwork]:
        """The networks of the guest, once they are there. Raises DriverError."""
        ports = [nic.port_id for nic in guest.nics]
        if not ports:
            return []
        if self.wiring is None:
            raise DriverError(f"{self.host} has no networks for guests: bridges.enabled is off")
        return await self.wiring.wired(ports, self.wire_seconds)

    async def boot(self, guest_id: str) -> None:
        """Build the domain of a guest that stands still from what is written down, and start it."""
        guest = self.spec(guest_id)
        await self.wire(guest)
        await self.define(guest)
        await self.start(guest_id)

    async def start(self, guest_id: str) -> None:
        """A domain that runs is left alone, one that is paused goes on, one with saved memory continues from there."""
        self.take(guest_id)
        if await self.connection.ask(_start, guest_id):
            os.utime(self.layout.file(guest_id, names.OWNER))

    async def cut(self, guest_id: str) -> None:
        """Take the power from the guest; saved memory is forgotten. No domain is a success."""
        await self.connection.ask(_cut, guest_id)

    async def undefine(self, guest_id: str) -> None:
        """Remove the domain, which is cut if it runs. No domain is a success."""
        await self.connection.ask(_undefine, guest_id)


# In threads


def look_up(connection: libvirt.virConnect, guest_id: str) -> libvirt.virDomain | None:
    import libvirt

    try:
        return connection.lookupByUUIDString(guest_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG):
            return None
        raise


def power_of(domain: libvirt.virDomain) -> Power:
    import libvirt

    state, reason = domain.state()
    if state in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_SHUTDOWN):
        return "running"
    if state in (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PMSUSPENDED):
        return "paused"
    died = state == libvirt.VIR_DOMAIN_SHUTOFF and reason == libvirt.VIR_DOMAIN_SHUTOFF_CRASHED
    if state == libvirt.VIR_DOMAIN_CRASHED or died:
        return "crashed"
    return "suspended" if domain.hasManagedSaveImage() else "shutdown"


def _power(connection: libvirt.virConnect, guest_id: str) -> Power | None:
    domain = look_up(connection, guest_id)
    return power_of(domain) if domain is not None else None


def _define(connection: libvirt.virConnect, document: str) -> None:
    connection.defineXML(document)


def _start(connection: libvirt.virConnect, guest_id: str) -> bool:
    """Whether it had to be."""
    domain = look_up(connection, guest_id)
    if domain is None:
        raise MissingGuest(guest_id)
    if not domain.isActive():
        domain.create()
        return True
    go_on(domain)
    return False


def go_on(domain: libvirt.virDomain) -> None:
    """Have a guest that is halted run, whoever halted it; one that runs is left alone."""
    import libvirt

    match domain.state()[0]:
        case libvirt.VIR_DOMAIN_PAUSED:
            domain.resume()
        case libvirt.VIR_DOMAIN_PMSUSPENDED:
            domain.pMWakeup(0)


def _cut(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = look_up(connection, guest_id)
    if domain is not None:
        _stop(domain)
        if domain.isPersistent() and domain.hasManagedSaveImage():
            domain.managedSaveRemove()


def _undefine(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None:
        return
    persistent = domain.isPersistent()
    _stop(domain)
    if not persistent:
        return
    try:
        domain.undefineFlags(
            libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM  # it lies with the guest's disks
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise


def _stop(domain: libvirt.virDomain) -> None:
    import libvirt

    try:
        if domain.isActive():
            domain.destroy()
    except libvirt.libvirtError as error:
        # It ended by itself in between.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


# Files


def make_directory(path: Path) -> None:
    """Others get through to what they are told of, but do not see what there is."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)


def write(path: Path, content: bytes) -> None:
    """At once or not at all, and on the disk when this returns; for this process's user alone."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    settle(new, path)


def settle(part: Path, path: Path) -> None:
    """On the disk for good, and then under its name."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove(directory: Path, allowed: Any) -> None:
    if not directory.exists():
        return
    if allowed():
        shutil.rmtree(directory, ignore_errors=False)
