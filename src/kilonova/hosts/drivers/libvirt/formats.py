"""Detects the format of an image from its bytes and checks that QEMU can use it safely.

Images are untrusted uploads. An image that refers to other files of the host would expose them to the guest. So the
declared format must match the header, and every header that can refer to other files is refused.
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
_HEADER_BYTES = 1 << 16

# Formats that are used as base images unchanged, and those that are converted to raw (with qemu-img's names).
KEPT = frozenset({"raw", "qcow2", "iso"})
CONVERTED = {"vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}
SUPPORTED = KEPT | CONVERTED.keys()

# Offset and bytes of each format's signature. Includes unsupported formats that QEMU recognizes, so that such an image
# does not pass as raw.
_SIGNATURES: tuple[tuple[str, int, bytes], ...] = (
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
_ISO_SIGNATURES = tuple((0x8001 + 0x800 * number, b"CD001") for number in range(4))

_QCOW2_DIRTY, _QCOW2_CORRUPT, _QCOW2_DATA_FILE, _QCOW2_COMPRESSION, _QCOW2_EXTENDED = 1, 2, 4, 8, 16
_QCOW2_HARMLESS = _QCOW2_DIRTY | _QCOW2_COMPRESSION | _QCOW2_EXTENDED
_QCOW2_END, _QCOW2_BACKING_FORMAT = 0, 0xE2792ACA
_QCOW2_DATA_FILE_NAME, _QCOW2_ENCRYPTION = 0x44415441, 0x0537BE77

_VMDK_SINGLE_FILE_TYPES = ("monolithicSparse", "streamOptimized")
_VMDK_MAX_DESCRIPTOR_BYTES = 1 << 16
_VMDK_AT_END = 0xFFFFFFFFFFFFFFFF
_VMDK_KIND = re.compile(r'^createType\s*=\s*"([^"]*)"\s*$', re.MULTILINE | re.IGNORECASE)
_VMDK_PARENT = re.compile(r"parentFileNameHint", re.IGNORECASE)
_VMDK_EXTENT = re.compile(r"^(?:RW|RDONLY|NOACCESS)\s+\S+\s+(\S+)\s*(.*)$", re.MULTILINE | re.IGNORECASE)


class UnsafeImage(DriverError):
    """The content does not have the declared format, is malformed, or refers to other files."""


@dataclass(frozen=True)
class ImageFormat:
    """`virtual_size`: bytes of the disk in the guest; None if only qemu-img can determine it."""

    format: str
    virtual_size: int | None


def check_formats(disk_format: str, container_format: str) -> None:
    """Check the declared formats before the image is fetched."""
    if container_format not in ("bare", ""):
        raise UnsafeImage(f"container format {container_format} is not supported on this host")
    if disk_format not in SUPPORTED:
        raise UnsafeImage(f"disk format {disk_format} is not supported on this host")


def check_content(path: Path, disk_format: str) -> ImageFormat:
    """Raises UnsafeImage unless the file is a safe image of format `disk_format`."""
    with path.open("rb") as file:
        content = _Content(file)
        found = detect(content)
        if disk_format in ("raw", "iso"):
            # A hybrid ISO may be declared as raw: its bytes are a valid disk.
            if found not in ("raw", "iso") or (disk_format == "iso" and found != "iso"):
                raise UnsafeImage(f"the declared disk format is {disk_format}, but the image is {found}")
            return ImageFormat(disk_format, content.size)
        if disk_format == "vhd" and _is_fixed_vhd(content):
            return ImageFormat("vhd", None)
        if found != disk_format:
            raise UnsafeImage(f"the declared disk format is {disk_format}, but the image is {found}")
        if disk_format == "qcow2":
            return ImageFormat("qcow2", _qcow2(content).size)
        {"vmdk": _check_vmdk, "vhd": _check_vhd, "vdi": _check_vdi, "vhdx": _check_vhdx}[disk_format](content)
        return ImageFormat(disk_format, None)


def detect(content: _Content) -> str:
    """The format whose signature the content has; raw without a signature."""
    for name, offset, signature in _SIGNATURES:
        if content.read(offset, len(signature)) == signature:
            return name
    return "iso" if any(content.read(offset, len(text)) == text for offset, text in _ISO_SIGNATURES) else "raw"


class _Content:
    """Reads an untrusted file, which may end anywhere."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._head = file.read(_HEADER_BYTES)

    def read(self, offset: int, length: int) -> bytes:
        """Shorter where the file ends."""
        if offset < 0:
            return b""
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        if offset >= self.size:
            return b""
        self._file.seek(offset)
        return self._file.read(length)

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        data = self.read(offset, struct.calcsize(layout))
        try:
            return struct.unpack(layout, data)
        except struct.error:
            raise UnsafeImage("the image ends within its header") from None


@dataclass(frozen=True)
class Qcow2:
    """Virtual size and backing file from the header of a qcow2."""

    size: int
    backing: str = ""
    backing_format: str = ""


def read_overlay(path: Path) -> Qcow2 | None:
    """Read the header of one of the driver's own disks; None if it is not a valid qcow2."""
    try:
        with path.open("rb") as file:
            content = _Content(file)
            if content.read(0, 4) != b"QFI\xfb":
                return None
            version, offset, length, cluster_bits, size = content.unpack(">IQIIQ", 4)
            if not offset:
                return Qcow2(size)
            start = content.unpack(">I", 100)[0] if version > 2 else 72
            kinds = dict(_extensions(content, start, min(offset, 1 << min(cluster_bits, 21))))
            return Qcow2(size, content.read(offset, length).decode(), kinds.get(_QCOW2_BACKING_FORMAT, b"").decode())
    except (FileNotFoundError, UnsafeImage, UnicodeDecodeError):
        return None


def _qcow2(content: _Content) -> Qcow2:
    version, backing, _, cluster_bits, size, encryption = content.unpack(">IQIIQI", 4)
    if version not in (2, 3):
        raise UnsafeImage(f"qcow2 version {version} is not supported")
    if backing:
        raise UnsafeImage("a qcow2 with a backing file is not supported")
    if encryption:
        raise UnsafeImage("an encrypted qcow2 is not supported")
    if not 9 <= cluster_bits <= 21:
        raise UnsafeImage("the qcow2 header is malformed: invalid cluster size")
    if version == 2:
        _check_extensions(content, 72, 1 << cluster_bits)
        return Qcow2(size)
    (incompatible,) = content.unpack(">Q", 72)
    if incompatible & _QCOW2_DATA_FILE:
        raise UnsafeImage("a qcow2 with an external data file is not supported")
    if incompatible & _QCOW2_CORRUPT:
        raise UnsafeImage("the qcow2 is marked as corrupt")
    if incompatible & ~_QCOW2_HARMLESS:
        raise UnsafeImage(f"the qcow2 requires unknown features: {incompatible & ~_QCOW2_HARMLESS:#x}")
    (length,) = content.unpack(">I", 100)
    if length < 104 or length % 8 or length > 1 << cluster_bits:
        raise UnsafeImage("the qcow2 header is malformed: invalid length")
    _check_extensions(content, length, 1 << cluster_bits)
    return Qcow2(size)


def _check_extensions(content: _Content, offset: int, end: int) -> None:
    for kind, _ in _extensions(content, offset, end):
        if kind == _QCOW2_DATA_FILE_NAME:
            raise UnsafeImage("a qcow2 with an external data file is not supported")
        if kind == _QCOW2_ENCRYPTION:
            raise UnsafeImage("an encrypted qcow2 is not supported")


def _extensions(content: _Content, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    while offset + 8 <= end:
        kind, length = content.unpack(">II", offset)
        if kind == _QCOW2_END:
            return
        if offset + 8 + length > end:
            raise UnsafeImage("the qcow2 header is malformed: an extension exceeds it")
        yield kind, content.read(offset + 8, length)
        offset += 8 + (length + 7) // 8 * 8


def _check_vmdk(content: _Content) -> None:
    """Accept only a vmdk in a single file with a sparse header."""
    if content.read(0, 4) != b"KDMV":
        raise UnsafeImage("a vmdk that refers to other files is not supported")
    _check_vmdk_header(content, 0)
    (grains,) = content.unpack("<Q", 56)
    if grains == _VMDK_AT_END:
        offset = content.size - 2 * SECTOR
        if content.read(offset, 4) != b"KDMV":
            raise UnsafeImage("the vmdk lacks the second header that its first header announces")
        _check_vmdk_header(content, offset)


def _check_vmdk_header(content: _Content, offset: int) -> None:
    capacity, _, descriptor, length = content.unpack("<QQQQ", offset + 12)
    if not capacity:
        # Without a capacity the descriptor refers to the data.
        raise UnsafeImage("a vmdk that refers to other files is not supported")
    if not descriptor or not length or length * SECTOR > _VMDK_MAX_DESCRIPTOR_BYTES:
        if offset:
            return  # only the first header needs a descriptor
        raise UnsafeImage("a vmdk without a descriptor is not supported")
    text = _trimmed_lines(content.read(descriptor * SECTOR, length * SECTOR).split(b"\0", 1)[0].decode("latin-1"))
    kinds = _VMDK_KIND.findall(text)
    if len(kinds) != 1 or kinds[0] not in _VMDK_SINGLE_FILE_TYPES:
        types = " or ".join(_VMDK_SINGLE_FILE_TYPES)
        raise UnsafeImage(f"vmdk type {kinds[0] if kinds else 'unknown'} is not supported, only {types}")
    extents = _VMDK_EXTENT.findall(text)
    if _VMDK_PARENT.search(text) or len(extents) != 1 or extents[0][0].upper() != "SPARSE" or "/" in extents[0][1]:
        raise UnsafeImage("a vmdk that refers to other files is not supported")


def _trimmed_lines(text: str) -> str:
    """The text without blank lines and without spaces around lines, so that patterns take linear time."""
    return "\n".join(trimmed for line in text.split("\n") if (trimmed := line.strip()))


def _is_fixed_vhd(content: _Content) -> bool:
    """A fixed VHD is a raw disk followed by a footer."""
    end = content.size - SECTOR
    return (
        detect(content) in ("raw", "iso")
        and content.read(end, 8) == b"conectix"
        and content.unpack(">I", end + 60) == (2,)
    )


def _check_vhd(content: _Content) -> None:
    (kind,) = content.unpack(">I", 60)
    if kind != 3:
        raise UnsafeImage("a vhd with a parent is not supported")


def _check_vdi(content: _Content) -> None:
    (kind,) = content.unpack("<I", 0x4C)
    if kind not in (1, 2):
        raise UnsafeImage("a vdi with a parent is not supported")


def _check_vhdx(content: _Content) -> None:
    """A vhdx can refer to a parent only, and QEMU refuses that itself."""
    if content.size < 1 << 20:
        raise UnsafeImage("the image ends within its header")
