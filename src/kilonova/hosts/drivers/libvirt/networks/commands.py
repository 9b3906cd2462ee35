"""Runs the programs that configure networks: ip, bridge, nft."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from typing import Any

from kilonova.hosts.drivers.base import DriverError

_TIMEOUT_SECONDS = 30.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


async def run(*command: str, given: str = "", check: bool = True) -> str:
    """Run the program and return its output. Raises DriverError, passing, because the next plan may succeed."""
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
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            out, err = await process.communicate(given.encode() if given else None)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DriverError(f"{' '.join(command[:6])} took longer than {_TIMEOUT_SECONDS:g} s", passing=True) from None
    if check and process.returncode:
        message = " ".join(err.decode(errors="replace").split())[:500]
        raise DriverError(f"{' '.join(command[:8])}: {message or f'exit status {process.returncode}'}", passing=True)
    return out.decode(errors="replace")


async def run_json(*command: str) -> list[dict[str, Any]]:
    """The JSON list that the program writes; empty if it writes nothing or fails."""
    output = await run(*command, check=False)
    try:
        found = json.loads(output) if output.strip() else []
    except ValueError:
        return []
    # Some versions write empty objects for missing entries.
    return [item for item in found if item] if isinstance(found, list) else []


async def run_batch(program: str, lines: Iterable[str], namespace: str = "") -> None:
    """Run several commands of `ip` or `bridge` at once, in a namespace if one is given."""
    script = "\n".join(lines)
    if script:
        await run(program, *(("-n", namespace) if namespace else ()), "-batch", "-", given=script + "\n")
