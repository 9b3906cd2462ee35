"""Before a running guest moves, both hosts look whether that can work, and the destination makes ready for it."""

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

from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import arrivals, disks, formats, programs
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.arrivals import ARRIVING, Arriving
from kilonova.hosts.drivers.libvirt.hypervisor import make_directory, write
from kilonova.hosts.drivers.libvirt.peers import Peer, fetch_base
from kilonova.hosts.drivers.libvirt.volumes import check_tls
from kilonova.hosts.messages import Guest

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

_PORTS = {"tcp": 16509, "tls": 16514, "ssh": 22, "": 16514}
_CONNECT_SECONDS = 5.0
# The source leaves this with the guest's disks; a destination that finds its content sees the same storage.
_PROBE = "probe"
_GIB = 1 << 30


class OfferedDisk(msgspec.Struct, frozen=True):
    """`base`: the name of the image that the disk is laid over. `used`: bytes of it that hold something."""

    name: str
    format: str
    size: int
    used: int
    base: str = ""
    base_size: int = 0


class Offered(msgspec.Struct, frozen=True):
    """What the source says of the guest and of itself. `tls`: it sends guests by TLS alone."""

    nonce: str = ""
    cpu: str = ""
    arch: str = ""
    machine: str = ""
    virt_type: str = ""
    disks: list[OfferedDisk] = []
    tls: bool = False


# At the source


async def offer(hv: Hypervisor, guest_id: str, destination: str, slot: str, reach: dict[str, str]) -> dict[str, Any]:
    await arrivals.settle_guest(hv, guest_id)
    guest = hv.spec(guest_id)
    if await hv.power(guest_id) not in ("running", "paused"):
        raise NotRunning(guest_id)
    if hv.layout.file(guest_id, names.RESCUE_MODE).exists():
        raise DriverError(f"guest {guest_id} is in rescue, and not moved before it runs from its own disk again")
    await _check_reachable(hv, destination, reach)
    found = _hardware(await hv.connection.ask(_migratable, guest_id))
    nonce = secrets.token_hex(16)
    write(hv.layout.guest(guest_id) / _PROBE, nonce.encode())
    lying = await asyncio.to_thread(_disks_of, hv, guest)
    offered = msgspec.structs.replace(found, nonce=nonce, disks=lying, tls=hv.config.libvirt.migration_tls)
    answer: dict[str, Any] = msgspec.to_builtins(offered)
    return answer


async def _check_reachable(hv: Hypervisor, destination: str, reach: dict[str, str]) -> None:
    uri = reach.get("migration", "")
    if not uri:
        raise DriverError(f"{destination} does not say where its libvirt is reached, so that no guest can go there")
    parts = urlsplit(uri)
    transport = parts.scheme.partition("+")[2]
    if transport != "unix" and parts.hostname:
        port = parts.port or _PORTS.get(transport, _PORTS[""])
        await _check_answers(hv, destination, "libvirt", parts.hostname, port)
    try:
        await Peer(hv, destination, reach.get("disks", "")).ask("/arrived/nobody", seconds=_CONNECT_SECONDS)
    except DriverError as error:
        raise DriverError(f"{destination} cannot be asked by {hv.host}: {error.message}") from None
    try:
        await hv.connection.run(_try_uri, uri)
    except DriverError as error:
        raise DriverError(f"libvirt of {destination} cannot be reached from {hv.host}: {error.message}") from None
    if reach.get("guests"):
        # Nobody listens there yet, but somebody has to say so.
        await _check_answers(hv, destination, "guests", reach["guests"], 49152, refused=True)


async def _check_answers(
    hv: Hypervisor, destination: str, what: str, host: str, port: int, refused: bool = False
) -> None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except ConnectionRefusedError as error:
        if not refused:
            raise _no_way(hv, destination, what, host, port, error) from None
    except (OSError, TimeoutError) as error:
        raise _no_way(hv, destination, what, host, port, error) from None


def _no_way(hv: Hypervisor, destination: str, what: str, host: str, port: int, error: Exception) -> DriverError:
    why = getattr(error, "strerror", None) or str(error) or f"no answer within {_CONNECT_SECONDS:g} s"
    return DriverError(f"{what} of {destination} at {host} port {port} cannot be reached from {hv.host}: {why}")


def _hardware(document: str) -> Offered:
    domain = ET.fromstring(document)
    kind = domain.find("os/type")
    cpu = domain.find("cpu")
    return Offered(
        cpu=ET.tostring(cpu, encoding="unicode") if cpu is not None else "",
        arch=kind.get("arch", "") if kind is not None else "",
        machine=kind.get("machine", "") if kind is not None else "",
        virt_type=domain.get("type", ""),
    )


def _disks_of(hv: Hypervisor, guest: Guest) -> list[OfferedDisk]:
    found = []
    for file in disks.files(guest):
        if file.name == names.CONFIG_DRIVE:
            continue
        path = hv.layout.file(guest.id, file.name)
        stat = path.stat()
        overlay = formats.overlay(path) if file.format == "qcow2" else None
        base = Path(overlay.backing) if overlay and overlay.backing else None
        found.append(
            OfferedDisk(
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


async def expect(
    hv: Hypervisor,
    guest: Guest,
    source: str,
    slot: str,
    block: bool | None,
    offer: dict[str, Any],
    reach: dict[str, str],
) -> None:
    await arrivals.settle_guest(hv, guest.id)
    if hv.find_spec(guest.id) is not None:
        if await hv.power(guest.id) in ("running", "paused"):
            return  # it has come
        raise DriverError(f"guest {guest.id} is here already, and on {source} too", kind="guest differs")
    try:
        offered = msgspec.convert(offer, Offered)
    except msgspec.ValidationError as error:
        raise DriverError(f"{source} offers guest {guest.id} in a way that is not understood: {error}") from None
    _check_tls(hv, source, offered)
    check_tls(hv, guest.disks)
    shared = _is_shared(hv, guest.id, offered)
    moved = _moved(hv, offered, source, shared, block)
    await hv.connection.run(_check_hardware, hv.connection.opened, offered, hv.host, source)
    if not hv.config.agent.disk_secret or not hv.disks_url:
        raise DriverError(f"{hv.host} takes no running guests: agent.disk_secret is not configured")
    coming = Arriving(slot=slot, source=source, shared=shared, moved=moved)
    # First the slot, by which everything else is found and removed.
    await _clear_way(hv, guest.id, shared)
    hv.take(guest.id, slot)
    arrivals.note(hv.layout.slot(guest.id, slot) / ARRIVING, coming)
    hv.write_spec(guest, slot)
    if not shared:
        await _make_ready(hv, guest, coming, offered, Peer(hv, source, reach.get("disks", "")))


def _check_tls(hv: Hypervisor, source: str, offered: Offered) -> None:
    """Whoever wants TLS gets nothing else."""
    has = hv.config.libvirt.migration_tls
    if offered.tls and not has:
        raise DriverError(
            f"{source} sends guests by TLS, for which {hv.host} has no certificates: libvirt.migration_tls is off"
        )
    if has and not offered.tls:
        raise DriverError(f"{hv.host} takes guests by TLS alone, but libvirt.migration_tls is off at {source}")


def _is_shared(hv: Hypervisor, guest_id: str, offered: Offered) -> bool:
    try:
        return bool(offered.nonce) and hv.layout.file(guest_id, _PROBE).read_text() == offered.nonce
    except FileNotFoundError:
        return False


def _moved(hv: Hypervisor, offered: Offered, source: str, shared: bool, block: bool | None) -> list[str]:
    """The names of the disks that have to come too. What is asked for and cannot be is refused."""
    if not offered.disks:
        return []
    if block is False and not shared:
        raise DriverError(f"{hv.host} and {source} share no storage, so that the disks have to be moved as well")
    if block and shared:
        raise DriverError(f"{hv.host} and {source} share the storage of disks, so that these cannot be moved")
    if shared:
        return []
    root = hv.layout.root
    make_directory(root)
    bases = {
        disk.base: disk.base_size for disk in offered.disks if disk.base and not (hv.layout.base / disk.base).exists()
    }
    needed, free = sum(disk.used for disk in offered.disks) + sum(bases.values()), shutil.disk_usage(root).free
    if needed > free:
        raise DriverError(
            f"{hv.host} has {free / _GIB:.1f} GiB of disk left, but the guest's disks need {needed / _GIB:.1f}"
        )
    return [disk.name for disk in offered.disks]


async def _clear_way(hv: Hypervisor, guest_id: str, shared: bool) -> None:
    """A domain that an evacuated guest has left, or half of what an earlier try has made."""
    if await hv.power(guest_id) in ("running", "paused"):
        raise DriverError(
            f"a domain of guest {guest_id} runs on {hv.host}, which is not its host", kind="guest differs"
        )
    await hv.undefine(guest_id)
    if not shared:
        await arrivals.remove(hv, hv.layout.guest(guest_id))


async def _make_ready(hv: Hypervisor, guest: Guest, coming: Arriving, offered: Offered, peer: Peer) -> None:
    """Empty disks that the guest's own are copied into as it comes."""
    directory = hv.layout.guest(guest.id)
    make_directory(directory)
    hv.take(guest.id)
    arrivals.note(directory / ARRIVING, coming)
    for disk in offered.disks:
        path = hv.layout.file(guest.id, disk.name)
        if disk.base:
            base = await fetch_base(hv, peer, disk.base)
            await programs.create_overlay(path, disk.size, base, base.suffix[1:])
        elif disk.format == "qcow2":
            await programs.create(path, disk.size)
        else:
            path.touch(0o600)
            os.truncate(path, disk.size)
    if guest.config_drive:
        await peer.fetch(f"/guests/{guest.id}/{names.CONFIG_DRIVE}", directory / names.CONFIG_DRIVE)


# In threads


def _migratable(connection: libvirt.virConnect, guest_id: str) -> str:
    import libvirt

    document: str = connection.lookupByUUIDString(guest_id).XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
    return document


def _try_uri(uri: str) -> None:
    import libvirt

    libvirt.open(uri).close()


def _check_hardware(opened: Any, offered: Offered, host: str, source: str) -> None:
    """Whether the guest's machine and processor can be had here."""
    import libvirt

    connection: libvirt.virConnect = opened()
    try:
        connection.getDomainCapabilities(None, offered.arch, offered.machine, offered.virt_type)
    except libvirt.libvirtError as error:
        raise DriverError(f"{host} has no machine {offered.machine} of type {offered.virt_type}: {error}") from None
    if not offered.cpu:
        return
    try:
        fits = connection.compareHypervisorCPU(None, offered.arch, offered.machine, offered.virt_type, offered.cpu)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED):
            return  # this libvirt cannot tell; QEMU will
        raise DriverError(f"the processor of {host} cannot be compared with that of {source}: {error}") from None
    if fits == libvirt.VIR_CPU_COMPARE_INCOMPATIBLE:
        raise DriverError(f"the processor of {host} lacks what the guest has on {source}")
