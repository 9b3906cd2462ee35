"""Disk and container formats, and what a disk's header says about its size."""

from __future__ import annotations

DISK_FORMATS = ("ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "ploop", "iso")
CONTAINER_FORMATS = ("ami", "ari", "aki", "bare", "ovf", "ova", "docker", "compressed")

# Enough to read the virtual size.
HEADER_BYTES = 64
_QCOW_MAGIC = b"QFI\xfb"


def virtual_size(disk_format: str | None, header: bytes, size: int) -> int | None:
    """The size of the disk as a guest sees it, or None if the header does not contain it."""
    if disk_format in ("raw", "iso"):
        return size
    if disk_format == "qcow2" and is_qcow2(header):
        return int.from_bytes(header[24:32], "big")
    return None


def is_qcow2(header: bytes) -> bool:
    return len(header) >= 32 and header[:4] == _QCOW_MAGIC
