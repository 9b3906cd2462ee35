"""A fake image service, and checks for tools of the host."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.messages import Transfer

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
MIB = 1 << 20
GIB = 1 << 30


def require_tools(*tools: str) -> None:
    """Skip the test if a tool is missing; fail it with KILONOVA_REQUIRE_ALL=1."""
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(missing)}, and KILONOVA_REQUIRE_ALL=1")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def run_tool(*command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH}
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def transfer(image_id: str) -> Transfer:
    return Transfer(url=f"/v2/images/{image_id}/file", ticket="secret")


class FakeImageService:
    """An image service in memory. `facts` override the attributes that it derives from an image's data."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.gate: asyncio.Event | None = None

    def put(self, image_id: str, data: bytes, **facts: Any) -> None:
        self.data[image_id] = data
        self.facts[image_id] = facts

    async def show(self, transfer: Transfer) -> dict[str, Any]:
        image_id = transfer.url.split("/")[3]
        data = self.data.get(image_id)
        found: dict[str, Any] = {"id": image_id, "status": "queued", "disk_format": "qcow2"}
        if data is not None:
            found |= {
                "status": "active",
                "size": len(data),
                "os_hash_algo": "sha512",
                "os_hash_value": hashlib.sha512(data).hexdigest(),
            }
        return found | self.facts.get(image_id, {})

    async def read(self, transfer: Transfer) -> AsyncIterator[bytes]:
        image_id = transfer.url.split("/")[3]
        self.reads.append(image_id)
        data = self.data[image_id]
        for start in range(0, len(data), 300_000):
            yield data[start : start + 300_000]
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(0)

    async def write(self, transfer: Transfer, data: bytes | AsyncIterator[bytes]) -> None:
        image_id = transfer.url.split("/")[3]
        self.writes.append(image_id)
        written = data if isinstance(data, bytes) else b"".join([chunk async for chunk in data])
        self.data.setdefault(image_id, written)
