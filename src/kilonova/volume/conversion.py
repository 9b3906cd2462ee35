"""Checks image formats, and converts images from and to raw with qemu-img.

Images that would make qemu-img read other files are refused before it opens them.
"""

from __future__ import annotations

import asyncio
import re
import resource
from pathlib import Path

import orjson

PROGRAM = "qemu-img"
HEAD = 1 << 16
# Enough for any conversion. A malformed disk must not exhaust the memory of the machine.
_MEMORY_LIMIT = 2 << 30
# Offset and value of the magic bytes of each format.
_MAGIC: dict[str, tuple[int, bytes]] = {
    "qcow2": (0, b"QFI\xfb"),
    "vmdk": (0, b"KDMV"),
    "vdi": (0x40, b"\x7f\x10\xda\xbe"),
    "vhdx": (0, b"vhdxfile"),
    "vhd": (0, b"conectix"),
    "ploop": (0, b"WithoutFreeSpace"),
}
_PLOOP = (b"WithoutFreeSpace", b"WithouFreSpacExt")
# Names of qemu-img that differ from those of the image service.
_QEMU_NAMES = {"vhd": "vpc", "ploop": "parallels"}
# Formats that are the plain bytes of a disk.
RAW_FORMATS = frozenset({"raw", "iso", "ami", "ari", "aki"})
FORMATS = RAW_FORMATS | _MAGIC.keys()
WRITABLE = ("raw", "qcow2", "vmdk", "vdi", "vhd", "vhdx", "ploop")
CONTAINERS = frozenset({"bare", "ami", "ari", "aki"})
# Types of vmdk that consist of one file, and a key that may refer to another file in any type.
_ONE_FILE_VMDK = (b"monolithicSparse", b"streamOptimized")
_VMDK_TYPE = re.compile(rb'createType\s*=\s*"([^"]*)"')
_VMDK_PARENT = b"parentFileNameHint"


class Unacceptable(Exception):
    """The image cannot be converted to a volume, or the volume to an image. `details` are not for users."""

    def __init__(self, message: str, details: str | None = None) -> None:
        super().__init__(message)
        self.details = details


def checked_format(disk_format: str | None, container_format: str | None) -> str:
    """The disk format, if both formats are supported."""
    if disk_format is None or disk_format not in FORMATS:
        raise Unacceptable(f"disk format {disk_format} is not supported")
    if container_format not in CONTAINERS:
        raise Unacceptable(f"container format {container_format} is not supported")
    return disk_format


def check_head(disk_format: str, head: bytes) -> None:
    """Refuse content whose first bytes do not match its disk format."""
    found = detect(head)
    if disk_format in RAW_FORMATS:
        if found is not None:
            raise Unacceptable(f"the content is {found}, but its disk format is said to be {disk_format}")
    # A vhd of fixed size has its magic bytes only at the end.
    elif found != disk_format and disk_format != "vhd":
        raise Unacceptable(f"the content is not {disk_format}, as its disk format says")
    if found == "qcow2":
        _check_qcow2(head)
    elif found == "vmdk":
        _check_vmdk(head)


def detect(head: bytes) -> str | None:
    """The format whose magic bytes the content has."""
    if head.startswith(_PLOOP):
        return "ploop"
    return next((name for name, (offset, magic) in _MAGIC.items() if head.startswith(magic, offset)), None)


def _check_qcow2(head: bytes) -> None:
    if int.from_bytes(head[8:16], "big"):
        raise Unacceptable("a qcow2 with a backing file is not supported")
    version = int.from_bytes(head[4:8], "big")
    if version >= 3 and int.from_bytes(head[72:80], "big") & 0b100:
        raise Unacceptable("a qcow2 with its data in another file is not supported")


def _check_vmdk(head: bytes) -> None:
    """Refuse extents in other files. A header without a capacity leaves the place of the content to the descriptor."""
    types = _VMDK_TYPE.findall(head)
    one_file = types and all(found in _ONE_FILE_VMDK for found in types)
    if not one_file or not any(head[12:20]) or _VMDK_PARENT in head:
        raise Unacceptable("a vmdk that refers to other files is not supported")


async def virtual_size(path: Path, disk_format: str) -> int:
    """The size of the disk as a guest sees it. Refuses an image that refers to other files."""
    info = orjson.loads(await _run("info", "--output=json", "-f", _qemu_name(disk_format), str(path)))
    data = info.get("format-specific", {}).get("data", {})
    references = [info.get("backing-filename"), data.get("data-file")]
    references += [extent.get("filename") for extent in data.get("extents", ())]
    if any(name not in (None, str(path)) for name in references):
        raise Unacceptable("an image that refers to other files is not supported")
    return int(info["virtual-size"])


async def data_bytes(path: Path, disk_format: str) -> int:
    """An upper bound of the data in the image, without holes. A small qcow2 can have much data."""
    # The target qcow2 counts allocated clusters. The target raw would count holes too.
    command = ("measure", "--output=json", "-f", _qemu_name(disk_format), "-O", "qcow2", str(path))
    return int(orjson.loads(await _run(*command))["required"])


async def to_raw(source: Path, disk_format: str, target: Path) -> None:
    """Convert into an existing file that is large enough and all zero."""
    await _run(
        "convert", "-n", "--target-is-zero", "-f", _qemu_name(disk_format), "-O", "raw", str(source), str(target)
    )


async def from_raw(source: Path, target: Path, disk_format: str) -> None:
    """Convert into a new file. The source may be in use."""
    await _run("convert", "-U", "-f", "raw", "-O", _qemu_name(disk_format), str(source), str(target))


def _qemu_name(disk_format: str) -> str:
    return _QEMU_NAMES.get(disk_format, disk_format)


async def _run(*args: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(PROGRAM, *args, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise Unacceptable(f"{PROGRAM} is not installed, and only raw images can be read and written") from None
    try:
        _limit_memory(process.pid)
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = errors.decode(errors="replace").strip().splitlines()
        # qemu-img's messages name files, which users must not see.
        raise Unacceptable(
            "the disk is broken, or of a kind that cannot be converted",
            f"{PROGRAM} {args[0]} failed: {words[-1] if words else process.returncode}",
        )
    return output


def _limit_memory(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    except ProcessLookupError:
        pass  # the process has ended
