"""Live migration, peer to peer between the libvirts of both hosts: it continues if this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
import xml.etree.ElementTree as ET
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt import migration_records as records
from kilonova.hosts.drivers.libvirt.hypervisor import lookup_domain
from kilonova.hosts.drivers.libvirt.migration_records import OutgoingGuest, PreparedDestination
from kilonova.hosts.drivers.libvirt.nbd_reconnect import monitor_command
from kilonova.hosts.messages import Guest, MigrationState

if TYPE_CHECKING:
    import libvirt

    from kilonova.config import Libvirt
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_POLL_SECONDS = 0.5
_ABORT_RETRY_SECONDS = 0.2
_UNLIMITED_MIB_PER_SECOND = 1 << 20
_DESTINATION_TIMEOUT_SECONDS = 60.0
_CONFIRM_TIMEOUT_SECONDS = 15.0
# Suffixes of libvirt's names for the QEMU nodes that it copies disks to.
_COPY_NODE_SUFFIXES = ("-format", "-storage")


async def migrate_live(
    hv: Hypervisor, guest_id: str, destination: str, slot: str, block: bool | None, reach: dict[str, str]
) -> None:
    await _wait_for_running_migration(hv, guest_id)
    await records.reconcile_guest(hv, guest_id)
    if hv.find_spec(guest_id) is None:
        # No spec: the guest has left this host, so existing files belong to another host (`shared`).
        outgoing = OutgoingGuest(slot=slot, destination=destination, shared=True, running=True, reach=reach)
        if await records.is_at_destination(hv, guest_id, outgoing):
            # An earlier process may have ended before it released the guest's devices.
            await records.complete_departure(hv, guest_id)
            return
        raise MissingGuest(guest_id)
    power = await hv.power(guest_id)
    if power not in ("running", "paused"):
        raise NotRunning(guest_id)
    running = power == "running"
    outgoing = OutgoingGuest(slot=slot, destination=destination, shared=False, running=running, reach=reach)
    peer = records.destination_peer(hv, guest_id, outgoing)
    body = await peer.get(f"/expected/{guest_id}/{slot}", seconds=_DESTINATION_TIMEOUT_SECONDS)
    prepared = msgspec.json.decode(body, type=PreparedDestination)
    outgoing = msgspec.structs.replace(outgoing, shared=prepared.shared)
    hv.migrating_out.add(guest_id)
    try:
        await _migrate_guest(hv, guest_id, prepared, outgoing)
    finally:
        hv.migrating_out.discard(guest_id)


async def _migrate_guest(hv: Hypervisor, guest_id: str, prepared: PreparedDestination, outgoing: OutgoingGuest) -> None:
    guest = hv.spec(guest_id)
    records.write_record(hv.layout.guest_directory(guest_id) / records.OUTGOING_FILE, outgoing)
    try:
        await _run_migration(hv, guest_id, prepared, outgoing)
    except DriverError as error:
        # The guest may have arrived nevertheless, at the last moment.
        if await _resolve_failure(hv, guest):
            message = f"live migration of guest {guest_id} to {outgoing.destination} failed: {error.message}"
            raise DriverError(message, passing=error.passing) from error
        return
    except asyncio.CancelledError:
        await _resolve_failure(hv, guest)
        raise
    await _finish_at_source(hv, guest, outgoing)


async def abort(hv: Hypervisor, guest_id: str) -> None:
    """Abort the migration, also one that an earlier process began."""
    await hv.connection.call(_abort, guest_id)
    while await progress(hv, guest_id) is not None:
        await asyncio.sleep(_ABORT_RETRY_SECONDS)
        await hv.connection.call(_abort, guest_id)
    guest = hv.find_spec(guest_id)
    if guest is not None and records.find_outgoing(hv, guest_id) is not None:
        await _resolve_failure(hv, guest)


async def force_complete(hv: Hypervisor, guest_id: str) -> None:
    """Force the migration to complete. Repeats until it has ended: disks are copied first, then memory."""
    method = hv.config.libvirt.force_complete
    while await progress(hv, guest_id) is not None:
        await hv.connection.call(_force_complete, guest_id, method)
        await asyncio.sleep(_POLL_SECONDS)


async def progress(hv: Hypervisor, guest_id: str) -> MigrationState | None:
    return await hv.connection.call(records.migration_progress, guest_id)


async def _wait_for_running_migration(hv: Hypervisor, guest_id: str) -> None:
    """Wait until a migration that an earlier process began has ended."""
    try:
        while await progress(hv, guest_id) is not None:
            await asyncio.sleep(_POLL_SECONDS)
    except asyncio.CancelledError:
        await abort(hv, guest_id)
        raise


async def _run_migration(hv: Hypervisor, guest_id: str, prepared: PreparedDestination, outgoing: OutgoingGuest) -> None:
    ended = Event()
    args = (hv.connection.uri, guest_id, hv.config.libvirt, prepared, outgoing.reach, ended)
    try:
        await hv.connection.run(
            _migrate, *args, stop=lambda: _abort_until(hv.connection.open_connection, guest_id, ended)
        )
    finally:
        ended.set()


async def _resolve_failure(hv: Hypervisor, guest: Guest) -> bool:
    """Find the guest after a failed or interrupted migration. Returns whether it is on this host, restored."""
    if await records.restore_at_source(hv, guest.id):
        return True
    if (outgoing := records.find_outgoing(hv, guest.id)) is not None:
        await _finish_at_source(hv, guest, outgoing)
    else:
        await records.complete_departure(hv, guest.id, guest)
    return False


async def _finish_at_source(hv: Hypervisor, guest: Guest, outgoing: OutgoingGuest) -> None:
    """Complete the departure. Gives an unreachable destination some time to copy the console log first."""
    end = time.monotonic() + (0.0 if outgoing.shared else _CONFIRM_TIMEOUT_SECONDS)
    while not await records.try_confirm_arrival(hv, guest.id, outgoing) and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS)
    await records.complete_departure(hv, guest.id, guest)


# The domain at the destination


def destination_document(source: str, prepared: PreparedDestination) -> str:
    """The running domain's XML with the destination's paths, volume connections, bridges and graphics.

    All else stays as the guest knows it, above all the device addresses.
    """
    domain, destination = ET.fromstring(source), ET.fromstring(prepared.domain)
    for disk in domain.findall("devices/disk"):
        other = _matching_disk(disk, destination)
        if other is not None:
            _copy_children(disk, other, ("source", "backingStore", "auth"))
            if other.get("type") is not None:
                disk.set("type", str(other.get("type")))
    for nic in domain.findall("devices/interface"):
        other = _matching_nic(nic, destination)
        if other is not None:
            nic.set("type", other.get("type", "bridge"))
            _copy_children(nic, other, ("source", "virtualport", "target"))
    _replace_devices(domain, destination, "graphics")
    nvram, nvram_path = domain.find("os/nvram"), destination.findtext("os/nvram")
    if nvram is not None and nvram_path:
        nvram.text = nvram_path
    for kind in ("serial", "console"):
        for number, device in enumerate(domain.findall(f"devices/{kind}")):
            others = destination.findall(f"devices/{kind}")
            if number < len(others):
                _copy_children(device, others[number], ("log",))
    return ET.tostring(domain, encoding="unicode")


def _matching_disk(disk: ET.Element, destination: ET.Element) -> ET.Element | None:
    """Match by volume id if the disk has one, else by device name."""
    serial = disk.findtext("serial")
    others = destination.findall("devices/disk")
    if serial:
        found = next((other for other in others if other.findtext("serial") == serial), None)
        if found is not None:
            return found
    name = _target_device(disk)
    return next((other for other in others if _target_device(other) == name), None)


def _target_device(disk: ET.Element) -> str:
    target = disk.find("target")
    return target.get("dev", "") if target is not None else ""


def _matching_nic(nic: ET.Element, destination: ET.Element) -> ET.Element | None:
    def mac(interface: ET.Element) -> str:
        found = interface.find("mac")
        return found.get("address", "").lower() if found is not None else ""

    return next((other for other in destination.findall("devices/interface") if mac(other) == mac(nic)), None)


def _copy_children(element: ET.Element, other: ET.Element, tags: tuple[str, ...]) -> None:
    for tag in tags:
        for old in element.findall(tag):
            element.remove(old)
        element.extend(copy.deepcopy(new) for new in other.findall(tag))


def _replace_devices(domain: ET.Element, destination: ET.Element, kind: str) -> None:
    devices, others = domain.find("devices"), destination.find("devices")
    if devices is None or others is None:
        return
    for old in devices.findall(kind):
        devices.remove(old)
    devices.extend(copy.deepcopy(new) for new in others.findall(kind))


def _targets_to_copy(document: str, prepared: PreparedDestination) -> list[str]:
    """The target devices of the disks whose files are to be copied."""
    found = []
    for disk in ET.fromstring(document).findall("devices/disk"):
        source = disk.find("source")
        path = source.get("file", "") if source is not None else ""
        if disk.get("type") == "file" and path.rsplit("/", 1)[-1] in prepared.moved:
            found.append(_target_device(disk))
    return found


# In threads


def _migrate(
    uri: str,
    guest_id: str,
    settings: Libvirt,
    prepared: PreparedDestination,
    reach: dict[str, str],
    ended: Event,
) -> None:
    """Uses its own connection: the migration call delays other calls on the same connection by seconds."""
    import libvirt

    domain = libvirt.open(uri).lookupByUUIDString(guest_id)
    document = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE)
    new = destination_document(document, prepared)
    flags = (
        libvirt.VIR_MIGRATE_LIVE
        | libvirt.VIR_MIGRATE_PEER2PEER
        | libvirt.VIR_MIGRATE_PERSIST_DEST
        | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    )
    values: dict[str, Any] = {
        libvirt.VIR_MIGRATE_PARAM_DEST_XML: new,
        libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: new,
    }
    targets = _targets_to_copy(document, prepared)
    if targets:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_INC
        values[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = targets
        _delete_stale_copies(domain)
    if prepared.shared:
        # The probe file has shown that the storage is shared, which libvirt may not recognize.
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    if settings.migration_tls:
        # Also encrypts the copying of disks.
        flags |= libvirt.VIR_MIGRATE_TLS
    if settings.auto_converge:
        flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE
    if settings.force_complete == "postcopy":
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    if settings.migration_mb_per_second:
        values[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = settings.migration_mb_per_second
    address = reach.get("guests", "")
    if address:
        values[libvirt.VIR_MIGRATE_PARAM_URI] = f"tcp://[{address}]" if ":" in address else f"tcp://{address}"
    if settings.migration_downtime_ms:
        with contextlib.suppress(libvirt.libvirtError):
            domain.migrateSetMaxDowntime(settings.migration_downtime_ms)
    try:
        domain.migrateToURI3(reach.get("migration", ""), values, flags)
    finally:
        ended.set()


def _delete_stale_copies(domain: libvirt.virDomain) -> None:
    """Delete the QEMU nodes that a libvirt left when it ended during a copy: they would block the next migration."""
    import libvirt

    with contextlib.suppress(libvirt.libvirtError, DriverError):
        nodes = [str(node["node-name"]) for node in monitor_command(domain, "query-named-block-nodes", {"flat": True})]
        # Upper nodes first.
        for kind in _COPY_NODE_SUFFIXES:
            for name in nodes:
                if name.startswith("migration-") and name.endswith(kind):
                    monitor_command(domain, "blockdev-del", {"node-name": name})


def _abort_until(open_connection: Any, guest_id: str, ended: Event) -> None:
    """Abort repeatedly: the migration may not have begun yet, or be in a phase that ignores the request."""
    import libvirt

    while not ended.is_set():
        with contextlib.suppress(libvirt.libvirtError, DriverError):
            _abort(open_connection(), guest_id)
        ended.wait(_ABORT_RETRY_SECONDS)


def _abort(connection: libvirt.virConnect, guest_id: str) -> None:
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None or not records.is_migrating_out(connection, guest_id):
        return
    with contextlib.suppress(libvirt.libvirtError):
        domain.abortJob()
    # A throttled disk copy would react late.
    _remove_speed_limits(domain)


def _force_complete(connection: libvirt.virConnect, guest_id: str, method: str) -> None:
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None:
        return
    with contextlib.suppress(libvirt.libvirtError):  # the migration may have ended just now
        if method == "postcopy":
            # Fails before the first pass over the memory; the caller repeats it.
            domain.migrateStartPostCopy(0)
            return
        if domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING:
            domain.suspend()
        domain.migrateSetMaxSpeed(_UNLIMITED_MIB_PER_SECOND)
    _remove_speed_limits(domain)


def _remove_speed_limits(domain: libvirt.virDomain) -> None:
    """Copy disks at full speed. libvirt refuses this during a migration, QEMU's monitor does not."""
    import libvirt

    with contextlib.suppress(libvirt.libvirtError, DriverError):
        for job in monitor_command(domain, "query-block-jobs"):
            monitor_command(domain, "block-job-set-speed", {"device": job["device"], "speed": 0})
