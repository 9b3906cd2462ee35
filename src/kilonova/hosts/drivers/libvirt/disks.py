"""Builds and resizes the local disks of guests: root disk over an image, ephemeral disks, swap.

Files are renamed into place, so a file with its final name is complete.
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
from kilonova.hosts.drivers.libvirt import formats, programs, qemu_img
from kilonova.hosts.drivers.libvirt.layout import CONFIG_DRIVE, DISK, RESCUE_CONFIG_DRIVE, RESCUE_DISK, SWAP, Layout
from kilonova.hosts.messages import Flavor, Guest, LocalDisk

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.images import BaseImage
    from kilonova.hosts.drivers.libvirt.rescue import Mode

GIB = 1 << 30
MIB = 1 << 20
_PART = ".part"
_SWAP_FORMAT = "swap"
PREFIXES = {"virtio": "vd", "scsi": "sd", "sata": "sd", "usb": "sd", "ide": "hd", "fdc": "fd"}
_BUSES = frozenset(PREFIXES) - {"fdc"}
_DEFAULT_FILESYSTEM = "ext4"
# The command for each file system; a label follows.
_FILESYSTEMS: dict[str, tuple[str, ...]] = {
    "ext2": ("mkfs.ext2", "-q", "-F", "-L"),
    "ext3": ("mkfs.ext3", "-q", "-F", "-L"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-L"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-L"),
    "vfat": ("mkfs.vfat", "-n"),
}


@dataclass(frozen=True)
class DiskFile:
    """A local disk of the domain.

    `name`: of the file in the guest's directory. `device`: disk, cdrom or floppy. `target`: such as vda. `boot`:
    position in the boot order. `tag`: the device tag.
    """

    name: str
    device: str
    bus: str
    format: str
    target: str
    boot: int | None = None
    tag: str = ""


def disk_files(guest: Guest, machine: str = "pc", rescue: Mode | None = None) -> list[DiskFile]:
    """The local disks of the guest's domain in order, with the rescue disk if `rescue` is given.

    In a rescue that is not stable the rescue disk replaces the root disk, and the other disks get new device names.
    """
    renamed = rescue is not None and not rescue.stable
    names = _TargetNames() if renamed else _TargetNames(_used_targets(guest))
    found = [_rescue_disk(rescue, names)] if rescue is not None and renamed else []
    if guest.image is not None:
        found.append(_root(guest, names, machine, boot=1 if rescue is None else None))
    bus = disk_bus(guest)
    for name, disk in local_disks(guest):
        target = "" if renamed else disk.device.removeprefix("/dev/")
        found.append(DiskFile(name, "disk", bus, "raw", names.take(bus, target), tag=disk.tag))
    if guest.config_drive:
        name = RESCUE_CONFIG_DRIVE if rescue is not None and rescue.config_drive else CONFIG_DRIVE
        bus = cdrom_bus(guest, machine)
        found.append(DiskFile(name, "cdrom", bus, "raw", names.take(bus)))
    if rescue is not None and not renamed:
        found.append(_rescue_disk(rescue, names))
    return found


def disk_bus(guest: Guest) -> str:
    bus = guest.properties.get("hw_disk_bus", "")
    return bus if bus in _BUSES else "virtio"


def cdrom_bus(guest: Guest, machine: str = "pc") -> str:
    """The requested bus, or the machine type's default bus for CD-ROMs."""
    bus = guest.properties.get("hw_cdrom_bus", "")
    default = "sata" if "q35" in guest.properties.get("hw_machine_type", machine) else "ide"
    return bus if bus in _BUSES else default


def _default_filesystem(guest: Guest) -> str:
    """The file system of ephemeral disks; none for Windows, which formats them itself."""
    os_type = guest.properties.get("os_type", "")
    return "" if os_type.lower() == "windows" else _DEFAULT_FILESYSTEM


async def build(layout: Layout, guest: Guest, base: BaseImage | None) -> None:
    """Build the guest's local disks. Existing disks are kept, partial files are rebuilt."""
    directory = layout.guest_directory(guest.id)
    await asyncio.to_thread(_remove_partial_files, directory)
    if guest.image is not None:
        if base is None:
            raise DriverError(f"guest {guest.id} has no base image for its root disk")
        await build_root(directory / DISK, guest.flavor, base, cdrom=guest.image.disk_format == "iso")
    numbers = count()
    for name, disk in local_disks(guest):
        if name == SWAP:
            await _create_file(directory / name, partial(_make_swap, size=disk.size_mb * MIB))
        else:
            kind = disk.format or _default_filesystem(guest)
            make = partial(_make_ephemeral, disk=disk, kind=kind, label=f"ephemeral{next(numbers)}")
            await _create_file(directory / name, make)


async def build_root(path: Path, flavor: Flavor, base: BaseImage, cdrom: bool = False) -> None:
    """Build an overlay of the flavor's size; a CD-ROM, or a disk without a size in the flavor, has the image's size."""
    size = flavor.disk_gb * GIB if flavor.disk_gb and not cdrom else base.virtual_size
    if flavor.disk_gb and base.virtual_size > flavor.disk_gb * GIB:
        raise DriverError(
            f"the image's virtual size is {base.virtual_size} bytes, but the flavor's disk has {flavor.disk_gb * GIB}"
        )
    found = formats.read_overlay(path)
    if found is not None and found.backing in ("", str(base.path)):
        return
    await create_overlay(path, base, size)


async def create_overlay(path: Path, base: BaseImage, size: int) -> None:
    path.unlink(missing_ok=True)
    await _create_file(path, lambda part: qemu_img.create_overlay(part, size, base.path, base.format))


async def grow_root(path: Path, flavor: Flavor) -> None:
    """Grow a root disk to the flavor's size. Raises DriverError if the disk is larger."""
    found = formats.read_overlay(path)
    if found is None:
        raise DriverError(f"{path} is not a valid qcow2 and cannot grow")
    wanted = flavor.disk_gb * GIB
    if not wanted or wanted == found.size:
        return
    if wanted < found.size:
        raise DriverError(f"the root disk has {found.size} bytes and cannot shrink to the flavor's {wanted}")
    await qemu_img.resize(path, "qcow2", wanted)


def base_image(path: Path) -> Path | None:
    """The backing file of a disk."""
    found = formats.read_overlay(path)
    return Path(found.backing) if found and found.backing else None


def base_images_in_use(layout: Layout) -> set[Path]:
    """The base images of all disks of guests and in slots."""
    found = set()
    for directory in (entry for entry in layout.root.glob("*") if entry != layout.base and entry.is_dir()):
        for path in directory.glob(f"{DISK}*"):
            base = base_image(path)
            if base is not None:
                found.add(base)
    return found


# Disks of a guest


def local_disks(guest: Guest) -> list[tuple[str, LocalDisk]]:
    """Ephemeral disks and swap with their file names, as requested or else as in the flavor."""
    requested = guest.local_disks
    if requested is None:
        flavor = guest.flavor
        requested = [LocalDisk(size_mb=flavor.ephemeral_gb * 1024)] if flavor.ephemeral_gb else []
        requested += [LocalDisk(size_mb=flavor.swap_mb, format=_SWAP_FORMAT)] if flavor.swap_mb else []
    numbers = count()
    return [
        (SWAP if disk.format == _SWAP_FORMAT else f"{DISK}.eph{next(numbers)}", disk)
        for disk in requested
        if disk.size_mb
    ]


def _root(guest: Guest, names: _TargetNames, machine: str, boot: int | None) -> DiskFile:
    if guest.image is not None and guest.image.disk_format == "iso":
        bus = cdrom_bus(guest, machine)
        return DiskFile(DISK, "cdrom", bus, "qcow2", names.take(bus), boot)
    bus = disk_bus(guest)
    return DiskFile(DISK, "disk", bus, "qcow2", names.take(bus), boot)


def _rescue_disk(rescue: Mode, names: _TargetNames) -> DiskFile:
    return DiskFile(RESCUE_DISK, rescue.device, rescue.bus, "qcow2", names.take(rescue.bus), boot=1)


def _used_targets(guest: Guest) -> list[str]:
    devices = [disk.device for disk in guest.disks] + [disk.device for disk in guest.local_disks or []]
    return [name.removeprefix("/dev/") for name in devices if name]


class _TargetNames:
    """Assigns unused device names."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._used = set(taken)

    def take(self, bus: str, wanted: str = "") -> str:
        prefix = PREFIXES[bus]
        free = (name for name in device_names(prefix) if name not in self._used)
        name = wanted if wanted.startswith(prefix) else next(free)
        self._used.add(name)
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


# Files


async def _create_file(path: Path, make: Callable[[Path], Awaitable[None]]) -> None:
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
    """Format the disk. A missing mkfs program leaves the disk empty, unless the file system was requested."""
    _make_empty(path, disk.size_mb * MIB)
    if not kind:
        return
    if kind not in _FILESYSTEMS:
        raise DriverError(f"file system {kind} is not supported on this host, only {', '.join(_FILESYSTEMS)}")
    program, *options = _FILESYSTEMS[kind]
    if disk.format or programs.find(program):
        await programs.run(program, *options, label, path)


def _make_empty(path: Path, size: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.truncate(size)


def _remove_partial_files(directory: Path) -> None:
    for part in directory.glob(f"{DISK}*{_PART}"):
        part.unlink(missing_ok=True)
