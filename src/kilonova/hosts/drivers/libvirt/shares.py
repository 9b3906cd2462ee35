"""File shares of guests: checks and mounts them on the host, and describes them in the domain.

A directory of this machine needs no mount. An NFS export is mounted below the instances path while its guest runs, and
never in the guest's own directory, which is removed with the guest. virtiofsd, which libvirt runs for each share,
presents the directory to the guest.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from kilonova.hosts.drivers.base import DriverError, StillRunning
from kilonova.hosts.drivers.libvirt import programs
from kilonova.hosts.messages import Guest, GuestState, Share

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

# Where distributions install virtiofsd, which is in no PATH.
_DAEMONS = tuple(map(Path, ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd")))
# Escaped characters, such as spaces, in the paths of `/proc/self/mountinfo`.
_ESCAPED = re.compile(r"\\([0-7]{3})")
# Guests choose owners and modes of files, so the host must not run programs or open devices of the mount.
_MOUNT_OPTIONS = "nosuid,nodev,noexec"


async def set_shares(hv: Hypervisor, guest_id: str, shares: list[Share]) -> GuestState:
    guest = hv.spec(guest_id)
    if guest.shares != shares:
        if await hv.power(guest_id) in ("running", "paused", "suspended"):
            raise StillRunning(guest_id)
        for share in shares:
            if share not in guest.shares:
                await asyncio.to_thread(_check, share)
        await unmount_all(hv, guest_id)
        hv.write_spec(structs.replace(guest, shares=shares))
    return await hv.state(guest_id)


def daemon() -> Path | None:
    """The virtiofsd of this machine, or None."""
    return next((path for path in _DAEMONS if os.access(path, os.X_OK)), None)


async def mount_all(hv: Hypervisor, guest: Guest) -> None:
    """Mount the guest's shares. Raises DriverError for a share that the host cannot reach."""
    for share in guest.shares:
        await asyncio.to_thread(_check, share)
        path = directory(hv, guest.id, share)
        if share.kind == "nfs" and str(path) not in mount_points():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            await programs.run("mount", "-t", "nfs", "-o", _MOUNT_OPTIONS, share.location, path)


async def unmount_all(hv: Hypervisor, guest_id: str) -> None:
    """Unmount the guest's shares, also those that it does not have any more."""
    root = _mount_root(hv, guest_id)
    if not root.is_dir():
        return
    for path in sorted(root.iterdir()):
        if str(path) in mount_points():
            await programs.run("umount", path)
        path.rmdir()
    root.rmdir()


def mount_points() -> set[str]:
    """All mount points of this process. Not by `stat`, which may wait for ever for an NFS server."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines}


def directory(hv: Hypervisor, guest_id: str, share: Share) -> Path:
    """The directory that the guest sees."""
    if share.kind == "nfs":
        return _mount_root(hv, guest_id) / share.share_id
    return Path(_split(share)[1])


def add_to_domain(domain: ET.Element, guest: Guest) -> None:
    """Make the guest's memory shared, because virtiofsd reads and writes it."""
    if not guest.shares:
        return
    backing = ET.SubElement(domain, "memoryBacking")
    ET.SubElement(backing, "source", type="memfd")
    ET.SubElement(backing, "access", mode="shared")


def elements(hv: Hypervisor, guest: Guest) -> Iterable[ET.Element]:
    for share in guest.shares:
        element = ET.Element("filesystem", type="mount", accessmode="passthrough")
        ET.SubElement(element, "driver", type="virtiofs")
        ET.SubElement(element, "source", dir=str(directory(hv, guest.id, share)))
        ET.SubElement(element, "target", dir=share.tag)
        yield element


def _check(share: Share) -> None:
    """Refuse a share that this host cannot present."""
    if daemon() is None:
        raise DriverError("virtiofsd is not installed on this host: it presents shares to guests")
    machine, path = _split(share)
    if share.kind == "nfs":
        if programs.find("mount.nfs") is None:
            raise DriverError("mount.nfs is not installed on this host: it mounts shares of the protocol NFS")
        return
    if machine != socket.gethostname():
        raise DriverError(
            f"share {share.share_id} is a directory of the machine {machine}, and this host is on the machine"
            f" {socket.gethostname()}: only hosts on the same machine can present it"
        )
    if not Path(path).is_dir():
        raise DriverError(f"the directory of share {share.share_id} is missing on this machine")


def _split(share: Share) -> tuple[str, str]:
    """Machine and path of the location. An IPv6 address is in brackets."""
    machine, colon, path = share.location.rpartition(":/")
    if not colon or not machine:
        raise DriverError(
            f"the export location of share {share.share_id}: expected `machine:/path`, found {share.location!r}"
        )
    return machine, f"/{path}"


def _mount_root(hv: Hypervisor, guest_id: str) -> Path:
    return hv.layout.shares / hv.layout.guest_directory(guest_id).name
