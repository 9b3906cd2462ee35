"""Writes the file of a volume or snapshot: blank, or from an image, a snapshot or another volume."""

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
from kilonova.volume.files import GIB, NewFile, TooBig, copy_slot
from kilonova.volume.operations.common import (
    Progress,
    export_manager,
    new_data_id,
    remove_earlier_files,
    translate_errors,
    volume_files,
)

# Timeout for the next chunk of an image.
CHUNK_SECONDS = 60.0
# Keys of the image metadata of a volume that are not properties of the image.
_IMAGE_FIELDS = frozenset(
    {"image_id", "image_name", "checksum", "container_format", "disk_format", "min_disk", "min_ram", "size"}
)
_IGNORED_IMAGE_FIELDS = frozenset(
    {
        *("id", "name", "status", "visibility", "owner", "protected", "os_hidden", "virtual_size", "tags", "self"),
        *("os_hash_algo", "os_hash_value", "created_at", "updated_at", "file", "schema", "direct_url", "locations"),
        "stores",
    }
)

VOLUME, SNAPSHOT = "volume", "snapshot"
_TABLES = {VOLUME: "volumes", SNAPSHOT: "volume_snapshots"}

Source = dict[str, str] | None
"""`{"image": id}`, `{"snapshot": id}`, `{"volume": id}`, or None for blank content."""
ContentInfo = dict[str, Any]
"""`bootable` and `image_metadata`, as the content determines them."""


def image_metadata(image: dict[str, Any]) -> dict[str, str]:
    """Return what a volume stores about the image that it was created from."""
    kept = {name: value for name, value in image.items() if name not in _IGNORED_IMAGE_FIELDS and value is not None}
    named = {"image_id": image["id"], "image_name": image.get("name") or ""}
    return {**named, **{name: str(value) for name, value in kept.items()}}


def image_properties(metadata: dict[str, str]) -> dict[str, str]:
    """Return the properties that an image created from the volume inherits."""
    return {name: value for name, value in metadata.items() if name not in _IMAGE_FIELDS | _IGNORED_IMAGE_FIELDS}


async def write(op: Operation, kind: str, row: Row, source: Source) -> dict[str, Any]:
    """Write the content of a volume or snapshot (`kind`) to a new file. Files of earlier runs are removed first."""
    await remove_earlier_files(op, row["id"])
    data_id = new_data_id(op)
    progress = Progress(op, _TABLES[kind], row["id"])
    info = await _write_file(op, _path(op, kind, row["id"], data_id), row["size"], source, progress)
    return {"data_id": data_id, **info}


def _path(op: Operation, kind: str, ident: str, data_id: str) -> Path:
    files = volume_files(op)
    return files.volume(ident, data_id) if kind == VOLUME else files.snapshot(ident, data_id)


async def _write_file(op: Operation, path: Path, size: int, source: Source, progress: Progress) -> ContentInfo:
    """Create a file of `size` GiB, durable on return."""
    files = volume_files(op)
    async with translate_errors(op), copy_slot(op.services.config), files.create(path, size * GIB) as file:
        if source is None:
            return {"bootable": False, "image_metadata": None}
        ((kind, ident),) = source.items()
        if kind == "image":
            return await _from_image(op, file, ident, progress)
        return await _from_copy(op, file, kind, ident, progress)


async def _from_copy(op: Operation, file: NewFile, kind: str, ident: str, progress: Progress) -> ContentInfo:
    row = await op.db.fetch_one(f"SELECT data_id, bootable, image_metadata FROM {_TABLES[kind]} WHERE id = $1", ident)
    if row is None or row["data_id"] is None:
        raise Failed(f"The {kind} {ident} to copy could not be found.")
    progress.total = file.size
    source = _path(op, kind, ident, row["data_id"])
    if kind != VOLUME or not await copy_in_use(op, ident, row["data_id"], source, file, progress):
        await file.copy(source, progress.report)
    metadata = row["image_metadata"]
    return {"bootable": row["bootable"], "image_metadata": orjson.loads(metadata) if metadata else None}


async def copy_in_use(
    op: Operation, volume_id: str, data_id: str, source: Path, file: NewFile, progress: Progress
) -> bool:
    """Take a consistent copy of a volume that hosts may write to. False if the volume is not exported."""
    if await file.clone(source):
        return True
    return await export_manager(op).copy(op.id, volume_id, data_id, file.path, file.size, progress.report)


async def _from_image(op: Operation, file: NewFile, image_id: str, progress: Progress) -> ContentInfo:
    token = await op.services.identity.token()
    image: dict[str, Any] | None = await op.services.image.show(image_id, token)
    if image is None or image["status"] not in ("active", "deactivated"):
        raise Failed(f"Image {image_id} could not be found, or has no data.")
    conversion.check_format(image["disk_format"], image["container_format"])
    progress.total = image["size"] or file.size
    async with op.services.image.download(image_id, token) as chunks:
        stream = _checked(chunks, image)
        if image["disk_format"] in conversion.RAW_FORMATS:
            await file.fill(stream, progress.report)
        else:
            await _convert(op, file, stream, image, progress)
    return {"bootable": True, "image_metadata": image_metadata(image)}


async def _convert(
    op: Operation, file: NewFile, stream: AsyncIterator[bytes], image: dict[str, Any], progress: Progress
) -> None:
    """Download the image to a temporary file and convert that."""
    disk_format = image["disk_format"]
    async with volume_files(op).temporary(f"{file.path.name}.source", image["size"]) as source:
        await source.fill(stream, progress.report)
        size = await conversion.virtual_size(source.path, disk_format)
        if size > file.size:
            raise TooBig(f"the disk in the image has {size} bytes, and the volume {file.size}")
        await conversion.to_raw(source.path, disk_format, file.path)


async def _checked(chunks: AsyncIterator[bytes], image: dict[str, Any]) -> AsyncIterator[bytes]:
    """Pass the stream on. Raises if it has another format, stalls, or does not have the size of the image."""
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
