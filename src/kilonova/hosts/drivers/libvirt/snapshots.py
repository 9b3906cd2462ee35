"""Snapshots: uploads the guest's root disk, as it is at one moment, as an image.

QEMU mirrors the disk of an active guest to a copy while the guest continues. When the mirror is synchronized, ending it
fixes the moment of the snapshot. The disk of a stopped guest is read directly.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kilonova.hosts.drivers.base import DriverError, MissingGuestAgent
from kilonova.hosts.drivers.libvirt import formats, qemu_img
from kilonova.hosts.drivers.libvirt.connection import in_thread, wait_until_done
from kilonova.hosts.drivers.libvirt.formats import SECTOR
from kilonova.hosts.drivers.libvirt.layout import DISK
from kilonova.hosts.messages import Guest, Transfer

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

# The working directory in the guest's directory. A guest has one snapshot at a time.
_DIRECTORY = "snapshot"
_COPY, _IMAGE = "copy", "image"
_READ_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_RECOVER_RETRY_SECONDS = 5.0
# How long the guest agent may take to flush the file systems.
_AGENT_TIMEOUT_SECONDS = 60
_REQUIRE_QUIESCE = "os_require_quiesce"
_TRUE_VALUES = ("yes", "true", "1", "on")
# qemu-img's names for the disk formats of snapshot images.
_FORMATS = {"qcow2": "qcow2", "raw": "raw", "iso": "raw"}

# By working directory.
_locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()


async def create(hv: Hypervisor, guest_id: str, data: Transfer) -> None:
    """Upload a snapshot. Removes its temporary files also after a failure."""
    guest = hv.spec(guest_id)
    if guest.image is None:
        raise DriverError(f"guest {guest_id} boots from a volume: it has no root disk on this host to snapshot")
    shown = await hv.images.images.show(data)
    if shown.get("status") == "active":
        return
    wanted = str(shown.get("disk_format") or "qcow2")
    if wanted not in _FORMATS:
        raise DriverError(f"snapshots cannot have disk format {wanted} on this host, only {', '.join(_FORMATS)}")
    async with _work_directory(hv, guest_id) as directory:
        disk, copy, image = hv.layout.file(guest_id, DISK), directory / _COPY, directory / _IMAGE
        await _check_free_space(disk, directory)
        if await hv.power(guest_id) in ("running", "paused"):
            disk = await _copy_disk(hv, guest, copy)
        await qemu_img.convert(disk, "qcow2", image, _FORMATS[wanted])
        copy.unlink(missing_ok=True)
        await hv.images.images.write(data, _read_chunks(image))


async def recover(hv: Hypervisor) -> None:
    """Clean up the snapshots of a killed agent. Runs at the agent's start, concurrently with commands."""
    pending = [guest_id for guest_id in hv.layout.guest_ids() if _directory(hv, guest_id).exists()]
    while pending:
        for guest_id in list(pending):
            lock = _lock(hv, guest_id)
            if not lock.locked():
                async with lock:
                    try:
                        await _recover_guest(hv, guest_id)
                    except DriverError as error:
                        log.warning("cannot clean up the snapshot of guest %s: %s", guest_id, error.message)
                        continue
            pending.remove(guest_id)
        if pending:
            await asyncio.sleep(_RECOVER_RETRY_SECONDS)


@asynccontextmanager
async def _work_directory(hv: Hypervisor, guest_id: str) -> AsyncIterator[Path]:
    directory = _directory(hv, guest_id)
    async with _lock(hv, guest_id):
        await _recover_guest(hv, guest_id)
        directory.mkdir(mode=0o711)
        try:
            yield directory
        finally:
            await wait_until_done(asyncio.ensure_future(_clean_up(hv, guest_id)))


def _directory(hv: Hypervisor, guest_id: str) -> Path:
    return hv.layout.guest_directory(guest_id) / _DIRECTORY


def _lock(hv: Hypervisor, guest_id: str) -> asyncio.Lock:
    return _locks.setdefault(_directory(hv, guest_id), asyncio.Lock())


async def _recover_guest(hv: Hypervisor, guest_id: str) -> None:
    guest, domain = hv.find_spec(guest_id), await hv.find_domain(guest_id)
    if guest is None or not _directory(hv, guest_id).exists():
        return
    if domain is not None and _needs_freeze(guest) and await hv.power(guest_id) == "running":
        await hv.connection.run(_thaw, domain)
    await _clean_up(hv, guest_id)


async def _clean_up(hv: Hypervisor, guest_id: str) -> None:
    directory, domain = _directory(hv, guest_id), await hv.find_domain(guest_id)
    if domain is not None:
        await hv.connection.run(_end_copy, domain, str(directory / _COPY))
    await wait_until_done(in_thread(shutil.rmtree, directory, True))


async def _check_free_space(disk: Path, directory: Path) -> None:
    """Refuse snapshots that would fill the file system: that would stop all guests that write to it."""
    needed = disk.stat().st_blocks * SECTOR + await qemu_img.measure(disk)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DriverError(f"a snapshot needs about {needed} bytes, but only {free} are free on this host")


async def _copy_disk(hv: Hypervisor, guest: Guest, copy: Path) -> Path:
    """Copy the guest's disk, with the same base image."""
    disk = hv.layout.file(guest.id, DISK)
    found = formats.read_overlay(disk)
    if found is None:
        raise DriverError(f"{disk} is not a valid qcow2")
    if found.backing:
        await qemu_img.create_overlay(copy, found.size, Path(found.backing), found.backing_format)
    else:
        await qemu_img.create(copy, found.size)
    domain = await hv.domain(guest.id)
    target = await hv.connection.run(_target, domain, str(disk))
    await hv.connection.run(_begin_copy, domain, target, str(copy), bool(found.backing))
    while not await hv.connection.run(_is_synchronized, domain, target):
        await asyncio.sleep(_POLL_SECONDS)
    frozen = await _freeze(hv, guest, domain)
    try:
        await hv.connection.run(domain.blockJobAbort, target, 0)
    finally:
        if frozen:
            await hv.connection.run(_thaw, domain)
    return copy


async def _freeze(hv: Hypervisor, guest: Guest, domain: libvirt.virDomain) -> bool:
    """Freeze the guest's file systems with the guest agent, if the image requests it. Returns whether it was done."""
    if not _needs_freeze(guest) or await hv.power(guest.id) != "running":
        return False
    try:
        await hv.connection.run(_freeze_filesystems, domain)
    except asyncio.CancelledError:
        # The call has ended, so the file systems may be frozen.
        await hv.connection.run(_thaw, domain)
        raise
    except DriverError as error:
        if _is_set(guest.properties, _REQUIRE_QUIESCE):
            raise MissingGuestAgent(
                f"the guest agent of {guest.id} could not freeze its file systems: {error.message}"
            ) from None
        log.warning("the snapshot of guest %s is taken without freezing its file systems: %s", guest.id, error.message)
        return False
    return True


def _needs_freeze(guest: Guest) -> bool:
    return _is_set(guest.properties, _REQUIRE_QUIESCE) or _is_set(guest.properties, "hw_qemu_guest_agent")


def _is_set(properties: dict[str, str], name: str) -> bool:
    return str(properties.get(name, "")).lower() in _TRUE_VALUES


async def _read_chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
            yield chunk


# In threads


def _target(domain: libvirt.virDomain, path: str) -> str:

    for disk in ET.fromstring(domain.XMLDesc()).findall("devices/disk"):
        source, target = disk.find("source"), disk.find("target")
        if source is not None and target is not None and source.get("file") == path:
            return target.get("dev", "")
    raise DriverError(f"the guest does not have the disk {path}")


def _begin_copy(domain: libvirt.virDomain, target: str, path: str, shallow: bool) -> None:
    import libvirt

    disk = ET.Element("disk", type="file")
    ET.SubElement(disk, "driver", name="qemu", type="qcow2")
    ET.SubElement(disk, "source", file=path)
    flags = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    if shallow:
        flags |= libvirt.VIR_DOMAIN_BLOCK_COPY_SHALLOW
    domain.blockCopy(target, ET.tostring(disk, encoding="unicode"), {}, flags)


def _is_synchronized(domain: libvirt.virDomain, target: str) -> bool:
    """Whether every write now goes to both disks."""
    mirror = _mirrors(domain).get(target)
    if mirror is None:
        raise DriverError("the copy of the disk failed: see the log of the guest's QEMU")
    return mirror[1]


def _mirrors(domain: libvirt.virDomain) -> dict[str, tuple[str, bool]]:
    """Running mirrors: by target device, the path of the copy and whether it is synchronized."""

    found = {}
    for disk in ET.fromstring(domain.XMLDesc()).findall("devices/disk"):
        mirror, target = disk.find("mirror"), disk.find("target")
        if mirror is not None and target is not None:
            source = mirror.find("source")
            path = source.get("file", "") if source is not None else ""
            found[target.get("dev", "")] = path, mirror.get("ready") == "yes"
    return found


def _end_copy(domain: libvirt.virDomain, path: str) -> None:
    import libvirt

    try:
        for target, (copy, _) in _mirrors(domain).items():
            if copy == path:
                domain.blockJobAbort(target, 0)
    except libvirt.libvirtError as error:
        # The guest or the mirror has ended meanwhile.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


def _freeze_filesystems(domain: libvirt.virDomain) -> None:
    import libvirt

    try:
        domain.agentSetResponseTimeout(_AGENT_TIMEOUT_SECONDS)
    except libvirt.libvirtError:
        pass  # without an agent the next call fails
    domain.fsFreeze(None, 0)


def _thaw(domain: libvirt.virDomain) -> None:
    import libvirt

    try:
        domain.fsThaw(None, 0)
    except libvirt.libvirtError as error:
        log.error("the file systems of guest %s could not be thawed: %s", domain.UUIDString(), error)
