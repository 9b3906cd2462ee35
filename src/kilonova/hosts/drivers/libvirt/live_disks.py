"""What is done to the disks of a domain, running or not. All of it blocks: for threads.

A disk is known by where its content is; the serial number that a guest was told stays when its volume is swapped.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import DriverError, MissingDisk, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt import reconnecting
from kilonova.hosts.drivers.libvirt.hypervisor import look_up

if TYPE_CHECKING:
    from collections.abc import Callable

    import libvirt

Place = tuple[str, ...]
"""Where a disk's content is."""

_COPY_LOOK_SECONDS = 0.1


def place(source: ET.Element | None) -> Place:
    if source is None:
        return ()
    host = source.find("host")
    if source.get("protocol") == "nbd" and host is not None:
        return "nbd", str(source.get("name")), str(host.get("name")), str(host.get("port"))
    return tuple(str(source.get(key) or "") for key in ("protocol", "name", "file", "dev"))


def attach(connection: libvirt.virConnect, guest_id: str, where: Place, build: Callable[[set[str]], ET.Element]) -> str:
    """Give the domain the disk, now and for later starts. `build` makes it, given the names that are taken.

    The name that the guest has it by.
    """
    import libvirt

    domain = _domain(connection, guest_id)
    both = [*_disks(domain, live=True), *_disks(domain, live=False)]
    there = next((disk for disk in both if place(disk.find("source")) == where), None)
    # Half attached by an earlier try: the other half gets the same name.
    made = build({_target(disk) for disk in both} if there is None else set())
    if there is not None:
        _rename(made, there)
    document = ET.tostring(made, encoding="unicode")
    if domain.isActive() and _find(domain, where, live=True) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    if _find(domain, where, live=False) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    return _target(made)


def has(connection: libvirt.virConnect, guest_id: str, where: Place, *, later: bool = False) -> bool:
    """Whether the guest runs and has it; with `later` also whether one that stands still will have it."""
    domain = look_up(connection, guest_id)
    if domain is None:
        return False
    active = bool(domain.isActive())
    return (active or later) and _find(domain, where, live=active) is not None


def ask_back(connection: libvirt.virConnect, guest_id: str, where: Place) -> bool:
    """Ask the running guest to let the disk go; False if it has not got it."""
    import libvirt

    if not has(connection, guest_id, where):
        return False
    domain = _domain(connection, guest_id)
    found = _find(domain, where, live=True)
    if found is None:
        return False
    try:
        domain.detachDeviceFlags(ET.tostring(found, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        code = error.get_error_code()
        # Stopped or gone meanwhile; and asked before, which QEMU does not want to hear twice at once.
        if code in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_INVALID):
            return has(connection, guest_id, where)
        if "already in the process of unplug" not in str(error):
            raise
    return True


def forget(connection: libvirt.virConnect, guest_id: str, where: Place) -> None:
    """Later starts of the domain are without the disk. No domain, and no such disk, are fine."""
    import libvirt

    domain = look_up(connection, guest_id)
    if domain is None or not domain.isPersistent():
        return
    found = _find(domain, where, live=False)
    if found is not None:
        domain.detachDeviceFlags(ET.tostring(found, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_CONFIG)


class Copying:
    """A swap that may be stopped from outside."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


def swap(
    connection: libvirt.virConnect, guest_id: str, old: Place, new: Place, made: ET.Element, copying: Copying
) -> None:
    """Copy what the old disk has to the new one, to the last write, and have the running guest go on with that."""
    import libvirt

    domain = _domain(connection, guest_id)
    if not domain.isActive():
        raise NotRunning(guest_id)
    if _find(domain, new, live=True) is not None:
        return
    found = _find(domain, old, live=True)
    if found is None:
        raise MissingDisk(guest_id, old[1] if len(old) > 1 else "")
    name = _target(found)
    _rename(made, found)
    # What an earlier try has left half copied starts over.
    if domain.blockJobInfo(name, 0):
        domain.blockJobAbort(name, 0)
    flags = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    domain.blockCopy(name, ET.tostring(made, encoding="unicode"), flags=flags)
    try:
        _wait_for_copy(domain, name, copying)
        domain.blockJobAbort(name, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)
    except BaseException:
        _abort(domain, name)
        raise


def _wait_for_copy(domain: libvirt.virDomain, name: str, copying: Copying) -> None:
    while True:
        job = domain.blockJobInfo(name, 0)
        if not job:
            raise DriverError("the copy of the volume broke off: one of the volumes cannot be read or written")
        # The mirror is in step when the document says so; both numbers are equal before that for a moment.
        if job["cur"] == job["end"] and job["end"] > 0 and _is_ready(domain, name):
            return
        if copying.stopped.wait(_COPY_LOOK_SECONDS):
            raise DriverError("the copy of the volume was stopped", kind="interrupted")


def _is_ready(domain: libvirt.virDomain, name: str) -> bool:
    for disk in _disks(domain, live=True):
        if _target(disk) == name:
            mirror = disk.find("mirror")
            return mirror is not None and mirror.get("ready") == "yes"
    return False


def _abort(domain: libvirt.virDomain, name: str) -> None:
    import libvirt

    try:
        domain.blockJobAbort(name, 0)
    except libvirt.libvirtError:
        pass  # there is none any more


def replace(connection: libvirt.virConnect, guest_id: str, old: Place, made: ET.Element) -> None:
    """Later starts of the domain have the new disk where they had the old one."""
    import libvirt

    domain = _domain(connection, guest_id)
    if _find(domain, old, live=False) is None:
        return
    document = ET.fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))
    devices = document.find("devices")
    assert devices is not None
    for position, disk in enumerate(devices):
        if disk.tag == "disk" and place(disk.find("source")) == old:
            _rename(made, disk)
            for part in ("boot", "address", "iotune"):
                if (kept := disk.find(part)) is not None and made.find(part) is None:
                    made.append(kept)
            devices[position] = made
    connection.defineXML(ET.tostring(document, encoding="unicode"))


def capacity(connection: libvirt.virConnect, guest_id: str, where: Place) -> int:
    """Bytes, as the running guest sees it; 0 if it has no such disk."""
    domain = _domain(connection, guest_id)
    found = _find(domain, where, live=True)
    return int(domain.blockInfo(_target(found))[0]) if found is not None else 0


def grow(connection: libvirt.virConnect, guest_id: str, where: Place, size: int) -> None:
    """Have the running guest see the size; a domain that stands still sees it when it starts."""
    import libvirt

    domain = _domain(connection, guest_id)
    if not domain.isActive():
        return
    found = _find(domain, where, live=True)
    if found is None:
        raise MissingDisk(guest_id, where[1] if len(where) > 1 else "")
    name = _target(found)
    if domain.blockInfo(name)[0] >= size:
        return
    if where[0] == "nbd":
        reconnecting.renew(domain, found)
    try:
        domain.blockResize(name, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)
    except libvirt.libvirtError as error:
        raise DriverError(
            f"QEMU does not see that the volume has grown: {error.get_error_message()}", passing=True
        ) from error


def steady(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = look_up(connection, guest_id)
    if domain is not None:
        reconnecting.steady(domain)


def tidy(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = look_up(connection, guest_id)
    if domain is not None:
        reconnecting.tidy(domain)


def keep_secret(connection: libvirt.virConnect, usage: str, value: str) -> None:
    """Give libvirt what a storage wants to be told. Not written to its disk."""
    import libvirt

    secret = ET.Element("secret", ephemeral="yes", private="yes")
    use = ET.SubElement(secret, "usage", type="iscsi")
    ET.SubElement(use, "target").text = usage
    try:
        known = connection.secretLookupByUsage(libvirt.VIR_SECRET_USAGE_TYPE_ISCSI, usage)
    except libvirt.libvirtError:
        known = connection.secretDefineXML(ET.tostring(secret, encoding="unicode"))
    known.setValue(value.encode())


def _domain(connection: libvirt.virConnect, guest_id: str) -> libvirt.virDomain:
    domain = look_up(connection, guest_id)
    if domain is None:
        raise MissingGuest(guest_id)
    return domain


def _disks(domain: libvirt.virDomain, *, live: bool) -> list[ET.Element]:
    """Of the domain as it runs, or as it starts the next time."""
    import libvirt

    if live and not domain.isActive():
        return []
    flags = 0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE
    return ET.fromstring(domain.XMLDesc(flags | libvirt.VIR_DOMAIN_XML_SECURE)).findall("devices/disk")


def _find(domain: libvirt.virDomain, where: Place, *, live: bool) -> ET.Element | None:
    return next((disk for disk in _disks(domain, live=live) if place(disk.find("source")) == where), None)


def _target(disk: ET.Element) -> str:
    target = disk.find("target")
    return str(target.get("dev")) if target is not None else ""


def _rename(made: ET.Element, like: ET.Element) -> None:
    """Under the name and on the bus of the other one."""
    target, other = made.find("target"), like.find("target")
    if target is not None and other is not None:
        target.attrib.update({key: other.attrib[key] for key in ("dev", "bus") if key in other.attrib})
