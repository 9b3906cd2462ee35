"""Volumes of a full cloud: creation, checksums, servers that boot from them, and failing services."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from kilonova.http.client import Caller, ClientResponse, InProcess
from kilonova.volume.client import VolumeClient
from kilonova.volume.compute_client import ComputeClient
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

VOLUME, IMAGE = "/volume/v3", "/image/v2"
NEWEST_VERSION = {"OpenStack-API-Version": "volume 3.71"}
BLOCK = 1 << 16


async def make_image(c: FullCloud, data: bytes, **keys: Any) -> str:
    """Create a public image with this content."""
    body = {"name": "other", "disk_format": "raw", "container_format": "bare", "visibility": "public", **keys}
    answer = await c.post("/images", body, as_="admin", root=IMAGE)
    assert answer.status == 201, answer.body
    image_id: str = answer.json()["id"]
    binary = {"content-type": "application/octet-stream"}
    path = f"/images/{image_id}/file"
    answer = await c.request("PUT", path, as_="admin", root=IMAGE, headers=binary, content=data)
    assert answer.status == 204, answer.body
    return image_id


async def show_volume(c: FullCloud, volume_id: str) -> dict[str, Any]:
    answer = await c.get(f"/volumes/{volume_id}", as_="admin", root=VOLUME, headers=NEWEST_VERSION)
    assert answer.status == 200, answer.body
    shown: dict[str, Any] = answer.json()["volume"]
    return shown


async def wait_for_volume(c: FullCloud, volume_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (shown := await show_volume(c, volume_id))["status"] != status:
            await asyncio.sleep(0.01)
    return shown


async def make_volume(c: FullCloud, *, as_: str = "member", size: int = 1, **keys: Any) -> str:
    """Create a volume; returns its id when it is available."""
    body = {"volume": {"size": size, **keys}}
    answer = await c.post("/volumes", body, as_=as_, root=VOLUME, headers=NEWEST_VERSION)
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    await wait_for_volume(c, volume_id, "available")
    return volume_id


async def volume_action(c: FullCloud, volume_id: str, action: str, body: Any = None, *, as_: str = "admin") -> None:
    path = f"/volumes/{volume_id}/action"
    answer = await c.post(path, {action: body or {}}, as_=as_, root=VOLUME, headers=NEWEST_VERSION)
    assert answer.status == 202, answer.body


async def attachments(c: FullCloud, volume_id: str) -> list[dict[str, Any]]:
    """The attachments of a volume, with details."""
    path = f"/attachments?all_tenants=1&volume_id={volume_id}"
    listed = (await c.get(path, as_="admin", root=VOLUME, headers=NEWEST_VERSION)).json()["attachments"]
    shown = [
        await c.get(f"/attachments/{entry['id']}", as_="admin", root=VOLUME, headers=NEWEST_VERSION) for entry in listed
    ]
    return [answer.json()["attachment"] for answer in shown]


async def volume_checksum(c: FullCloud, volume_id: str) -> str:
    """The checksum of the volume's data."""
    data_id = await c.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
    return checksum(Path(c.services.config.data) / "volumes" / f"{volume_id}.{data_id}")


def checksum(path: Path) -> str:
    """The checksum of a file's size and its blocks, except for empty ones."""
    digest, offset = hashlib.sha256(str(path.stat().st_size).encode()), 0
    with path.open("rb") as file:
        while (found := _next_data(file.fileno(), offset)) is not None:
            offset = file.seek(found - found % BLOCK)
            _add_block(digest, offset, file.read(BLOCK))
            offset += BLOCK
    return digest.hexdigest()


def expected_checksum(data: bytes, size: int = 1) -> str:
    """The checksum of a volume of `size` GiB that begins with this data, and is otherwise empty."""
    digest = hashlib.sha256(str(size * 2**30).encode())
    for offset in range(0, len(data), BLOCK):
        _add_block(digest, offset, data[offset : offset + BLOCK].ljust(BLOCK, b"\0"))
    return digest.hexdigest()


def _next_data(file: int, offset: int) -> int | None:
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError:
        return None


def _add_block(digest: Any, offset: int, block: bytes) -> None:
    if block.strip(b"\0"):
        digest.update(str(offset).encode() + block)


def block_device(source_type: str, uuid: str | None, **keys: Any) -> dict[str, Any]:
    """An entry of block_device_mapping_v2 with a volume as destination."""
    named = {} if uuid is None else {"uuid": uuid}
    return {"source_type": source_type, "destination_type": "volume", "boot_index": None, **named, **keys}


async def boot_from(c: FullCloud, *devices: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Create a server that boots from the first device."""
    first, *others = devices
    mapping = [{**first, "boot_index": 0}, *others]
    return await c.boot_active(block_device_mapping_v2=mapping, imageRef="", **keys)


def root_volume_id(server: Mapping[str, Any]) -> str:
    """The id of the server's first volume, its root."""
    volume_id: str = server["os-extended-volumes:volumes_attached"][0]["id"]
    return volume_id


Hook = Callable[[str, str, Any], Awaitable[ClientResponse | None]]


class InterceptedVolumeService:
    """Intercepts compute's requests to the volume service.

    `announced_version`: the newest version that the service announces. `hook` gets method, path and body of each
    request; if it returns a response, the service does not get the request. `after` is called after the service has
    responded.
    """

    def __init__(self, c: FullCloud) -> None:
        self._caller: Caller = InProcess(c.app, "/volume")
        self.announced_version: str | None = None
        self.hook: Hook | None = None
        self.after: Hook | None = None
        c.services.volume = VolumeClient(self)  # type: ignore[arg-type]

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None, content: Any = None
    ) -> ClientResponse:
        if self.hook is not None and (answer := await self.hook(method, path, json)) is not None:
            return answer
        answer = await self._caller.request(method, path, headers=headers, json=json, content=content)
        if self.after is not None and (replacement := await self.after(method, path, json)) is not None:
            return replacement
        if self.announced_version is None or path != "/v3/":
            return answer
        document = answer.json()
        for entry in document["versions"]:
            entry["version"] = self.announced_version
        return ClientResponse(answer.status, answer.headers, orjson.dumps(document))


def drop_volume_events(c: FullCloud) -> list[Any]:
    """Drop all events that the volume service sends to compute. Returns the list of dropped events."""
    dropped: list[Any] = []

    class IgnoringCompute:
        async def request(self, method: str, path: str, *, json: Any = None, **options: Any) -> ClientResponse:
            dropped.append(json)
            return ClientResponse(200, {}, b"{}")

    c.services.compute = ComputeClient(IgnoringCompute())  # type: ignore[arg-type]
    return dropped
