"""Snapshots: the guest's root disk as it is at one moment, written as an image.

Of a guest that runs, or is only paused, QEMU copies the disk aside while the guest goes on; when the copy has caught up
it is cut off, and that is the moment. A guest that stands still is read as it lies.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import formats, programs
from kilonova.hosts.drivers.libvirt.connection import finished, in_thread
from kilonova.hosts.drivers.libvirt.formats import SECTOR
from kilonova.hosts.drivers.libvirt.layout import DISK
from kilonova.hosts.messages import Guest, Transfer

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

# Everything that a snapshot needs meanwhile; one at a time is taken of a guest.
_DIRECTORY = "snapshot"
_COPY, _IMAGE = "copy", "image"
_READ_AT_ONCE = 1 << 20
_LOOK_EVERY = 0.1
_RECOVER_EVERY = 5.0
# How long the agent in a guest may take for what it has to write.
_AGENT_SECONDS = 60
_REQUIRED = "os_require_quiesce"
_YES = ("yes", "true", "1", "on")
# Formats that an image may be asked in, as qemu-img calls them.
_FORMATS = {"qcow2": "qcow2", "raw": "raw", "iso": "raw"}


# By the directory: who works in it.
_locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()


async def take(hv: Hypervisor, guest_id: str, data: Transfer) -> None:
    """Nothing is left on the host, however it ends."""
    guest = hv.spec(guest_id)
    if guest.image is None:
        raise DriverError(f"guest {guest_id} boots from a volume: it has no disk here that could be an image")
    shown = await hv.images.images.show(data)
    if shown.get("status") == "active":
        return
    wanted = str(shown.get("disk_format") or "qcow2")
    if wanted not in _FORMATS:
        raise DriverError(f"a snapshot cannot be of disk format {wanted} on this host, only qcow2 or raw")
    async with _workplace(hv, guest_id) as directory:
        disk, copy, image = hv.layout.file(guest_id, DISK), directory / _COPY, directory / _IMAGE
        await _check_room(disk, directory)
        if await hv.power(guest_id) in ("running", "paused"):
            disk = await _copied(hv, guest, copy)
        await programs.convert(disk, "qcow2", image, _FORMATS[wanted])
        copy.unlink(missing_ok=True)
        await hv.images.images.write(data, _content(image))


async def recover(hv: Hypervisor) -> None:
    """Ends what snapshots left that were under way when the agent was killed: copies that go on for nobody, file
    systems that were made quiet, files. For when an agent starts; commands may come meanwhile."""
    left = [guest_id for guest_id in hv.layout.guests() if _directory(hv, guest_id).exists()]
    while left:
        for guest_id in list(left):
            lock = _lock(hv, guest_id)
            if not lock.locked():
                async with lock:
                    try:
                        await _recovered(hv, guest_id)
                    except DriverError as error:
                        log.warning("what a snapshot of guest %s left is still there: %s", guest_id, error.message)
                        continue
            left.remove(guest_id)
        if left:
            await asyncio.sleep(_RECOVER_EVERY)


@asynccontextmanager
async def _workplace(hv: Hypervisor, guest_id: str) -> AsyncIterator[Path]:
    directory = _directory(hv, guest_id)
    async with _lock(hv, guest_id):
        await _recovered(hv, guest_id)
        directory.mkdir(mode=0o711)
        try:
            yield directory
        finally:
            await finished(asyncio.ensure_future(_clear(hv, guest_id)))


def _directory(hv: Hypervisor, guest_id: str) -> Path:
    return hv.layout.guest(guest_id) / _DIRECTORY


def _lock(hv: Hypervisor, guest_id: str) -> asyncio.Lock:
    return _locks.setdefault(_directory(hv, guest_id), asyncio.Lock())


async def _recovered(hv: Hypervisor, guest_id: str) -> None:
    guest, domain = hv.find_spec(guest_id), await hv.find_domain(guest_id)
    if guest is None or not _directory(hv, guest_id).exists():
        return
    if domain is not None and _wants_quiet(guest) and await hv.power(guest_id) == "running":
        await hv.connection.run(_thaw, domain)
    await _clear(hv, guest_id)


async def _clear(hv: Hypervisor, guest_id: str) -> None:
    directory, domain = _directory(hv, guest_id), await hv.find_domain(guest_id)
    if domain is not None:
        await hv.connection.run(_end_copy, domain, str(directory / _COPY))
    await finished(in_thread(shutil.rmtree, directory, True))


async def _check_room(disk: Path, directory: Path) -> None:
    """A file system that is full stops all guests that write to it, so it is not tried."""
    needed = disk.stat().st_blocks * SECTOR + await programs.measure(disk)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DriverError(f"a snapshot needs about {needed} bytes, but only {free} are free on this host")


async def _copied(hv: Hypervisor, guest: Guest, copy: Path) -> Path:
    """A disk over the same image as the guest's, with what that has now."""
    disk = hv.layout.file(guest.id, DISK)
    found = formats.overlay(disk)
    if found is None:
        raise DriverError(f"{disk} is not a whole qcow2")
    if found.backing:
        await programs.create_overlay(copy, found.size, Path(found.backing), found.backing_format)
    else:
        await programs.create(copy, found.size)
    domain = await hv.domain(guest.id)
    target = await hv.connection.run(_target, domain, str(disk))
    await hv.connection.run(_begin_copy, domain, target, str(copy), bool(found.backing))
    while not await hv.connection.run(_caught_up, domain, target):
        await asyncio.sleep(_LOOK_EVERY)
    frozen = await _freeze(hv, guest, domain)
    try:
        await hv.connection.run(domain.blockJobAbort, target, 0)
    finally:
        if frozen:
            await hv.connection.run(_thaw, domain)
    return copy


async def _freeze(hv: Hypervisor, guest: Guest, domain: libvirt.virDomain) -> bool:
    """Have the guest's file systems be whole on the disk, by its agent, where the image asks for that."""
    if not _wants_quiet(guest) or await hv.power(guest.id) != "running":
        return False
    try:
        await hv.connection.run(_quiet, domain)
    except asyncio.CancelledError:
        # By now it is done, or was never.
        await hv.connection.run(_thaw, domain)
        raise
    except DriverError as error:
        if _is(guest.properties, _REQUIRED):
            raise DriverError(
                f"the agent in guest {guest.id} could not make its disks quiet: {error.message}", kind="no guest agent"
            ) from None
        log.warning("guest %s is snapshotted while it writes: %s", guest.id, error.message)
        return False
    return True


def _wants_quiet(guest: Guest) -> bool:
    return _is(guest.properties, _REQUIRED) or _is(guest.properties, "hw_qemu_guest_agent")


def _is(properties: dict[str, str], name: str) -> bool:
    return str(properties.get(name, "")).lower() in _YES


async def _content(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _READ_AT_ONCE):
            yield chunk


# In threads


def _target(domain: libvirt.virDomain, path: str) -> str:
    import xml.etree.ElementTree as ET

    for disk in ET.fromstring(domain.XMLDesc()).findall("devices/disk"):
        source, target = disk.find("source"), disk.find("target")
        if source is not None and target is not None and source.get("file") == path:
            return target.get("dev", "")
    raise DriverError(f"the guest does not have the disk {path}")


def _begin_copy(domain: libvirt.virDomain, target: str, path: str, shallow: bool) -> None:
    import xml.etree.ElementTree as ET

    import libvirt

    disk = ET.Element("disk", type="file")
    ET.SubElement(disk, "driver", name="qemu", type="qcow2")
    ET.SubElement(disk, "source", file=path)
    flags = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    if shallow:
        flags |= libvirt.VIR_DOMAIN_BLOCK_COPY_SHALLOW
    domain.blockCopy(target, ET.tostring(disk, encoding="unicode"), {}, flags)


def _caught_up(domain: libvirt.virDomain, target: str) -> bool:
    """Whether every write goes to both from now on."""
    mirror = _mirrors(domain).get(target)
    if mirror is None:
        raise DriverError("the copy of the disk ended early: see the log of the guest's QEMU")
    return mirror[1]


def _mirrors(domain: libvirt.virDomain) -> dict[str, tuple[str, bool]]:
    """Copies under way: by the disk, where to and whether they have caught up."""
    import xml.etree.ElementTree as ET

    found = {}
    for disk in ET.fromstring(domain.XMLDesc()).findall("devices/disk"):
        mirror, target = disk.find("mirror"), disk.find("target")
        if mirror is not None and target is not None:
            source = mirror.find("source")
            where = source.get("file", "") if source is not None else ""
            found[target.get("dev", "")] = where, mirror.get("ready") == "yes"
    return found


def _end_copy(domain: libvirt.virDomain, path: str) -> None:
    import libvirt

    try:
        for target, (where, _) in _mirrors(domain).items():
            if where == path:
                domain.blockJobAbort(target, 0)
    except libvirt.libvirtError as error:
        # The guest, or the copy, ended by itself in between.
        if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            raise


def _quiet(domain: libvirt.virDomain) -> None:
    import libvirt

    try:
        domain.agentSetResponseTimeout(_AGENT_SECONDS)
    except libvirt.libvirtError:
        pass  # without an agent the next call says so
    domain.fsFreeze(None, 0)


def _thaw(domain: libvirt.virDomain) -> None:
    import libvirt

    try:
        domain.fsThaw(None, 0)
    except libvirt.libvirtError as error:
        log.error("the file systems of guest %s could not be thawed: %s", domain.UUIDString(), error)
