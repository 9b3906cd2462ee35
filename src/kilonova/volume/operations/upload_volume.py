"""Upload a volume: its content becomes an image."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kilonova.image.client import ImageClient, ImageError
from kilonova.operations import Failed, Operation, Passing, Step
from kilonova.store import Row, Transaction
from kilonova.volume import conversion
from kilonova.volume.files import BLOCK, in_thread, turn
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import (
    COPY_SECONDS,
    LANE,
    Progress,
    clear,
    clear_all,
    explained,
    files_of,
    keeper_of,
    new_data,
    volume_of,
)
from kilonova.volume.volumes import model

ACTION = "os-volume_upload_image"


class UploadVolume(Operation):
    """`params`: `volume_id`, and `image`, what the image service is told of it, its id as well.

    The volume is in the status `uploading`.
    """

    kind = "upload volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("make image", make, undo=drop, deadline=300),
            Step("upload", upload, undo=remove_converted, deadline=COPY_SECONDS),
            Step("settle", settle, undo=None, why="one transaction: what it was", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.leave(tx, self.params["volume_id"], ACTION, ok=False)
        await messages.tell(tx, self, messages.UPLOAD, self.params["volume_id"], error)


async def make_image(images: ImageClient, image: dict[str, Any], token: str) -> None:
    """One that is there already is fine. Raises ImageError or Unreachable."""
    try:
        await images.create(image, token)
    except ImageError as error:
        if error.status != 409:
            raise


async def make(op: Operation) -> None:
    async with explained(op):
        await make_image(op.services.image, op.params["image"], await op.services.identity.token())


async def drop(op: Operation) -> None:
    """An image without the content is of no use to anybody. One that its owner has protected meanwhile stays."""
    image, token = op.params["image"], await op.services.identity.token()
    try:
        if image["protected"]:
            await _unprotect(op.services.image, image["id"], token)
        await op.services.image.delete(image["id"], token)
    except ImageError as error:
        if error.status != 403:
            raise Passing(f"the image service does not delete an image: {error}") from error


async def _unprotect(images: ImageClient, image_id: str, token: str) -> None:
    try:
        await images.patch(image_id, [{"op": "replace", "path": "/protected", "value": False}], token)
    except ImageError as error:
        if error.status != 404:
            raise


async def upload(op: Operation) -> None:
    volume, image = await volume_of(op), op.params["image"]
    token = await op.services.identity.token()
    async with explained(op), turn(op.services.config):
        found = await op.services.image.show(image["id"], token)
        if found is None:
            raise Failed(f"Image {image['id']} was deleted while the volume was uploaded.")
        if found["status"] == "active":
            return  # by an earlier run of this step
        progress = Progress(op, "volumes", volume["id"])
        async with _still(op, volume, progress) as source:
            if image["disk_format"] not in conversion.PLAIN:
                source = await _converted(op, source, image["disk_format"])
            progress.total = source.stat().st_size
            await op.services.image.upload(image["id"], _read(source, progress), token)
            if source.parent == files_of(op).parts:
                await files_of(op).remove(source)


async def remove_converted(op: Operation) -> None:
    await clear_all(op, op.params["volume_id"])


async def settle(op: Operation, tx: Transaction) -> None:
    await model.leave(tx, op.params["volume_id"], ACTION)


@asynccontextmanager
async def _still(op: Operation, volume: Row, progress: Progress) -> AsyncIterator[Path]:
    """The content as it is at one moment: of a volume that hosts reach a copy, for the time of the block."""
    files, volume_id = files_of(op), volume["id"]
    source = files.volume(volume_id, volume["data_id"])
    if not keeper_of(op).was_used:
        yield source
        return
    await clear(op, volume_id)
    async with files.aside(f"{volume_id}.{new_data(op)}", source.stat().st_size) as part:
        progress.total = part.size
        copied = await content.copy_in_use(op, volume_id, volume["data_id"], source, part, progress)
        yield part.path if copied else source


async def _converted(op: Operation, source: Path, disk_format: str) -> Path:
    """The volume in the image's format, in a file that is there for the time of the upload."""
    files = files_of(op)
    await clear(op, op.params["volume_id"])
    files.parts.mkdir(parents=True, exist_ok=True)
    target = files.parts / f"{op.params['volume_id']}.{new_data(op)}"
    await conversion.from_raw(source, target, disk_format)
    return target


async def _read(path: Path, progress: Progress) -> AsyncIterator[bytes]:
    fd = await in_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    done = 0
    try:
        while block := await in_thread(os.read, fd, BLOCK):
            done += len(block)
            await progress.moved(done)
            yield block
    finally:
        os.close(fd)
