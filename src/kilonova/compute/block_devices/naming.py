"""Names of devices: what a guest is expected to call its disks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from string import ascii_lowercase

from kilonova.store import Row

ROOT = "/dev/vda"
BUSES = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd", "fdc": "fd", "xen": "xvd", "lxc": "vd"}
_TYPES = {"floppy": "fd"}


def full(name: str | None) -> str | None:
    """`vdb` as well as `/dev/vdb`."""
    return name if not name or name.startswith("/dev/") else f"/dev/{name}"


def free(taken: Iterable[str], bus: str | None = None, type: str | None = None) -> str:
    """The first name that nothing has yet, of the kind that disks on this bus get."""
    used = set(taken)
    prefix = _TYPES.get(type or "", BUSES.get(bus or "", "vd"))
    return next(name for name in _names(prefix) if name not in used)


def assign(devices: Iterable[Row], taken: Iterable[str]) -> None:
    """Name those that have none, after one another."""
    used = set(taken)
    for device in devices:
        if not device["device_name"]:
            device["device_name"] = free(used, device["disk_bus"], device["device_type"])
        used.add(device["device_name"])


def of_flavor(flavor: Row, root: str | None) -> list[str]:
    """The names of what a flavor gives by itself: the root disk, the ephemeral disk, swap."""
    names = [root or ROOT]
    for amount in (flavor["ephemeral"], flavor["swap"]):
        if amount:
            names.append(free(names))
    return names


def _names(prefix: str) -> Iterator[str]:
    """a to z, then aa, ab, …"""
    for length in count(1):
        for number in range(len(ascii_lowercase) ** length):
            letters = ""
            for _ in range(length):
                number, letter = divmod(number, len(ascii_lowercase))
                letters = ascii_lowercase[letter] + letters
            yield f"/dev/{prefix}{letters}"
