"""Upload a volume to the image service."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from kilonova.image.client import ImageClient, ImageError
from kilonova.operations import Entry, Failed, Operation, Step, TransientError, transaction_step
from kilonova.store import Transaction
from kilonova.volume import conversion
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.files import BLOCK, allocated_bytes, check_space, copy_slot, in_thread
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import (
    COPY_SECONDS,
    LANE,
    Progress,
    export_manager,
    get_volume,
    new_data_id,
    remove_all_files,
    remove_earlier_files,
    translate_errors,
    volume_files,
)
from kilonova.volume.volumes import model
from kilonova.volume.volumes.model import Volume

ACTION = "os-volume_upload_image"


class UploadVolumeParams(Struct, frozen=True):
    """`image` is the body for the image service, with the image's id."""

    volume_id: str
    image: dict[str, object]

    @property
    def image_id(self) -> str:
        return str(self.image["id"])

    @property
    def disk_format(self) -> str:
        return str(self.image["disk_format"])


class UploadVolume(Operation[UploadVolumeParams]):
    """The volume is in the status `uploading`."""

    kind = kinds.UPLOAD_VOLUME
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[UploadVolume], ...]:
        return (
            Step("make image", create, undo=delete_image, deadline=300),
            Step("upload", upload, undo=remove_converted, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the status"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.end_transition(tx, self.params.volume_id, ACTION, ok=False)
        await messages.record_failure(tx, self, messages.UPLOAD, self.params.volume_id, error)


async def create_image(images: ImageClient, image: Mapping[str, object], token: str) -> None:
    """Create the image unless it exists. Raises ImageError or Unreachable."""
    try:
        await images.create(image, token)
    except ImageError as error:
        if error.status != 409:
            raise


async def create(op: UploadVolume) -> None:
    async with translate_errors(op):
        await create_image(op.services.image, op.params.image, await op.services.identity.token())


async def delete_image(op: UploadVolume) -> None:
    """Delete the image without content. An image that its owner protected meanwhile stays."""
    image_id, token = op.params.image_id, await op.services.identity.token()
    try:
        if op.params.image["protected"]:
            await _unprotect(op.services.image, image_id, token)
        await op.services.image.delete(image_id, token)
    except ImageError as error:
        if error.status != 403:
            raise TransientError(f"the image service does not delete an image: {error}") from error


async def _unprotect(images: ImageClient, image_id: str, token: str) -> None:
    try:
        await images.patch(image_id, [{"op": "replace", "path": "/protected", "value": False}], token)
    except ImageError as error:
        if error.status != 404:
            raise


async def upload(op: UploadVolume) -> None:
    volume, image_id, disk_format = await get_volume(op), op.params.image_id, op.params.disk_format
    token = await op.services.identity.token()
    async with translate_errors(op), copy_slot(op.services):
        found = await op.services.image.show(image_id, token)
        if found is None:
            raise Failed(f"Image {image_id} was deleted while the volume was uploaded.")
        if found.status == "active":
            return  # by an earlier run of this step
        progress = Progress(op, "volumes", volume.id)
        async with _consistent_copy(op, volume, progress) as source:
            if disk_format not in conversion.RAW_FORMATS:
                source = await _convert(op, source, disk_format)
            progress.total = source.stat().st_size
            await op.services.image.upload(image_id, _read(source, progress), token)
            if source.parent == volume_files(op).parts:
                await volume_files(op).remove(source)


async def remove_converted(op: UploadVolume) -> None:
    await remove_all_files(op, op.params.volume_id)


async def settle(op: UploadVolume, tx: Transaction) -> None:
    await model.end_transition(tx, op.params.volume_id, ACTION)


@asynccontextmanager
async def _consistent_copy(op: UploadVolume, volume: Volume, progress: Progress) -> AsyncIterator[Path]:
    """The file to upload: the volume's own, or a temporary copy if hosts may write to the volume."""
    files, volume_id = volume_files(op), volume.id
    source = files.volume(volume_id, str(volume.data_id))
    if not export_manager(op).was_used:
        yield source
        return
    await remove_earlier_files(op, volume_id)
    async with files.temporary(f"{volume_id}.{new_data_id(op)}", source.stat().st_size) as file:
        progress.total = file.size
        copied = await content.copy_in_use(op, volume_id, str(volume.data_id), source, file, progress)
        yield file.path if copied else source


async def _convert(op: UploadVolume, source: Path, disk_format: str) -> Path:
    """Write the volume in the image's format to a file that exists during the upload."""
    files = volume_files(op)
    await remove_earlier_files(op, op.params.volume_id)
    files.parts.mkdir(parents=True, exist_ok=True)
    check_space(files.parts, allocated_bytes(source), files.reserved_gb)
    target = files.parts / f"{op.params.volume_id}.{new_data_id(op)}"
    await conversion.from_raw(source, target, disk_format)
    return target


async def _read(path: Path, progress: Progress) -> AsyncIterator[bytes]:
    fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    done = 0
    try:
        while block := await in_thread(os.read, fd, BLOCK):
            done += len(block)
            await progress.report(done)
            yield block
    finally:
        os.close(fd)
