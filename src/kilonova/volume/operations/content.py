"""How a file comes to hold what a volume shall hold: nothing, an image, a snapshot or another volume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson

from kilonova.http.client import Unreachable
from kilonova.operations import Failed, Operation
from kilonova.store import Row
from kilonova.volume import conversion
from kilonova.volume.files import GIB, Part, TooBig, turn
from kilonova.volume.operations.common import Progress, clear, explained, files_of, keeper_of, new_data

# For the image service to send more of an image.
CHUNK_SECONDS = 60.0
# What a volume remembers of its image besides the image's properties.
_FACTS = frozenset(
    {"image_id", "image_name", "checksum", "container_format", "disk_format", "min_disk", "min_ram", "size"}
)
_UNTOLD = frozenset(
    {
        *("id", "name", "status", "visibility", "owner", "protected", "os_hidden", "virtual_size", "tags", "self"),
        *("os_hash_algo", "os_hash_value", "created_at", "updated_at", "file", "schema", "direct_url", "locations"),
        "stores",
    }
)

VOLUME, SNAPSHOT = "volume", "snapshot"
_TABLES = {VOLUME: "volumes", SNAPSHOT: "volume_snapshots"}

Source = dict[str, str] | None
"""`{"image": id}`, `{"snapshot": id}`, `{"volume": id}`, or None for nothing at all."""
About = dict[str, Any]
"""`bootable` and `image_metadata`: what is true of a volume because of its content."""


def image_metadata(image: dict[str, Any]) -> dict[str, str]:
    """What a volume that was made of the image remembers of it."""
    told = {name: value for name, value in image.items() if name not in _UNTOLD and value is not None}
    named = {"image_id": image["id"], "image_name": image.get("name") or ""}
    return {**named, **{name: str(value) for name, value in told.items()}}


def image_properties(known: dict[str, str]) -> dict[str, str]:
    """What of it is true of an image that is made of the volume in its turn."""
    return {name: value for name, value in known.items() if name not in _FACTS | _UNTOLD}


async def make(op: Operation, kind: str, row: Row, source: Source) -> dict[str, Any]:
    """The content of a volume or snapshot (`kind`), in a file of its own. What an earlier run has left goes first."""
    await clear(op, row["id"])
    data_id = new_data(op)
    progress = Progress(op, _TABLES[kind], row["id"])
    about = await write(op, _place(op, kind, row["id"], data_id), row["size"], source, progress)
    return {"data_id": data_id, **about}


def _place(op: Operation, kind: str, ident: str, data_id: str) -> Path:
    files = files_of(op)
    return files.volume(ident, data_id) if kind == VOLUME else files.snapshot(ident, data_id)


async def write(op: Operation, place: Path, size: int, source: Source, progress: Progress) -> About:
    """Make the file of `size` GiB, durable when this returns."""
    files = files_of(op)
    async with explained(op), turn(op.services.config), files.writing(place, size * GIB) as part:
        if source is None:
            return {"bootable": False, "image_metadata": None}
        ((kind, ident),) = source.items()
        if kind == "image":
            return await _from_image(op, part, ident, progress)
        return await _from_copy(op, part, kind, ident, progress)


async def _from_copy(op: Operation, part: Part, kind: str, ident: str, progress: Progress) -> About:
    row = await op.db.fetch_one(f"SELECT data_id, bootable, image_metadata FROM {_TABLES[kind]} WHERE id = $1", ident)
    if row is None or row["data_id"] is None:
        raise Failed(f"The {kind} {ident} to copy could not be found.")
    progress.total = part.size
    source = _place(op, kind, ident, row["data_id"])
    if kind != VOLUME or not await copy_in_use(op, ident, row["data_id"], source, part, progress):
        await part.copy(source, progress.moved)
    known = row["image_metadata"]
    return {"bootable": row["bootable"], "image_metadata": orjson.loads(known) if known else None}


async def copy_in_use(
    op: Operation, volume_id: str, data_id: str, source: Path, part: Part, progress: Progress
) -> bool:
    """Copy a volume that hosts may write to as it is at one moment. False: no host reaches it."""
    if await part.share(source):
        return True
    return await keeper_of(op).copy(op.id, volume_id, data_id, part.path, part.size, progress.moved)


async def _from_image(op: Operation, part: Part, image_id: str, progress: Progress) -> About:
    token = await op.services.identity.token()
    image: dict[str, Any] | None = await op.services.image.show(image_id, token)
    if image is None or image["status"] not in ("active", "deactivated"):
        raise Failed(f"Image {image_id} could not be found, or has no data.")
    conversion.check_format(image["disk_format"], image["container_format"])
    progress.total = image["size"] or part.size
    async with op.services.image.download(image_id, token) as chunks:
        stream = _watched(chunks, image)
        if image["disk_format"] in conversion.PLAIN:
            await part.fill(stream, progress.moved)
        else:
            await _convert(op, part, stream, image, progress)
    return {"bootable": True, "image_metadata": image_metadata(image)}


async def _convert(
    op: Operation, part: Part, stream: AsyncIterator[bytes], image: dict[str, Any], progress: Progress
) -> None:
    """The image as it is goes into a file beside, for the time of the conversion."""
    disk_format = image["disk_format"]
    async with files_of(op).aside(f"{part.path.name}.source", image["size"]) as source:
        await source.fill(stream, progress.moved)
        size = await conversion.virtual_size(source.path, disk_format)
        if size > part.size:
            raise TooBig(f"the disk in the image has {size} bytes, and the volume {part.size}")
        await conversion.to_raw(source.path, disk_format, part.path)


async def _watched(chunks: AsyncIterator[bytes], image: dict[str, Any]) -> AsyncIterator[bytes]:
    """The stream, if it is what the image is said to be, comes in time, and is whole."""
    head, size = b"", 0
    waiting: list[bytes] = []
    while (chunk := await _next(chunks)) is not None:
        size += len(chunk)
        waiting.append(chunk)
        if len(head) < conversion.HEAD:
            head = b"".join(waiting)[: conversion.HEAD]
            if len(head) < conversion.HEAD:
                continue
            conversion.check_head(image["disk_format"], head)
        for each in waiting:
            yield each
        waiting = []
    if len(head) < conversion.HEAD:
        conversion.check_head(image["disk_format"], head)
        for each in waiting:
            yield each
    if image["size"] is not None and size != image["size"]:
        raise Unreachable(f"the image service sent {size} of {image['size']} bytes")


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(CHUNK_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise Unreachable("the image service does not send the image") from None
