"""Formats of images: what content must look like, and how disks in other formats than raw are read and written.

The conversion is qemu-img's. Content that would have it read other files is refused before it sees it.
"""

from __future__ import annotations

import asyncio
import re
import resource
from pathlib import Path

import orjson

PROGRAM = "qemu-img"
HEAD = 1 << 16
# Enough for any conversion; a malformed disk must not take the memory of the machine.
_MEMORY = 2 << 30
# The bytes by which each format is known: where they are, and what they are.
_MAGIC: dict[str, tuple[int, bytes]] = {
    "qcow2": (0, b"QFI\xfb"),
    "vmdk": (0, b"KDMV"),
    "vdi": (0x40, b"\x7f\x10\xda\xbe"),
    "vhdx": (0, b"vhdxfile"),
    "vhd": (0, b"conectix"),
    "ploop": (0, b"WithoutFreeSpace"),
}
_PLOOP = (b"WithoutFreeSpace", b"WithouFreSpacExt")
# Our names, where qemu-img has others.
_NAMES = {"vhd": "vpc", "ploop": "parallels"}
# Formats that are bytes of a disk as they are, whatever they are called.
PLAIN = frozenset({"raw", "iso", "ami", "ari", "aki"})
FORMATS = PLAIN | _MAGIC.keys()
WRITABLE = ("raw", "qcow2", "vmdk", "vdi", "vhd", "vhdx", "ploop")
CONTAINERS = frozenset({"bare", "ami", "ari", "aki"})
# Kinds of vmdk that are all in one file, and what may name other files whatever the kind is said to be.
_WHOLE_VMDK = (b"monolithicSparse", b"streamOptimized")
_VMDK_KIND = re.compile(rb'createType\s*=\s*"([^"]*)"')
_VMDK_PARENT = b"parentFileNameHint"


class Unacceptable(Exception):
    """The content cannot become a volume, or a volume not such an image. `details` are not for users."""

    def __init__(self, message: str, details: str | None = None) -> None:
        super().__init__(message)
        self.details = details


def check_format(disk_format: str | None, container_format: str | None) -> None:
    if disk_format not in FORMATS:
        raise Unacceptable(f"disk format {disk_format} is not supported")
    if container_format not in CONTAINERS:
        raise Unacceptable(f"container format {container_format} is not supported")


def check_head(disk_format: str, head: bytes) -> None:
    """Whether content that begins so is what it is said to be."""
    found = detect(head)
    if disk_format in PLAIN:
        if found is not None:
            raise Unacceptable(f"the content is {found}, but its disk format is said to be {disk_format}")
    # A vhd of fixed size has its mark at the end alone.
    elif found != disk_format and disk_format != "vhd":
        raise Unacceptable(f"the content is not {disk_format}, as its disk format says")
    if found == "qcow2":
        _check_qcow2(head)
    elif found == "vmdk":
        _check_vmdk(head)


def detect(head: bytes) -> str | None:
    """The format whose mark the content bears."""
    if head.startswith(_PLOOP):
        return "ploop"
    return next((name for name, (at, mark) in _MAGIC.items() if head[at : at + len(mark)] == mark), None)


def _check_qcow2(head: bytes) -> None:
    if int.from_bytes(head[8:16], "big"):
        raise Unacceptable("a qcow2 with a backing file is not supported")
    version = int.from_bytes(head[4:8], "big")
    if version >= 3 and int.from_bytes(head[72:80], "big") & 0b100:
        raise Unacceptable("a qcow2 with its data in another file is not supported")


def _check_vmdk(head: bytes) -> None:
    """A header without a capacity has the descriptor say where the content is."""
    kinds = _VMDK_KIND.findall(head)
    whole = kinds and all(kind in _WHOLE_VMDK for kind in kinds)
    if not whole or not any(head[12:20]) or _VMDK_PARENT in head:
        raise Unacceptable("a vmdk that refers to other files is not supported")


async def virtual_size(path: Path, disk_format: str) -> int:
    """How large the disk is as a guest sees it. Refused if it needs other files than this one."""
    info = orjson.loads(await _run("info", "--output=json", "-f", _name(disk_format), str(path)))
    data = info.get("format-specific", {}).get("data", {})
    named = [info.get("backing-filename"), data.get("data-file")]
    named += [extent.get("filename") for extent in data.get("extents", ())]
    if any(name not in (None, str(path)) for name in named):
        raise Unacceptable("an image that refers to other files is not supported")
    return int(info["virtual-size"])


async def to_raw(source: Path, disk_format: str, target: Path) -> None:
    """Into a file that is there, large enough and all zero."""
    await _run("convert", "-n", "--target-is-zero", "-f", _name(disk_format), "-O", "raw", str(source), str(target))


async def from_raw(source: Path, target: Path, disk_format: str) -> None:
    """Into a new file; the source may be in use."""
    await _run("convert", "-U", "-f", "raw", "-O", _name(disk_format), str(source), str(target))


def _name(disk_format: str) -> str:
    return _NAMES.get(disk_format, disk_format)


async def _run(*args: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(PROGRAM, *args, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise Unacceptable(f"{PROGRAM} is not installed, and only raw images can be read and written") from None
    try:
        _limit(process.pid)
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = errors.decode(errors="replace").strip().splitlines()
        # Its own words name files, also such as the content would have it read.
        raise Unacceptable(
            "the disk is broken, or of a kind that cannot be converted",
            f"{PROGRAM} {args[0]} failed: {words[-1] if words else process.returncode}",
        )
    return output


def _limit(pid: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except ProcessLookupError:
        pass  # it has ended already
