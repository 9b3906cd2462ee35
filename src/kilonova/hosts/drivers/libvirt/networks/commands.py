"""Running the programs that networks are made with."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from typing import Any

from kilonova.hosts.drivers.base import DriverError

_SECONDS = 30.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


async def run(*command: str, given: str = "", check: bool = True) -> str:
    """What the program writes. Raises DriverError, which is passing: the next plan may well succeed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": _PATH, "LC_ALL": "C"},
        )
    except OSError as error:
        raise DriverError(f"{command[0]} cannot be run: {error.strerror}", passing=True) from None
    try:
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate(given.encode() if given else None)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DriverError(f"{' '.join(command[:6])} took longer than {_SECONDS:g} s", passing=True) from None
    if check and process.returncode:
        said = " ".join(err.decode(errors="replace").split())[:500]
        raise DriverError(f"{' '.join(command[:8])}: {said or f'exit status {process.returncode}'}", passing=True)
    return out.decode(errors="replace")


async def look(*command: str) -> list[dict[str, Any]]:
    """What a program says as JSON; nothing if it has nothing to say or fails."""
    said = await run(*command, check=False)
    try:
        found = json.loads(said) if said.strip() else []
    except ValueError:
        return []
    # Some versions say an empty object for what they have nothing of.
    return [item for item in found if item] if isinstance(found, list) else []


async def batch(program: str, lines: Iterable[str], space: str = "") -> None:
    """Several commands of `ip` or `bridge` at once, in a namespace if one is named."""
    script = "\n".join(lines)
    if script:
        await run(program, *(("-n", space) if space else ()), "-batch", "-", given=script + "\n")
