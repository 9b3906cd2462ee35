"""Writes the file of a volume or snapshot: blank, or from an image, a snapshot or another volume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct, structs

from kilonova import image_hash
from kilonova.http.client import Unreachable
from kilonova.image.client import ATTRIBUTES, Image
from kilonova.operations import Failed, Operation
from kilonova.volume import conversion
from kilonova.volume.files import GIB, NewFile, TooBig, allocated_bytes, copy_slot
from kilonova.volume.operations.common import (
    Progress,
    export_manager,
    new_data_id,
    remove_earlier_files,
    translate_errors,
    volume_files,
)
from kilonova.volume.snapshots.model import Snapshot
from kilonova.volume.volumes.model import Volume

# Timeout for the next chunk of an image.
CHUNK_SECONDS = 60.0
# Attributes of an image that the image metadata of a volume has beside the image's properties.
_KEPT_ATTRIBUTES = ("disk_format", "container_format", "min_disk", "min_ram", "size", "checksum")
_NOT_PROPERTIES = ATTRIBUTES | {"image_id", "image_name"}

VOLUME, SNAPSHOT = "volume", "snapshot"
_RECORDS: dict[str, type[Volume | Snapshot]] = {VOLUME: Volume, SNAPSHOT: Snapshot}

Source = dict[str, str] | None
"""`{"image": id}`, `{"snapshot": id}`, `{"volume": id}`, or None for blank content."""


class Content(Struct, frozen=True):
    """New content of a volume or snapshot. It determines `bootable` and `image_metadata`."""

    data_id: str
    bootable: bool = False
    image_metadata: dict[str, str] | None = None


def image_metadata(image: Image) -> dict[str, str]:
    """Return what a volume stores about the image that it was created from."""
    named = {"image_id": image.id, "image_name": image.name or ""}
    return {**named, **image.properties_with(*_KEPT_ATTRIBUTES)}


def image_properties(metadata: dict[str, str]) -> dict[str, str]:
    """Return the properties that an image created from the volume inherits."""
    return {name: value for name, value in metadata.items() if name not in _NOT_PROPERTIES}


async def write(op: Operation, kind: str, owner: Volume | Snapshot, source: Source, expected_hash: str = "") -> Content:
    """Write the content of a volume or snapshot (`kind`) to a new file. Files of earlier runs are removed first.

    `expected_hash` is the hash of the image when the content was requested; empty if it is unknown.
    """
    await remove_earlier_files(op, owner.id)
    content = Content(new_data_id(op))
    progress = Progress(op, owner.table, owner.id)
    path = _path(op, kind, owner.id, content.data_id)
    return await _write_file(op, path, owner.size, source, expected_hash, content, progress)


def _path(op: Operation, kind: str, ident: str, data_id: str) -> Path:
    files = volume_files(op)
    return files.volume(ident, data_id) if kind == VOLUME else files.snapshot(ident, data_id)


async def _write_file(
    op: Operation, path: Path, size: int, source: Source, expected_hash: str, content: Content, progress: Progress
) -> Content:
    """Create a file of `size` GiB, durable on return."""
    files = volume_files(op)
    async with translate_errors(op), copy_slot(op.services), files.create(path, size * GIB) as file:
        if source is None:
            return content
        ((kind, ident),) = source.items()
        if kind == "image":
            metadata = await _from_image(op, file, ident, expected_hash, progress)
            return structs.replace(content, bootable=True, image_metadata=metadata)
        copied = await _from_copy(op, file, kind, ident, progress)
        return structs.replace(content, bootable=copied.bootable, image_metadata=copied.image_metadata)


async def _from_copy(op: Operation, file: NewFile, kind: str, ident: str, progress: Progress) -> Volume | Snapshot:
    """Copy the content of a volume or snapshot, and return that."""
    record = _RECORDS[kind]
    found = record.decode_optional(await op.db.fetch_one(f"SELECT * FROM {record.table} WHERE id = $1", ident))
    if found is None or found.data_id is None:
        raise Failed(f"The {kind} {ident} to copy could not be found.")
    progress.total = file.size
    source = _path(op, kind, ident, found.data_id)
    if kind != VOLUME or not await copy_in_use(op, ident, found.data_id, source, file, progress):
        await file.copy(source, progress.report)
    return found


async def copy_in_use(
    op: Operation, volume_id: str, data_id: str, source: Path, file: NewFile, progress: Progress
) -> bool:
    """Take a consistent copy of a volume that hosts may write to. False if the volume is not exported."""
    if await file.clone(source):
        return True
    file.check_space(allocated_bytes(source))
    return await export_manager(op).copy(op.id, volume_id, data_id, file.path, file.size, progress.report)


async def _from_image(
    op: Operation, file: NewFile, image_id: str, expected_hash: str, progress: Progress
) -> dict[str, str]:
    """Write the image to the file, and return what the volume stores about the image."""
    image = await op.services.image.show(image_id, await op.services.identity.token())
    if image is None or image.status not in ("active", "deactivated"):
        raise Failed(f"Image {image_id} could not be found, or has no data.")
    if image_hash.is_replaced(expected_hash, image.hash):
        raise Failed(
            f"Image {image_id} was replaced: the hash of its data is {image.hash}, and was {expected_hash} when the"
            " volume was requested."
        )
    disk_format = conversion.checked_format(image.disk_format, image.container_format)
    progress.total = image.size or file.size
    data = _ImageData(image.id, disk_format, image.size, expected_hash or image.hash)
    if disk_format in conversion.RAW_FORMATS:
        await _download(op, file, data, progress)
    else:
        await _convert(op, file, data, progress)
    return image_metadata(image)


class _ImageData(Struct, frozen=True):
    """Identifies the data of an image, which a copy must match. `hash` is empty if the image has none."""

    image_id: str
    disk_format: str
    size: int | None
    hash: str


async def _convert(op: Operation, file: NewFile, data: _ImageData, progress: Progress) -> None:
    """Download the image to a temporary file and convert that."""
    async with volume_files(op).temporary(f"{file.path.name}.source", data.size or 0) as source:
        await _download(op, source, data, progress)
        virtual_size = await conversion.virtual_size(source.path, data.disk_format)
        if virtual_size > file.size:
            raise TooBig(f"the disk in the image has {virtual_size} bytes, and the volume {file.size}")
        file.check_space(await conversion.data_bytes(source.path, data.disk_format))
        await conversion.to_raw(source.path, data.disk_format, file.path)


async def _download(op: Operation, file: NewFile, data: _ImageData, progress: Progress) -> None:
    """Write the data of the image to the file. Raises Unacceptable if the data has another hash."""
    hasher = _new_hasher(data)
    async with op.services.image.download(data.image_id, await op.services.identity.token()) as chunks:
        await file.fill(_checked(chunks, data.disk_format, data.size), progress.report, hasher)
    if hasher is None:
        return
    found = f"{image_hash.algorithm_of(data.hash)}:{hasher.hexdigest()}"
    if found != data.hash:
        raise conversion.Unacceptable(
            f"the data of image {data.image_id} is damaged: its hash is {found}, not {data.hash}"
        )


def _new_hasher(data: _ImageData) -> image_hash.Hasher | None:
    try:
        return image_hash.new_hasher(data.hash) if data.hash else None
    except image_hash.UnsupportedAlgorithm as error:
        raise conversion.Unacceptable(f"the data of image {data.image_id} cannot be checked: {error}") from None


async def _checked(chunks: AsyncIterator[bytes], disk_format: str, image_size: int | None) -> AsyncIterator[bytes]:
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
            conversion.check_head(disk_format, head)
        for each in waiting:
            yield each
        waiting = []
    if len(head) < conversion.HEAD:
        conversion.check_head(disk_format, head)
        for each in waiting:
            yield each
    if image_size is not None and size != image_size:
        raise Unreachable(f"the image service sent {size} of {image_size} bytes")


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(CHUNK_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        raise Unreachable("the image service does not send the image") from None
