"""Checks on both hosts before a live migration, and the preparation of the destination."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from kilonova.hosts.drivers.base import DifferentGuest, DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import disks, formats, move_tickets, plug, qemu_img
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt import migration_records as records
from kilonova.hosts.drivers.libvirt.disk_transfer import Peer, fetch_base_image
from kilonova.hosts.drivers.libvirt.hypervisor import make_directory, write_file
from kilonova.hosts.drivers.libvirt.migration_records import INCOMING_FILE, IncomingGuest
from kilonova.hosts.drivers.libvirt.move_tickets import StoredTicket
from kilonova.hosts.drivers.libvirt.volumes import check_tls
from kilonova.hosts.messages import Guest, MoveTicket

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_DEFAULT_PORTS = {"tcp": 16509, "tls": 16514, "ssh": 22, "": 16514}
_CONNECT_TIMEOUT_SECONDS = 5.0
# The source writes a nonce to this file beside the disks. A destination that reads the same nonce shares the storage.
_PROBE_FILE = "probe"
_GIB = 1 << 30


class SourceDisk(msgspec.Struct, frozen=True):
    """`base`: the file name of the disk's base image. `used`: allocated bytes."""

    name: str
    format: str
    size: int
    used: int
    base: str = ""
    base_size: int = 0


class SourceGuest(msgspec.Struct, frozen=True):
    """The source's description of the guest. `tls`: the source migrates over TLS only."""

    nonce: str = ""
    cpu: str = ""
    arch: str = ""
    machine: str = ""
    virt_type: str = ""
    disks: list[SourceDisk] = []
    tls: bool = False


# At the source


async def check_source(
    hv: Hypervisor, guest_id: str, destination: str, slot: str, reach: dict[str, str], ticket: MoveTicket | None
) -> dict[str, Any]:
    await records.reconcile_guest(hv, guest_id)
    guest = hv.spec(guest_id)
    if await hv.power(guest_id) not in ("running", "paused"):
        raise NotRunning(guest_id)
    if hv.layout.file(guest_id, names.RESCUE_MODE).exists():
        raise DriverError(f"guest {guest_id} is in rescue: unrescue it before the live migration")
    await _check_reachable(hv, destination, reach)
    hardware = _describe_hardware(await hv.connection.call(_migratable_xml, guest_id))
    nonce = secrets.token_hex(16)
    write_file(hv.layout.guest_directory(guest_id) / _PROBE_FILE, nonce.encode())
    local_disks = await asyncio.to_thread(_describe_disks, hv, guest)
    source_guest = msgspec.structs.replace(
        hardware, nonce=nonce, disks=local_disks, tls=hv.config.libvirt.migration_tls
    )
    if ticket is not None:
        move_tickets.store(hv, guest_id, "leaving", StoredTicket(slot, ticket.key, destination))
    return dict(msgspec.to_builtins(source_guest))


async def _check_reachable(hv: Hypervisor, destination: str, reach: dict[str, str]) -> None:
    uri = reach.get("migration", "")
    if not uri:
        raise DriverError(f"{destination} reports no libvirt URI, which a live migration needs")
    parts = urlsplit(uri)
    transport = parts.scheme.partition("+")[2]
    if transport != "unix" and parts.hostname:
        port = parts.port or _DEFAULT_PORTS.get(transport, _DEFAULT_PORTS[""])
        await _check_port(hv, destination, "libvirt", parts.hostname, port)
    try:
        await Peer(hv, destination, reach.get("disks", "")).get("/", seconds=_CONNECT_TIMEOUT_SECONDS)
    except DriverError as error:
        raise DriverError(f"the agent of {destination} cannot be reached from {hv.host}: {error.message}") from None
    try:
        await hv.connection.run(_check_uri, uri)
    except DriverError as error:
        raise DriverError(f"libvirt of {destination} cannot be reached from {hv.host}: {error.message}") from None
    if reach.get("guests"):
        # No process listens on the migration port yet, but the host must refuse the connection instead of dropping it.
        await _check_port(hv, destination, "guests", reach["guests"], 49152, refused=True)


async def _check_port(
    hv: Hypervisor, destination: str, service: str, host: str, port: int, refused: bool = False
) -> None:
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except ConnectionRefusedError as error:
        if not refused:
            raise _unreachable(hv, destination, service, host, port, error) from None
    except (OSError, TimeoutError) as error:
        raise _unreachable(hv, destination, service, host, port, error) from None


def _unreachable(hv: Hypervisor, destination: str, service: str, host: str, port: int, error: Exception) -> DriverError:
    reason = getattr(error, "strerror", None) or str(error) or f"no response within {_CONNECT_TIMEOUT_SECONDS:g} s"
    return DriverError(f"{service} of {destination} at {host} port {port} cannot be reached from {hv.host}: {reason}")


def _describe_hardware(document: str) -> SourceGuest:
    domain = ET.fromstring(document)
    os_type = domain.find("os/type")
    cpu = domain.find("cpu")
    return SourceGuest(
        cpu=ET.tostring(cpu, encoding="unicode") if cpu is not None else "",
        arch=os_type.get("arch", "") if os_type is not None else "",
        machine=os_type.get("machine", "") if os_type is not None else "",
        virt_type=domain.get("type", ""),
    )


def _describe_disks(hv: Hypervisor, guest: Guest) -> list[SourceDisk]:
    found = []
    for file in disks.disk_files(guest):
        if file.name == names.CONFIG_DRIVE:
            continue
        path = hv.layout.file(guest.id, file.name)
        stat = path.stat()
        overlay = formats.read_overlay(path) if file.format == "qcow2" else None
        base = Path(overlay.backing) if overlay and overlay.backing else None
        found.append(
            SourceDisk(
                name=file.name,
                format=file.format,
                size=overlay.size if overlay else stat.st_size,
                used=stat.st_blocks * 512,
                base=base.name if base else "",
                base_size=base.stat().st_blocks * 512 if base else 0,
            )
        )
    return found


# At the destination


async def prepare(
    hv: Hypervisor,
    guest: Guest,
    source: str,
    slot: str,
    block: bool | None,
    offer: dict[str, Any],
    reach: dict[str, str],
    ticket: MoveTicket | None,
) -> None:
    await records.reconcile_guest(hv, guest.id)
    if hv.find_spec(guest.id) is not None:
        if await hv.power(guest.id) in ("running", "paused"):
            return  # the guest has arrived
        raise DifferentGuest(f"guest {guest.id} exists on {hv.host} and on {source}")
    try:
        source_guest = msgspec.convert(offer, SourceGuest)
    except msgspec.ValidationError as error:
        raise DriverError(f"the description of guest {guest.id} from {source} is malformed: {error}") from None
    _check_tls(hv, source, source_guest)
    check_tls(hv, guest.disks)
    shared = _is_shared(hv, guest.id, source_guest)
    moved = _disks_to_copy(hv, source_guest, source, shared, block)
    await hv.connection.run(_check_hardware, hv.connection.open_connection, source_guest, hv.host, source)
    if ticket is None:
        raise DriverError(f"{hv.host} accepts no live migrations without a ticket: the control plane is too old")
    if not hv.disks_url:
        raise DriverError(f"{hv.host} accepts no live migrations: its agent does not serve other hosts yet")
    incoming = IncomingGuest(slot=slot, source=source, shared=shared, moved=moved)
    await _remove_stale_guest(hv, guest.id, shared)
    # The slot first: a discard finds everything else by it.
    hv.set_owner(guest.id, slot)
    records.write_record(hv.layout.slot_directory(guest.id, slot) / INCOMING_FILE, incoming)
    guest = await hv.volumes.prepare(guest)
    hv.write_spec(guest, slot)
    url = reach.get("disks", "")
    move_tickets.store(hv, guest.id, "arriving", StoredTicket(slot, ticket.key, source, url))
    if not shared:
        await _prepare_disks(hv, guest, incoming, source_guest, Peer(hv, source, url, ticket.key))
    await plug.plug(hv, guest, guest.nics)


def _check_tls(hv: Hypervisor, source: str, source_guest: SourceGuest) -> None:
    """Both hosts must agree on libvirt.migration_tls."""
    own_tls = hv.config.libvirt.migration_tls
    if source_guest.tls and not own_tls:
        raise DriverError(f"{source} migrates over TLS, but libvirt.migration_tls is off on {hv.host}")
    if own_tls and not source_guest.tls:
        raise DriverError(f"{hv.host} accepts migrations over TLS only, but libvirt.migration_tls is off on {source}")


def _is_shared(hv: Hypervisor, guest_id: str, source_guest: SourceGuest) -> bool:
    try:
        return bool(source_guest.nonce) and hv.layout.file(guest_id, _PROBE_FILE).read_text() == source_guest.nonce
    except FileNotFoundError:
        return False


def _disks_to_copy(
    hv: Hypervisor, source_guest: SourceGuest, source: str, shared: bool, block: bool | None
) -> list[str]:
    """The names of the disks to copy. Raises DriverError if `block` does not fit the storage."""
    if not source_guest.disks:
        return []
    if block is False and not shared:
        raise DriverError(f"{hv.host} and {source} share no storage: a block migration is required")
    if block and shared:
        raise DriverError(f"{hv.host} and {source} share the storage: a block migration is impossible")
    if shared:
        return []
    root = hv.layout.root
    make_directory(root)
    bases = {
        disk.base: disk.base_size
        for disk in source_guest.disks
        if disk.base and not (hv.layout.base / disk.base).exists()
    }
    needed, free = sum(disk.used for disk in source_guest.disks) + sum(bases.values()), shutil.disk_usage(root).free
    if needed > free:
        raise DriverError(
            f"the guest's disks need {needed / _GIB:.1f} GiB, but {hv.host} has only {free / _GIB:.1f} GiB free"
        )
    return [disk.name for disk in source_guest.disks]


async def _remove_stale_guest(hv: Hypervisor, guest_id: str, shared: bool) -> None:
    """Remove the domain of an evacuated guest, or the files of an earlier attempt."""
    if await hv.power(guest_id) in ("running", "paused"):
        raise DifferentGuest(f"a domain of guest {guest_id} runs on {hv.host}, which is not its host")
    await hv.undefine(guest_id)
    if not shared:
        await records.remove_directory(hv, hv.layout.guest_directory(guest_id))


async def _prepare_disks(
    hv: Hypervisor, guest: Guest, incoming: IncomingGuest, source_guest: SourceGuest, peer: Peer
) -> None:
    """Create the empty disks that libvirt copies the guest's disks to, and fetch the config drive."""
    directory = hv.layout.guest_directory(guest.id)
    make_directory(directory)
    hv.set_owner(guest.id)
    records.write_record(directory / INCOMING_FILE, incoming)
    for disk in source_guest.disks:
        path = hv.layout.file(guest.id, disk.name)
        if disk.base:
            base = await fetch_base_image(hv, peer, f"/guests/{guest.id}", disk.base, guest.image)
            await qemu_img.create_overlay(path, disk.size, base, base.suffix[1:])
        elif disk.format == "qcow2":
            await qemu_img.create(path, disk.size)
        else:
            path.touch(0o600)
            os.truncate(path, disk.size)
    if guest.config_drive:
        await peer.download(f"/guests/{guest.id}/{names.CONFIG_DRIVE}", directory / names.CONFIG_DRIVE)


# In threads


def _migratable_xml(connection: libvirt.virConnect, guest_id: str) -> str:
    import libvirt

    document: str = connection.lookupByUUIDString(guest_id).XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
    return document


def _check_uri(uri: str) -> None:
    import libvirt

    libvirt.open(uri).close()


def _check_hardware(open_connection: Any, source_guest: SourceGuest, host: str, source: str) -> None:
    """Check that this host supports the guest's machine type and CPU."""
    import libvirt

    connection: libvirt.virConnect = open_connection()
    try:
        connection.getDomainCapabilities(None, source_guest.arch, source_guest.machine, source_guest.virt_type)
    except libvirt.libvirtError as error:
        kind = f"machine type {source_guest.machine} with {source_guest.virt_type}"
        raise DriverError(f"{host} does not support {kind}: {error}") from None
    if not source_guest.cpu:
        return
    try:
        fits = connection.compareHypervisorCPU(
            None, source_guest.arch, source_guest.machine, source_guest.virt_type, source_guest.cpu
        )
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED):
            return  # this libvirt cannot compare CPUs; QEMU will
        raise DriverError(f"the CPUs of {host} and {source} cannot be compared: {error}") from None
    if fits == libvirt.VIR_CPU_COMPARE_INCOMPATIBLE:
        raise DriverError(f"the CPU of {host} lacks features that the guest has on {source}")
