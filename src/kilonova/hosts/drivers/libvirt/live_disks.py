"""Changes the disks of a domain, running or not. All functions block and run in threads.

Disks of a running guest are matched by the location of their content, because a swap does not change the serial number.
Those of a stopped guest are matched by serial number, which is the volume's id: the host is not connected to their
volumes, and may have given their paths to other volumes.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import DriverError, MissingDisk, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt import nbd_reconnect
from kilonova.hosts.drivers.libvirt.hypervisor import lookup_domain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import libvirt

Location = tuple[str, ...]
"""Identifies the content of a disk. Empty: of no disk."""

_COPY_POLL_SECONDS = 0.1


def get_location(source: ET.Element | None) -> Location:
    if source is None:
        return ()
    host = source.find("host")
    if source.get("protocol") == "nbd" and host is not None:
        return "nbd", str(source.get("name")), str(host.get("name")), str(host.get("port"))
    return tuple(str(source.get(key) or "") for key in ("protocol", "name", "file", "dev"))


def attach(
    connection: libvirt.virConnect, guest_id: str, location: Location, build: Callable[[set[str]], ET.Element]
) -> str:
    """Attach the disk to the running domain and to its definition. Returns the name of the target device.

    `build` makes the element, given the target names in use.
    """
    import libvirt

    domain = _domain(connection, guest_id)
    active, serial = bool(domain.isActive()), build(set()).findtext("serial")
    live, defined = _disks(domain, live=True), _disks(domain, live=False)

    def find(disks: list[ET.Element]) -> ET.Element | None:
        return _match(disks, location) if active else _match_serial(disks, serial)

    both = [*live, *defined]
    attached = find(both)
    # An earlier attempt may have attached the disk to one of both: the other gets the same target.
    new = build({_target(disk) for disk in both} if attached is None else set())
    if attached is not None:
        _copy_target(new, attached)
    document = ET.tostring(new, encoding="unicode")
    if active and find(live) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    if find(defined) is None:
        domain.attachDeviceFlags(document, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    return _target(new)


def has_disk(connection: libvirt.virConnect, guest_id: str, location: Location, *, later: bool = False) -> bool:
    """Whether the running guest has the disk; with `later` also whether a stopped guest will have it."""
    domain = lookup_domain(connection, guest_id)
    if domain is None:
        return False
    active = bool(domain.isActive())
    return (active or later) and _find_disk(domain, location, live=active) is not None


def request_detach(connection: libvirt.virConnect, guest_id: str, location: Location) -> bool:
    """Ask the running guest to release the disk. Returns False if it does not have the disk."""
    import libvirt

    if not has_disk(connection, guest_id, location):
        return False
    domain = _domain(connection, guest_id)
    found = _find_disk(domain, location, live=True)
    if found is None:
        return False
    try:
        domain.detachDeviceFlags(ET.tostring(found, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        code = error.get_error_code()
        # The guest stopped or released the disk meanwhile. QEMU also refuses a second request while one is pending.
        if code in (libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_INVALID):
            return has_disk(connection, guest_id, location)
        if "already in the process of unplug" not in str(error):
            raise
    return True


def detach_from_config(connection: libvirt.virConnect, guest_id: str, volume_id: str, location: Location) -> None:
    """Remove the disk from the domain's definition. Succeeds without the domain or the disk."""
    import libvirt

    domain = lookup_domain(connection, guest_id)
    if domain is None or not domain.isPersistent():
        return
    disks = _disks(domain, live=False)
    found = _match(disks, location) if domain.isActive() else _match_serial(disks, volume_id)
    if found is not None:
        domain.detachDeviceFlags(ET.tostring(found, encoding="unicode"), libvirt.VIR_DOMAIN_AFFECT_CONFIG)


class CopyStopped(DriverError):
    kind = "interrupted"


class CopyControl:
    """Stops a swap from another thread."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


def swap(
    connection: libvirt.virConnect,
    guest_id: str,
    old: Location,
    new: Location,
    element: ET.Element,
    control: CopyControl,
) -> None:
    """Mirror the old disk to the new one, then switch the running guest to the new one."""
    import libvirt

    domain = _domain(connection, guest_id)
    if not domain.isActive():
        raise NotRunning(guest_id)
    if _find_disk(domain, new, live=True) is not None:
        return
    found = _find_disk(domain, old, live=True)
    if found is None:
        raise MissingDisk(guest_id, old[1] if len(old) > 1 else "")
    name = _target(found)
    _copy_target(element, found)
    # A copy of an earlier attempt starts over.
    if domain.blockJobInfo(name, 0):
        domain.blockJobAbort(name, 0)
    flags = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
    domain.blockCopy(name, ET.tostring(element, encoding="unicode"), flags=flags)
    try:
        _wait_for_copy(domain, name, control)
        domain.blockJobAbort(name, libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT)
    except BaseException:
        _abort(domain, name)
        raise


def _wait_for_copy(domain: libvirt.virDomain, name: str, control: CopyControl) -> None:
    while True:
        job = domain.blockJobInfo(name, 0)
        if not job:
            raise DriverError("the copy of the volume failed: one of the volumes cannot be read or written")
        # The numbers may be equal for a moment before the mirror is ready.
        if job["cur"] == job["end"] and job["end"] > 0 and _is_ready(domain, name):
            return
        if control.stopped.wait(_COPY_POLL_SECONDS):
            raise CopyStopped("the copy of the volume was stopped")


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
        pass  # no job any more


def replace(connection: libvirt.virConnect, guest_id: str, old: Location, new: ET.Element) -> None:
    """Replace the old disk by the new one in the domain's definition."""
    import libvirt

    domain = _domain(connection, guest_id)
    if _find_disk(domain, old, live=False) is None:
        return
    document = ET.fromstring(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE))
    devices = document.find("devices")
    assert devices is not None
    for position, disk in enumerate(devices):
        if disk.tag == "disk" and get_location(disk.find("source")) == old:
            _copy_target(new, disk)
            for tag in ("boot", "address", "iotune"):
                if (child := disk.find(tag)) is not None and new.find(tag) is None:
                    new.append(child)
            devices[position] = new
    connection.defineXML(ET.tostring(document, encoding="unicode"))


def update_saved(
    connection: libvirt.virConnect, guest_id: str, sources: Mapping[str, tuple[str, str, ET.Element]]
) -> None:
    """Give the volumes of a suspended guest the files or devices where the host has them now.

    `sources`: by volume id, the device name that the guest sees, and type and source of the element.
    """
    import libvirt

    domain = _domain(connection, guest_id)
    if domain.isActive() or not domain.hasManagedSaveImage():
        return
    saved = domain.managedSaveGetXMLDesc(libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE)
    changed = _replace_paths(saved, sources)
    if changed != saved:
        domain.managedSaveDefineXML(changed)
        # A disk of the running guest is found in the definition by its path.
        defined = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        connection.defineXML(_replace_paths(defined, sources))


def _replace_paths(document: str, sources: Mapping[str, tuple[str, str, ET.Element]]) -> str:
    """The domain's XML with the paths of these sources; the same text if it has them already."""
    domain, is_changed = ET.fromstring(document), False
    disks = domain.findall("devices/disk")
    serials = {disk.findtext("serial") for disk in disks}
    # After a swap the serial number is that of the old volume.
    swapped = {found[0].removeprefix("/dev/"): found for serial, found in sources.items() if serial not in serials}
    for disk in disks:
        serial, source = disk.findtext("serial"), disk.find("source")
        found = sources.get(serial) or swapped.get(_target(disk)) if serial else None
        if found is None or source is None or source.get("protocol") or found[2].get("protocol"):
            continue
        if get_location(source) == get_location(found[2]):
            continue
        for key in ("file", "dev"):
            source.attrib.pop(key, None)
        source.attrib.update(found[2].attrib)
        disk.set("type", found[1])
        is_changed = True
    return ET.tostring(domain, encoding="unicode") if is_changed else document


def capacity(connection: libvirt.virConnect, guest_id: str, location: Location) -> int:
    """The size in bytes that the running guest sees; 0 if it has no such disk."""
    domain = _domain(connection, guest_id)
    found = _find_disk(domain, location, live=True)
    return int(domain.blockInfo(_target(found))[0]) if found is not None else 0


def grow(connection: libvirt.virConnect, guest_id: str, location: Location, size: int) -> None:
    """Make the running guest see the new size. A stopped guest sees it at its next start."""
    import libvirt

    domain = _domain(connection, guest_id)
    if not domain.isActive():
        return
    found = _find_disk(domain, location, live=True)
    if found is None:
        raise MissingDisk(guest_id, location[1] if len(location) > 1 else "")
    name = _target(found)
    if domain.blockInfo(name)[0] >= size:
        return
    if location[0] == "nbd":
        nbd_reconnect.replace_client(domain, found)
    try:
        domain.blockResize(name, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)
    except libvirt.libvirtError as error:
        raise DriverError(
            f"QEMU cannot resize the disk to {size} bytes: {error.get_error_message()}", passing=True
        ) from error


def ensure_reconnect(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = lookup_domain(connection, guest_id)
    if domain is not None:
        nbd_reconnect.ensure_reconnect(domain)


def remove_unused_clients(connection: libvirt.virConnect, guest_id: str) -> None:
    domain = lookup_domain(connection, guest_id)
    if domain is not None:
        nbd_reconnect.remove_unused_clients(domain)


def _domain(connection: libvirt.virConnect, guest_id: str) -> libvirt.virDomain:
    domain = lookup_domain(connection, guest_id)
    if domain is None:
        raise MissingGuest(guest_id)
    return domain


def _disks(domain: libvirt.virDomain, *, live: bool) -> list[ET.Element]:
    """The disks of the running domain, or of its definition."""
    import libvirt

    if live and not domain.isActive():
        return []
    flags = 0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE
    return ET.fromstring(domain.XMLDesc(flags | libvirt.VIR_DOMAIN_XML_SECURE)).findall("devices/disk")


def _find_disk(domain: libvirt.virDomain, location: Location, *, live: bool) -> ET.Element | None:
    return _match(_disks(domain, live=live), location)


def _match(disks: list[ET.Element], location: Location) -> ET.Element | None:
    return next((disk for disk in disks if location and get_location(disk.find("source")) == location), None)


def _match_serial(disks: list[ET.Element], serial: str | None) -> ET.Element | None:
    return next((disk for disk in disks if serial and disk.findtext("serial") == serial), None)


def _target(disk: ET.Element) -> str:
    target = disk.find("target")
    return str(target.get("dev")) if target is not None else ""


def _copy_target(disk: ET.Element, other: ET.Element) -> None:
    """Give the disk the target name and bus of the other."""
    target, source = disk.find("target"), other.find("target")
    if target is not None and source is not None:
        target.attrib.update({key: source.attrib[key] for key in ("dev", "bus") if key in source.attrib})
