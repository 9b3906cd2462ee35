"""What the content of an image is, by its own bytes, and whether it is safe to give to QEMU.

An image is somebody's upload. A disk that names other files of the host would show them to the guest, so nothing is
believed that its header does not say, and every header that could lead elsewhere is refused.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kilonova.hosts.drivers.base import DriverError

SECTOR = 512
_HEAD = 1 << 16

# Disks that are laid under guests' disks as they are, and those that become raw first.
KEPT = frozenset({"raw", "qcow2", "iso"})
CONVERTED = {"vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}
SUPPORTED = KEPT | CONVERTED.keys()

# Where each format has its mark, and the mark. What QEMU could take for a disk of a format stands here, also where we
# cannot use it: nothing that bears such a mark passes as raw.
_MARKS: tuple[tuple[str, int, bytes], ...] = (
    ("qcow2", 0, b"QFI\xfb"),
    ("qed", 0, b"QED\0"),
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"COWD"),
    ("vmdk", 0, b"# Disk DescriptorFile"),
    ("vdi", 0x40, b"\x7f\x10\xda\xbe"),
    ("vhdx", 0, b"vhdxfile"),
    ("vhd", 0, b"conectix"),
    ("luks", 0, b"LUKS\xba\xbe"),
    ("ploop", 0, b"WithoutFreeSpace"),
    ("ploop", 0, b"WithouFreSpacExt"),
    ("bochs", 0, b"Bochs Virtual HD Image"),
    ("cloop", 0, b"#!/bin/sh\n#V2.0 Format"),
)
_ISO_MARKS = tuple((0x8001 + 0x800 * number, b"CD001") for number in range(4))

_QCOW2_DIRTY, _QCOW2_CORRUPT, _QCOW2_DATA_FILE, _QCOW2_COMPRESSION, _QCOW2_EXTENDED = 1, 2, 4, 8, 16
_QCOW2_HARMLESS = _QCOW2_DIRTY | _QCOW2_COMPRESSION | _QCOW2_EXTENDED
_QCOW2_END, _QCOW2_BACKING_FORMAT = 0, 0xE2792ACA
_QCOW2_DATA_FILE_NAME, _QCOW2_ENCRYPTION = 0x44415441, 0x0537BE77

_VMDK_WHOLE = ("monolithicSparse", "streamOptimized")
_VMDK_MOST_DESCRIPTOR = 1 << 20
_VMDK_AT_END = 0xFFFFFFFFFFFFFFFF
_VMDK_KIND = re.compile(r'^\s*createType\s*=\s*"([^"]*)"\s*$', re.MULTILINE | re.IGNORECASE)
_VMDK_PARENT = re.compile(r"parentFileNameHint", re.IGNORECASE)
_VMDK_EXTENT = re.compile(r"^\s*(?:RW|RDONLY|NOACCESS)\s+\S+\s+(\S+)\s*(.*)$", re.MULTILINE | re.IGNORECASE)


class Unsafe(DriverError):
    """The content is not what it is said to be, or would lead elsewhere."""


@dataclass(frozen=True)
class Found:
    """`virtual_size`: in bytes, as a guest sees the disk; None where only qemu-img can tell."""

    format: str
    virtual_size: int | None


def check_names(disk_format: str, container_format: str) -> None:
    """Before anything is fetched: whether such an image can be used at all."""
    if container_format not in ("bare", ""):
        raise Unsafe(f"images in a container of format {container_format} cannot be used on this host")
    if disk_format not in SUPPORTED:
        raise Unsafe(f"images of disk format {disk_format} cannot be used on this host")


def check(path: Path, disk_format: str) -> Found:
    """Raises Unsafe unless the file is what `disk_format` says, all of it."""
    with path.open("rb") as file:
        content = _Content(file)
        found = detect(content)
        if disk_format in ("raw", "iso"):
            # A hybrid has the marks of both: as bytes of a disk it is as good as any.
            if found not in ("raw", "iso"):
                raise Unsafe(f"the image is {found}, although its disk format is said to be {disk_format}")
            if disk_format == "iso" and found != "iso":
                raise Unsafe("the image is not iso, as its disk format says")
            return Found(disk_format, content.size)
        if disk_format == "vhd" and _is_fixed_vhd(content):
            return Found("vhd", None)
        if found != disk_format:
            raise Unsafe(f"the image is not {disk_format}, as its disk format says: it looks like {found}")
        if disk_format == "qcow2":
            return Found("qcow2", _qcow2(content).size)
        {"vmdk": _check_vmdk, "vhd": _check_vhd, "vdi": _check_vdi, "vhdx": _check_vhdx}[disk_format](content)
        return Found(disk_format, None)


def detect(content: _Content) -> str:
    """The format whose mark the content bears; raw if it bears none."""
    for name, at, mark in _MARKS:
        if content.read(at, len(mark)) == mark:
            return name
    return "iso" if any(content.read(at, len(mark)) == mark for at, mark in _ISO_MARKS) else "raw"


class _Content:
    """A file of which no part is taken for granted."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._head = file.read(_HEAD)

    def read(self, at: int, length: int) -> bytes:
        """Shorter where the file ends."""
        if at < 0:
            return b""
        if at + length <= len(self._head):
            return self._head[at : at + length]
        if at >= self.size:
            return b""
        self._file.seek(at)
        return self._file.read(length)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        data = self.read(at, struct.calcsize(layout))
        try:
            return struct.unpack(layout, data)
        except struct.error:
            raise Unsafe("the image ends within its header") from None


@dataclass(frozen=True)
class Qcow2:
    """What the header of a qcow2 says: its size, and which file of which format it is laid over."""

    size: int
    backing: str = ""
    backing_format: str = ""


def overlay(path: Path) -> Qcow2 | None:
    """Of a disk of our own, what it is laid over; None if it is no whole qcow2."""
    try:
        with path.open("rb") as file:
            content = _Content(file)
            if content.read(0, 4) != b"QFI\xfb":
                return None
            version, at, length, cluster_bits, size = content.unpack(">IQIIQ", 4)
            if not at:
                return Qcow2(size)
            start = content.unpack(">I", 100)[0] if version > 2 else 72
            kinds = dict(_extensions(content, start, min(at, 1 << min(cluster_bits, 21))))
            return Qcow2(size, content.read(at, length).decode(), kinds.get(_QCOW2_BACKING_FORMAT, b"").decode())
    except (FileNotFoundError, Unsafe, UnicodeDecodeError):
        return None


def _qcow2(content: _Content) -> Qcow2:
    version, backing, _, cluster_bits, size, encryption = content.unpack(">IQIIQI", 4)
    if version not in (2, 3):
        raise Unsafe(f"qcow2 of version {version} cannot be used")
    if backing:
        raise Unsafe("a qcow2 with a backing file cannot be used")
    if encryption:
        raise Unsafe("an encrypted qcow2 cannot be used")
    if not 9 <= cluster_bits <= 21:
        raise Unsafe("the header of the qcow2 is malformed: impossible size of clusters")
    if version == 2:
        _check_extensions(content, 72, 1 << cluster_bits)
        return Qcow2(size)
    (incompatible,) = content.unpack(">Q", 72)
    if incompatible & _QCOW2_DATA_FILE:
        raise Unsafe("a qcow2 with its data in another file cannot be used")
    if incompatible & _QCOW2_CORRUPT:
        raise Unsafe("the qcow2 is marked as corrupt")
    if incompatible & ~_QCOW2_HARMLESS:
        raise Unsafe(f"the qcow2 needs unknown features: {incompatible & ~_QCOW2_HARMLESS:#x}")
    (length,) = content.unpack(">I", 100)
    if length < 104 or length % 8 or length > 1 << cluster_bits:
        raise Unsafe("the header of the qcow2 is malformed: impossible length")
    _check_extensions(content, length, 1 << cluster_bits)
    return Qcow2(size)


def _check_extensions(content: _Content, at: int, end: int) -> None:
    for kind, _ in _extensions(content, at, end):
        if kind == _QCOW2_DATA_FILE_NAME:
            raise Unsafe("a qcow2 that names another file for its data cannot be used")
        if kind == _QCOW2_ENCRYPTION:
            raise Unsafe("an encrypted qcow2 cannot be used")


def _extensions(content: _Content, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at + 8 <= end:
        kind, length = content.unpack(">II", at)
        if kind == _QCOW2_END:
            return
        if at + 8 + length > end:
            raise Unsafe("the header of the qcow2 is malformed: an extension leaves it")
        yield kind, content.read(at + 8, length)
        at += 8 + (length + 7) // 8 * 8


def _check_vmdk(content: _Content) -> None:
    """Only those that are all in one file, of which the sparse header says everything."""
    if content.read(0, 4) != b"KDMV":
        raise Unsafe("a vmdk that refers to other files cannot be used")
    _check_vmdk_header(content, 0)
    (grains,) = content.unpack("<Q", 56)
    if grains == _VMDK_AT_END:
        at = content.size - 2 * SECTOR
        if content.read(at, 4) != b"KDMV":
            raise Unsafe("the vmdk ends without the second header that the first one tells of")
        _check_vmdk_header(content, at)


def _check_vmdk_header(content: _Content, at: int) -> None:
    capacity, _, place, length = content.unpack("<QQQQ", at + 12)
    if not capacity:
        # Then the descriptor says where the content is.
        raise Unsafe("a vmdk that refers to other files cannot be used")
    if not place or not length or length * SECTOR > _VMDK_MOST_DESCRIPTOR:
        if at:
            return  # the second header needs no descriptor: the first one has it
        raise Unsafe("a vmdk without a descriptor cannot be used")
    text = content.read(place * SECTOR, length * SECTOR).split(b"\0", 1)[0].decode("latin-1")
    kinds = _VMDK_KIND.findall(text)
    if len(kinds) != 1 or kinds[0] not in _VMDK_WHOLE:
        raise Unsafe(
            f"a vmdk of type {kinds[0] if kinds else 'unknown'} cannot be used, only {' or '.join(_VMDK_WHOLE)}"
        )
    extents = _VMDK_EXTENT.findall(text)
    if _VMDK_PARENT.search(text) or len(extents) != 1 or extents[0][0].upper() != "SPARSE" or "/" in extents[0][1]:
        raise Unsafe("a vmdk that refers to other files cannot be used")


def _is_fixed_vhd(content: _Content) -> bool:
    """Bytes of a disk as they are, with the mark after them."""
    end = content.size - SECTOR
    return (
        detect(content) in ("raw", "iso")
        and content.read(end, 8) == b"conectix"
        and content.unpack(">I", end + 60) == (2,)
    )


def _check_vhd(content: _Content) -> None:
    (kind,) = content.unpack(">I", 60)
    if kind != 3:
        raise Unsafe("a vhd that is laid over another one cannot be used")


def _check_vdi(content: _Content) -> None:
    (kind,) = content.unpack("<I", 0x4C)
    if kind not in (1, 2):
        raise Unsafe("a vdi that is laid over another one cannot be used")


def _check_vhdx(content: _Content) -> None:
    """A parent is named by one flag of its metadata, which QEMU refuses by itself; nothing else leads elsewhere."""
    if content.size < 1 << 20:
        raise Unsafe("the image ends within its header")
