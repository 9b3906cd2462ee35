"""The disks of a guest that lie on the host: its root over an image, ephemeral ones, swap.

What has its name is whole: each file is made under another name first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import formats, programs
from kilonova.hosts.drivers.libvirt.layout import CONFIG_DRIVE, DISK, RESCUE, RESCUE_CONFIG_DRIVE, SWAP, Layout
from kilonova.hosts.messages import Flavor, Guest, LocalDisk

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.images import Base
    from kilonova.hosts.drivers.libvirt.rescue import Mode

GIB = 1 << 30
MIB = 1 << 20
_PART = ".part"
_SWAP_FORMAT = "swap"
PREFIXES = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd", "fdc": "fd"}
_BUSES = frozenset(PREFIXES) - {"fdc"}
_DEFAULT_FILESYSTEM = "ext4"
# How each file system is made, and how it gets its label.
_FILESYSTEMS: dict[str, tuple[str, ...]] = {
    "ext2": ("mkfs.ext2", "-q", "-F", "-L"),
    "ext3": ("mkfs.ext3", "-q", "-F", "-L"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-L"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-L"),
    "vfat": ("mkfs.vfat", "-n"),
}


@dataclass(frozen=True)
class DiskFile:
    """A disk as the domain has it.

    `name`: of the file in the guest's directory. `device`: disk, cdrom or floppy. `target`: such as vda. `boot`: its
    place in the order of booting, for those that are booted from. `tag`: what its owner calls it.
    """

    name: str
    device: str
    bus: str
    format: str
    target: str
    boot: int | None = None
    tag: str = ""


def files(guest: Guest, machine: str = "pc", rescue: Mode | None = None) -> list[DiskFile]:
    """What a guest's domain needs, in its order; with `rescue` that of a guest in rescue. Volumes stand elsewhere.

    A rescue that is not stable has the rescue disk take the root's place, and the guest's own disks move on.
    """
    moved = rescue is not None and not rescue.stable
    names = _Names() if moved else _Names(_taken(guest))
    found = [_rescue_disk(rescue, names)] if rescue is not None and moved else []
    if guest.image is not None:
        found.append(_root(guest, names, machine, boot=1 if rescue is None else None))
    bus = disk_bus(guest)
    for name, disk in local(guest):
        target = "" if moved else disk.device.removeprefix("/dev/")
        found.append(DiskFile(name, "disk", bus, "raw", names.take(bus, target), tag=disk.tag))
    if guest.config_drive:
        name = RESCUE_CONFIG_DRIVE if rescue is not None and rescue.config_drive else CONFIG_DRIVE
        bus = cdrom_bus(guest, machine)
        found.append(DiskFile(name, "cdrom", bus, "raw", names.take(bus)))
    if rescue is not None and not moved:
        found.append(_rescue_disk(rescue, names))
    return found


def disk_bus(guest: Guest) -> str:
    bus = guest.properties.get("hw_disk_bus", "")
    return bus if bus in _BUSES else "virtio"


def cdrom_bus(guest: Guest, machine: str = "pc") -> str:
    """Guests find a CD-ROM where their machine has one by nature."""
    bus = guest.properties.get("hw_cdrom_bus", "")
    natural = "sata" if "q35" in guest.properties.get("hw_machine_type", machine) else "ide"
    return bus if bus in _BUSES else natural


def _usual_filesystem(guest: Guest) -> str:
    """Of an ephemeral disk. Windows formats its own."""
    os_type = guest.properties.get("os_type", "")
    return "" if os_type.lower() == "windows" else _DEFAULT_FILESYSTEM


async def build(layout: Layout, guest: Guest, base: Base | None) -> None:
    """The disks of a new guest. What is there already is left as it is, what is there in part is made anew."""
    directory = layout.guest(guest.id)
    await asyncio.to_thread(_drop_parts, directory)
    if guest.image is not None:
        if base is None:
            raise DriverError(f"guest {guest.id} has no image that its root disk could be laid over")
        await build_root(directory / DISK, guest.flavor, base, cdrom=guest.image.disk_format == "iso")
    numbers = count()
    for name, disk in local(guest):
        if name == SWAP:
            await _made(directory / name, partial(_make_swap, size=disk.size_mb * MIB))
        else:
            kind = disk.format or _usual_filesystem(guest)
            made = partial(_make_ephemeral, disk=disk, kind=kind, label=f"ephemeral{next(numbers)}")
            await _made(directory / name, made)


async def build_root(path: Path, flavor: Flavor, base: Base, cdrom: bool = False) -> None:
    """A disk of the flavor's size over the image; without a size in the flavor, and of a CD, as large as the image."""
    size = flavor.disk_gb * GIB if flavor.disk_gb and not cdrom else base.virtual_size
    if flavor.disk_gb and base.virtual_size > flavor.disk_gb * GIB:
        raise DriverError(
            f"the image is a disk of {base.virtual_size} bytes, but the flavor gives {flavor.disk_gb * GIB}"
        )
    found = formats.overlay(path)
    if found is not None and found.backing in ("", str(base.path)):
        return
    await overlay(path, base, size)


async def overlay(path: Path, base: Base, size: int) -> None:
    path.unlink(missing_ok=True)
    await _made(path, lambda part: programs.create_overlay(part, size, base.path, base.format))


async def grow_root(path: Path, flavor: Flavor) -> None:
    """Have a root disk that came from another flavor be as large as this one says; never smaller."""
    found = formats.overlay(path)
    if found is None:
        raise DriverError(f"{path} is not a disk that could grow")
    wanted = flavor.disk_gb * GIB
    if not wanted or wanted == found.size:
        return
    if wanted < found.size:
        raise DriverError(f"the disk has {found.size} bytes, but the flavor gives {wanted}: disks do not shrink")
    await programs.grow(path, "qcow2", wanted)


def base_of(path: Path) -> Path | None:
    """The image that a disk is laid over."""
    found = formats.overlay(path)
    return Path(found.backing) if found and found.backing else None


def bases(layout: Layout) -> set[Path]:
    """The images that any disk below lies over, of guests and in slots."""
    found = set()
    for directory in (entry for entry in layout.root.glob("*") if entry != layout.base and entry.is_dir()):
        for path in directory.glob(f"{DISK}*"):
            base = base_of(path)
            if base is not None:
                found.add(base)
    return found


# What a guest has


def local(guest: Guest) -> list[tuple[str, LocalDisk]]:
    """Ephemeral disks and swap, with the names of their files: as asked for, or as the flavor gives them."""
    asked = guest.local_disks
    if asked is None:
        flavor = guest.flavor
        asked = [LocalDisk(size_mb=flavor.ephemeral_gb * 1024)] if flavor.ephemeral_gb else []
        asked += [LocalDisk(size_mb=flavor.swap_mb, format=_SWAP_FORMAT)] if flavor.swap_mb else []
    numbers = count()
    return [
        (SWAP if disk.format == _SWAP_FORMAT else f"{DISK}.eph{next(numbers)}", disk) for disk in asked if disk.size_mb
    ]


def _root(guest: Guest, names: _Names, machine: str, boot: int | None) -> DiskFile:
    if guest.image is not None and guest.image.disk_format == "iso":
        bus = cdrom_bus(guest, machine)
        return DiskFile(DISK, "cdrom", bus, "qcow2", names.take(bus), boot)
    bus = disk_bus(guest)
    return DiskFile(DISK, "disk", bus, "qcow2", names.take(bus), boot)


def _rescue_disk(rescue: Mode, names: _Names) -> DiskFile:
    return DiskFile(RESCUE, rescue.device, rescue.bus, "qcow2", names.take(rescue.bus), boot=1)


def _taken(guest: Guest) -> list[str]:
    devices = [disk.device for disk in guest.disks] + [disk.device for disk in guest.local_disks or []]
    return [name.removeprefix("/dev/") for name in devices if name]


class _Names:
    """Names of devices that are still free."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def take(self, bus: str, wanted: str = "") -> str:
        prefix = PREFIXES[bus]
        free = (one for one in device_names(prefix) if one not in self._taken)
        name = wanted if wanted.startswith(prefix) else next(free)
        self._taken.add(name)
        return name


def device_names(prefix: str) -> Iterator[str]:
    """a to z, then aa, ab, …"""
    for length in count(1):
        for number in range(len(ascii_lowercase) ** length):
            letters = ""
            for _ in range(length):
                number, letter = divmod(number, len(ascii_lowercase))
                letters = ascii_lowercase[letter] + letters
            yield prefix + letters


# How files are made


async def _made(path: Path, make: Callable[[Path], Awaitable[None]]) -> None:
    if path.exists():
        return
    part = path.with_name(path.name + _PART)
    part.unlink(missing_ok=True)
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    try:
        await make(part)
        part.chmod(0o600)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


async def _make_swap(path: Path, size: int) -> None:
    _make_empty(path, size)
    await programs.run("mkswap", path)


async def _make_ephemeral(path: Path, disk: LocalDisk, kind: str, label: str) -> None:
    """Empty where the host cannot make the usual file system; one that was asked for has to be made."""
    _make_empty(path, disk.size_mb * MIB)
    if not kind:
        return
    if kind not in _FILESYSTEMS:
        raise DriverError(f"this host makes no {kind} on disks, only {', '.join(_FILESYSTEMS)}")
    program, *options = _FILESYSTEMS[kind]
    if disk.format or programs.find(program):
        await programs.run(program, *options, label, path)


def _make_empty(path: Path, size: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.truncate(size)


def _drop_parts(directory: Path) -> None:
    for part in directory.glob(f"{DISK}*{_PART}"):
        part.unlink(missing_ok=True)
