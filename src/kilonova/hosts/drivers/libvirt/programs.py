"""Runs the host's command line programs with resource limits, and kills them on cancellation."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError

_MAX_ERROR_CHARACTERS = 400
# Administration tools are not in every user's PATH.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def find(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


async def run(
    program: str,
    *args: str | Path,
    memory: int = 0,
    seconds: int = 0,
    content: bytes | None = None,
    environment: Mapping[str, str] = {},
) -> bytes:
    """Run the program with this content as input, and return its output. Raises DriverError.

    Limits: bytes of memory, seconds of CPU time.
    """
    command = [_require(program), *map(str, args)]
    limits = [f"--as={memory}"] * bool(memory) + [f"--cpu={seconds}"] * bool(seconds)
    if limits:
        command = [_require("prlimit"), *limits, "--", *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL if content is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": _PATH, "LC_ALL": "C", **environment},
    )
    try:
        output, errors = await process.communicate(content)
    finally:
        if process.returncode is None:
            process.kill()
            # The caller may reuse the program's files, so the process must have ended.
            await _wait_for_exit(process)
    if process.returncode:
        message = " ".join(errors.decode(errors="replace").split()) or f"exit status {process.returncode}"
        subcommand = f"{args[0]} " if program == "qemu-img" else ""
        raise DriverError(f"{program} {subcommand}failed: {message[-_MAX_ERROR_CHARACTERS:]}")
    return output


def _require(program: str) -> str:
    path = find(program)
    if path is None:
        raise DriverError(f"{program} is not installed on this host")
    return path


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Also waits when cancelled."""
    exited = asyncio.ensure_future(process.wait())
    while not exited.done():
        try:
            await asyncio.shield(exited)
        except asyncio.CancelledError:
            continue
