"""State and helpers that all modules of the driver share: guests' specs, file ownership and libvirt domains."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts import messages
from kilonova.hosts.drivers.base import DriverError, MissingGuest
from kilonova.hosts.drivers.libvirt import encrypted_password, plug, shares, vif
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.messages import Guest, GuestState, Power, WiredNetwork

if TYPE_CHECKING:
    import libvirt

    from kilonova.config import Config
    from kilonova.hosts.drivers.libvirt.images import ImageCache
    from kilonova.hosts.drivers.libvirt.networks.host_networks import HostNetworks
    from kilonova.hosts.drivers.libvirt.volumes import Volumes

log = logging.getLogger(__name__)

DOMAIN_PREFIX = "kn-"


class Hypervisor:
    """A domain's UUID is the guest's id. The domain is built from the guest's spec at every start.

    Guests' state is never cached: it is read from libvirt and the files each time.
    """

    images: ImageCache
    volumes: Volumes

    def __init__(self, host: str, config: Config, connection: Connection, layout: Layout) -> None:
        self.host = host
        self.config = config
        self.connection = connection
        self.layout = layout
        self.networks: HostNetworks | None = None
        # How long a starting guest waits for its networks.
        self.network_timeout_seconds = 60.0
        # Guests that this process is migrating to other hosts, and those whose migration records it is reconciling.
        self.migrating_out: set[str] = set()
        self.reconciling: dict[str, asyncio.Task[None]] = {}
        # The URL of this host's disk server; empty while it does not run.
        self.disks_url = ""

    # Specs

    def find_spec(self, guest_id: str, slot: str = "") -> Guest | None:
        """The spec of the guest or of the one in the slot; None if there is none or another host owns it."""
        directory = self.layout.directory(guest_id, slot)
        return self._read_spec(directory) if self.owns(guest_id, slot) else None

    def _read_spec(self, directory: Path) -> Guest | None:
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
        directory = self.layout.directory(guest.id, slot)
        make_directory(directory)
        write_file(directory / names.SPEC, messages.encode(guest))

    # Ownership: on shared storage only the owner of a directory may remove it.

    def owner(self, guest_id: str, slot: str = "") -> str:
        """The host that owns the directory; empty if none is recorded."""
        directory = self.layout.directory(guest_id, slot)
        try:
            return (directory / names.OWNER).read_text()
        except FileNotFoundError:
            return ""

    def owns(self, guest_id: str, slot: str = "") -> bool:
        """Whether this host may use the directory: it owns it, or no host does."""
        return self.owner(guest_id, slot) in ("", self.host)

    def set_owner(self, guest_id: str, slot: str = "") -> None:
        """Record this host as the owner."""
        if self.owner(guest_id, slot) == self.host:
            return
        directory = self.layout.directory(guest_id, slot)
        make_directory(directory)
        write_file(directory / names.OWNER, self.host.encode())

    async def remove_files(self, guest_id: str, slot: str = "") -> None:
        """Remove the directory of the guest or the slot, unless another host owns it."""
        directory = self.layout.directory(guest_id, slot)
        await self.connection.run(_remove_directory, directory, lambda: self.owns(guest_id, slot))

    # Domains

    async def find_domain(self, guest_id: str) -> libvirt.virDomain | None:
        return await self.connection.call(lookup_domain, guest_id)

    async def domain(self, guest_id: str) -> libvirt.virDomain:
        """Raises MissingGuest."""
        domain = await self.find_domain(guest_id)
        if domain is None:
            raise MissingGuest(guest_id)
        return domain

    async def power(self, guest_id: str) -> Power | None:
        """None if there is no domain."""
        return await self.connection.call(_power, guest_id)

    async def state(self, guest_id: str) -> GuestState:
        """Raises MissingGuest. A guest without a domain is shut down."""
        guest = self.spec(guest_id)
        return self.guest_state(guest, await self.power(guest_id) or "shutdown")

    def guest_state(self, guest: Guest, power: Power, slot: str = "") -> GuestState:
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
            sealed_password="" if slot else encrypted_password.read(self, guest),
        )

    async def define(self, guest: Guest, **variations: Any) -> None:
        """Define the domain from the spec. A running one changes at its next start. `variations`: of `domain_xml`."""
        from kilonova.hosts.drivers.libvirt import devices, domain

        guest = await self.volumes.prepare(guest)
        await self.connection.call(_define, domain.domain_xml(self, guest, **variations))
        await devices.record_addresses(self, guest)

    async def wait_for_networks(self, guest: Guest) -> list[WiredNetwork]:
        """Wait until the host has the guest's built-in networks, and return all its networks. Raises DriverError."""
        found = vif.networks(guest.nics)
        ports = [nic.port_id for nic in guest.nics if not nic.vif_type]
        if ports:
            found += await self.built_in_networks().wait_for_ports(ports, self.network_timeout_seconds)
        return found

    def built_in_networks(self) -> HostNetworks:
        """Raises DriverError if they are off."""
        if self.networks is None:
            raise DriverError(f"{self.host} provides no networks for guests: bridges.enabled is off")
        return self.networks

    async def boot(self, guest_id: str) -> None:
        """Define the domain of a stopped guest from its spec, and start it."""
        guest = self.spec(guest_id)
        await self.wait_for_networks(guest)
        await shares.mount_all(self, guest)
        await self.define(guest)
        await self.start(guest_id)

    async def start(self, guest_id: str) -> None:
        """Start, resume or restore the domain. A running domain is left alone."""
        self.set_owner(guest_id)
        guest = self.spec(guest_id)
        if any(nic.vif_type for nic in guest.nics) and await self.power(guest_id) not in ("running", "paused"):
            await plug.plug(self, guest, guest.nics)
        if await self.connection.call(_start, guest_id):
            os.utime(self.layout.file(guest_id, names.OWNER))

    async def power_off(self, guest_id: str) -> None:
        """Power the guest off and delete its saved memory. Succeeds without a domain."""
        await self.connection.call(_destroy, guest_id)
        await self.release_devices(guest_id)

    async def undefine(self, guest_id: str) -> None:
        """Power the guest off and remove its domain. Succeeds without a domain."""
        await self.connection.call(_undefine, guest_id)
        await self.release_devices(guest_id)

    async def release_devices(self, guest_id: str, guest: Guest | None = None) -> None:
        """Unplug the ports of a guest that does not run here, unmount its shares and disconnect its volumes.

        Without `guest` the ports are those of its spec. The spec may already belong to another host that shares the
        storage: names of ports are the same everywhere.
        """
        if guest is None:
            try:
                guest = self._read_spec(self.layout.guest_directory(guest_id))
            except DriverError as error:
                log.warning("the ports of guest %s stay plugged: %s", guest_id, error.message)
        releases: list[Callable[[], Awaitable[None]]] = [
            partial(shares.unmount_all, self, guest_id),
            partial(self.volumes.connections.disconnect_all, guest_id),
        ]
        if guest is not None:
            releases.insert(0, partial(plug.unplug, self, guest, guest.nics))
        errors: list[DriverError] = []
        for release in releases:
            try:
                await release()
            except DriverError as error:
                errors.append(error)
        if errors:
            raise errors[0]


# In threads


def lookup_domain(connection: libvirt.virConnect, guest_id: str) -> libvirt.virDomain | None:
    import libvirt

    try:
        return connection.lookupByUUIDString(guest_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG):
            return None
        raise


def power_state(domain: libvirt.virDomain) -> Power:
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
    domain = lookup_domain(connection, guest_id)
    return power_state(domain) if domain is not None else None


def _define(connection: libvirt.virConnect, document: str) -> None:
    connection.defineXML(document)


def _start(connection: libvirt.virConnect, guest_id: str) -> bool:
    """Returns whether the domain was started from off or from saved memory."""
    domain = lookup_domain(connection, guest_id)
    if domain is None:
        raise MissingGuest(guest_id)
    if not domain.isActive():
        domain.create()
        return True
    resume_domain(domain)
    return False


def resume_domain(domain: libvirt.virDomain) -> None:
    """Resume a paused or suspended domain. A running domain is left alone."""
    import libvirt

    match domain.state()[0]:
        case libvirt.VIR_DOMAIN_PAUSED:
            domain.resume()
        case libvirt.VIR_DOMAIN_PMSUSPENDED:
            domain.pMWakeup(0)


def _destroy(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = lookup_domain(connection, guest_id)
    if domain is not None:
        _stop(domain)
        if domain.isPersistent() and domain.hasManagedSaveImage():
            domain.managedSaveRemove()


def _undefine(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    domain = lookup_domain(connection, guest_id)
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
            | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM  # it is in the guest's directory
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
        # The domain has stopped meanwhile.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


# Files


def make_directory(path: Path) -> None:
    """Make a directory that other users, such as QEMU's, can traverse but not list."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)


def write_file(path: Path, content: bytes) -> None:
    """Write the file atomically and durably, readable by this process's user only."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    commit_file(new, path)


def commit_file(part: Path, path: Path) -> None:
    """Sync the file to disk, then rename it to its final name."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_directory(directory: Path, allowed: Any) -> None:
    if directory.exists() and allowed():
        shutil.rmtree(directory, ignore_errors=False)
