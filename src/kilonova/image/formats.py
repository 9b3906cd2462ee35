"""What the first bytes of image data say about the disk inside."""

from __future__ import annotations

DISK_FORMATS = ("ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "ploop", "iso")
CONTAINER_FORMATS = ("ami", "ari", "aki", "bare", "ovf", "ova", "docker", "compressed")

# Bytes of the head that are enough to tell.
HEAD = 64
_QCOW_MAGIC = b"QFI\xfb"


def virtual_size(disk_format: str | None, head: bytes, size: int) -> int | None:
    """The size of the disk as a guest sees it, or None when the format does not tell at its head."""
    if disk_format in ("raw", "iso"):
        return size
    if disk_format == "qcow2" and is_qcow2(head):
        return int.from_bytes(head[24:32], "big")
    return None


def is_qcow2(head: bytes) -> bool:
    return len(head) >= 32 and head[:4] == _QCOW_MAGIC
