"""Programs of the host that work on disks: run with limits, stopped when nobody wants their work any more.

qemu-img is never left to find out a format by itself, and gets absolute paths only, which it cannot take for anything
else than a file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import orjson

from kilonova.hosts.drivers.base import DriverError

# What a look at a disk may take; a malformed one must not take the machine.
_LOOK_MEMORY = 1 << 30
_LOOK_SECONDS = 30
# Conversions are long, but need no more memory than this.
_WORK_MEMORY = 2 << 30
# So much of what a program says when it fails.
_WORDS = 400
# Tools of the administrator are not in everybody's path.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


async def run(program: str, *args: str | Path, memory: int = 0, seconds: int = 0) -> bytes:
    """What it writes. Limits: bytes of memory and seconds of processor. Raises DriverError with its last words."""
    where = find(program)
    if where is None:
        raise DriverError(f"{program} is not installed on this host")
    command = [where, *map(str, args)]
    limits = [f"--as={memory}"] * bool(memory) + [f"--cpu={seconds}"] * bool(seconds)
    if limits:
        command = [_required("prlimit"), *limits, "--", *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": _PATH, "LC_ALL": "C"},
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            # Not before it is gone may somebody else touch what it worked on.
            await _gone(process)
    if process.returncode:
        said = " ".join(errors.decode(errors="replace").split()) or f"it ended with {process.returncode}"
        raise DriverError(f"{program} {_verb(program, args)}failed: {said[-_WORDS:]}")
    return output


async def info(path: Path, disk_format: str) -> dict[str, Any]:
    """What qemu-img says of a disk, whose format is known."""
    found: dict[str, Any] = orjson.loads(
        await run(
            "qemu-img",
            *("info", "--output=json", "-f", disk_format, _absolute(path)),
            memory=_LOOK_MEMORY,
            seconds=_LOOK_SECONDS,
        )
    )
    return found


async def measure(path: Path) -> int:
    """How many bytes a qcow2 of all that is on the disk, a qcow2 too, takes about. The disk may be in use."""
    formats = ("-f", "qcow2", "-O", "qcow2")
    said = await run("qemu-img", "measure", "-U", "--output=json", *formats, _absolute(path), memory=_LOOK_MEMORY)
    return int(orjson.loads(said)["required"])


async def create_overlay(path: Path, size: int, base: Path, base_format: str) -> None:
    await run(
        "qemu-img", "create", "-q", "-f", "qcow2", "-F", base_format, "-b", *map(_absolute, (base, path)), str(size)
    )


async def create(path: Path, size: int) -> None:
    """An empty qcow2."""
    await run("qemu-img", "create", "-q", "-f", "qcow2", _absolute(path), str(size))


async def grow(path: Path, disk_format: str, size: int) -> None:
    await run("qemu-img", "resize", "-q", "-f", disk_format, _absolute(path), str(size))


async def convert(source: Path, disk_format: str, target: Path, target_format: str) -> None:
    """The whole of a disk, with what it is laid over, into a new file."""
    formats = ("-f", disk_format, "-O", target_format)
    await run("qemu-img", "convert", "-q", *formats, *map(_absolute, (source, target)), memory=_WORK_MEMORY)


def _absolute(path: Path) -> str:
    if not path.is_absolute():
        raise ValueError(f"{path} is not an absolute path")
    return str(path)


def _required(program: str) -> str:
    where = find(program)
    if where is None:
        raise DriverError(f"{program} is not installed on this host")
    return where


def _verb(program: str, args: tuple[str | Path, ...]) -> str:
    return f"{args[0]} " if program == "qemu-img" else ""


async def _gone(process: asyncio.subprocess.Process) -> None:
    waiting = asyncio.ensure_future(process.wait())
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            continue
