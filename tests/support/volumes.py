"""Volumes of a whole cloud, for tests: making them, their bytes, servers that boot from them, and troubled services."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from kilonova.http.client import Caller, InProcess, Response
from kilonova.volume.client import VolumeClient
from kilonova.volume.compute import ComputeClient
from tests.support.whole import PATIENCE, Whole

VOLUME, IMAGE = "/volume/v3", "/image/v2"
NEWEST = {"OpenStack-API-Version": "volume 3.71"}
BLOCK = 1 << 16


async def make_image(c: Whole, data: bytes, **keys: Any) -> str:
    """A public image of this content."""
    body = {"name": "other", "disk_format": "raw", "container_format": "bare", "visibility": "public", **keys}
    answer = await c.post("/images", body, as_="admin", root=IMAGE)
    assert answer.status == 201, answer.body
    image_id: str = answer.json()["id"]
    binary = {"content-type": "application/octet-stream"}
    path = f"/images/{image_id}/file"
    answer = await c.request("PUT", path, as_="admin", root=IMAGE, headers=binary, content=data)
    assert answer.status == 204, answer.body
    return image_id


async def volume(c: Whole, volume_id: str) -> dict[str, Any]:
    answer = await c.get(f"/volumes/{volume_id}", as_="admin", root=VOLUME, headers=NEWEST)
    assert answer.status == 200, answer.body
    shown: dict[str, Any] = answer.json()["volume"]
    return shown


async def volume_until(c: Whole, volume_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (shown := await volume(c, volume_id))["status"] != status:
            await asyncio.sleep(0.01)
    return shown


async def make_volume(c: Whole, *, as_: str = "member", size: int = 1, **keys: Any) -> str:
    """The id of a volume that is ready to be used."""
    body = {"volume": {"size": size, **keys}}
    answer = await c.post("/volumes", body, as_=as_, root=VOLUME, headers=NEWEST)
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    await volume_until(c, volume_id, "available")
    return volume_id


async def volume_act(c: Whole, volume_id: str, action: str, body: Any = None, *, as_: str = "admin") -> None:
    path = f"/volumes/{volume_id}/action"
    answer = await c.post(path, {action: body or {}}, as_=as_, root=VOLUME, headers=NEWEST)
    assert answer.status == 202, answer.body


async def attachments(c: Whole, volume_id: str) -> list[dict[str, Any]]:
    """Each with all that is known of it."""
    path = f"/attachments?all_tenants=1&volume_id={volume_id}"
    listed = (await c.get(path, as_="admin", root=VOLUME, headers=NEWEST)).json()["attachments"]
    shown = [await c.get(f"/attachments/{one['id']}", as_="admin", root=VOLUME, headers=NEWEST) for one in listed]
    return [answer.json()["attachment"] for answer in shown]


async def content(c: Whole, volume_id: str) -> str:
    """The checksum of all bytes of the volume."""
    data_id = await c.db.fetch_value("SELECT data_id FROM volumes WHERE id = $1", volume_id)
    return checksum(Path(c.services.config.data) / "volumes" / f"{volume_id}.{data_id}")


def checksum(path: Path) -> str:
    """Of the file's size and its blocks, without those that are empty: most of a volume is."""
    digest, place = hashlib.sha256(str(path.stat().st_size).encode()), 0
    with path.open("rb") as file:
        while (found := _next_data(file.fileno(), place)) is not None:
            place = file.seek(found - found % BLOCK)
            _count(digest, place, file.read(BLOCK))
            place += BLOCK
    return digest.hexdigest()


def filled(data: bytes, size: int = 1) -> str:
    """The checksum of a volume of so many GiB that begins with this, and is empty after it."""
    digest = hashlib.sha256(str(size * 2**30).encode())
    for place in range(0, len(data), BLOCK):
        _count(digest, place, data[place : place + BLOCK].ljust(BLOCK, b"\0"))
    return digest.hexdigest()


def _next_data(file: int, place: int) -> int | None:
    try:
        return os.lseek(file, place, os.SEEK_DATA)
    except OSError:
        return None


def _count(digest: Any, place: int, block: bytes) -> None:
    if block.strip(b"\0"):
        digest.update(str(place).encode() + block)


def device(source_type: str, uuid: str | None, **keys: Any) -> dict[str, Any]:
    """An entry of block_device_mapping_v2 that becomes a volume."""
    named = {} if uuid is None else {"uuid": uuid}
    return {"source_type": source_type, "destination_type": "volume", "boot_index": None, **named, **keys}


async def boot_from(c: Whole, *devices: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A server that boots from the first of these."""
    first, *others = devices
    mapping = [{**first, "boot_index": 0}, *others]
    return await c.active(block_device_mapping_v2=mapping, imageRef="", **keys)


def root_of(server: Mapping[str, Any]) -> str:
    """The id of the volume that the server boots from, if that is its first."""
    volume_id: str = server["os-extended-volumes:volumes_attached"][0]["id"]
    return volume_id


Hook = Callable[[str, str, Any], Awaitable[Response | None]]


class Between:
    """Stands between compute and the volume service, and may answer in its place.

    `newest`: the version that the service announces. `hook` gets method, path and body of each request; what it
    returns is the answer, and the service hears nothing of it. `after` gets the same when the service has done it.
    """

    def __init__(self, c: Whole) -> None:
        self._caller: Caller = InProcess(c.app, "/volume")
        self.newest: str | None = None
        self.hook: Hook | None = None
        self.after: Hook | None = None
        c.services.volume = VolumeClient(self)  # type: ignore[arg-type]

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None, content: Any = None
    ) -> Response:
        if self.hook is not None and (answer := await self.hook(method, path, json)) is not None:
            return answer
        answer = await self._caller.request(method, path, headers=headers, json=json, content=content)
        if self.after is not None and (instead := await self.after(method, path, json)) is not None:
            return instead
        if self.newest is None or path != "/v3/":
            return answer
        document = answer.json()
        for one in document["versions"]:
            one["version"] = self.newest
        return Response(answer.status, answer.headers, orjson.dumps(document))


def swallow_events(c: Whole) -> list[Any]:
    """From now on compute hears nothing of what the volume service tells. What it was told."""
    told: list[Any] = []

    class Deaf:
        async def request(self, method: str, path: str, *, json: Any = None, **options: Any) -> Response:
            told.append(json)
            return Response(200, {}, b"{}")

    c.services.compute = ComputeClient(Deaf())  # type: ignore[arg-type]
    return told
