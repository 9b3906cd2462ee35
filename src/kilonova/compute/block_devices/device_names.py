"""Device names of disks, such as /dev/vdb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from string import ascii_lowercase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.compute.block_devices.requested_device import RequestedDevice
    from kilonova.compute.flavors.model import Flavor
    from kilonova.compute.servers.server import EmbeddedFlavor

ROOT = "/dev/vda"
BUSES = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd", "fdc": "fd", "xen": "xvd", "lxc": "vd"}
_TYPES = {"floppy": "fd"}


def with_dev_prefix(name: str | None) -> str | None:
    """`/dev/vdb` for `vdb` and for `/dev/vdb`."""
    return name if not name or name.startswith("/dev/") else f"/dev/{name}"


def next_free(taken: Iterable[str], bus: str | None = None, type: str | None = None) -> str:
    """The first free name with the prefix of this bus or type."""
    used = set(taken)
    prefix = _TYPES.get(type or "", BUSES.get(bus or "", "vd"))
    return next(name for name in _names(prefix) if name not in used)


def assign(devices: Iterable[RequestedDevice], taken: Iterable[str]) -> None:
    """Name the devices that have no name, in order."""
    used = set(taken)
    for device in devices:
        device.device_name = device.device_name or next_free(used, device.disk_bus, device.device_type)
        used.add(device.device_name)


def of_flavor(flavor: Flavor | EmbeddedFlavor, root: str | None) -> list[str]:
    """The names of the flavor's disks: root, ephemeral, swap."""
    names = [root or ROOT]
    for amount in (flavor.ephemeral, flavor.swap):
        if amount:
            names.append(next_free(names))
    return names


def _names(prefix: str) -> Iterator[str]:
    """Suffixes a to z, then aa, ab, …"""
    for length in count(1):
        for number in range(len(ascii_lowercase) ** length):
            letters = ""
            for _ in range(length):
                number, letter = divmod(number, len(ascii_lowercase))
                letters = ascii_lowercase[letter] + letters
            yield f"/dev/{prefix}{letters}"
