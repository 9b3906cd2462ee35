"""Calls qemu-img with explicit formats and absolute paths.

qemu-img must not probe formats: a guest could write a header that names other files of the host. A relative path could
be taken for a URL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from kilonova.hosts.drivers.libvirt import programs

# Limits for reading a header: a malformed image must not exhaust the host.
_INFO_MEMORY_BYTES = 1 << 30
_INFO_CPU_SECONDS = 30
_CONVERT_MEMORY_BYTES = 2 << 30


async def info(path: Path, disk_format: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(
        await programs.run(
            "qemu-img",
            *("info", "--output=json", "-f", disk_format, _absolute(path)),
            memory=_INFO_MEMORY_BYTES,
            seconds=_INFO_CPU_SECONDS,
        )
    )
    return found


async def measure(path: Path) -> int:
    """Estimate the bytes of a qcow2 with the whole content of this qcow2, which may be in use."""
    formats = ("-f", "qcow2", "-O", "qcow2")
    output = await programs.run(
        "qemu-img", "measure", "-U", "--output=json", *formats, _absolute(path), memory=_INFO_MEMORY_BYTES
    )
    return int(orjson.loads(output)["required"])


async def create(path: Path, size: int) -> None:
    """Create an empty qcow2."""
    await programs.run("qemu-img", "create", "-q", "-f", "qcow2", _absolute(path), str(size))


async def create_overlay(path: Path, size: int, base: Path, base_format: str) -> None:
    paths = map(_absolute, (base, path))
    await programs.run("qemu-img", "create", "-q", "-f", "qcow2", "-F", base_format, "-b", *paths, str(size))


async def resize(path: Path, disk_format: str, size: int) -> None:
    await programs.run("qemu-img", "resize", "-q", "-f", disk_format, _absolute(path), str(size))


async def convert(source: Path, disk_format: str, target: Path, target_format: str) -> None:
    """Copy the disk with the content of its backing files into a new file."""
    formats = ("-f", disk_format, "-O", target_format)
    paths = map(_absolute, (source, target))
    await programs.run("qemu-img", "convert", "-q", *formats, *paths, memory=_CONVERT_MEMORY_BYTES)


def _absolute(path: Path) -> str:
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return str(path)
