"""Snapshots of servers, as images of the server's project: made, found again, and dropped when nobody needs them."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from kilonova.compute.operations.leftovers import FOR_EVER
from kilonova.compute.servers.images import FACTS
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, Passing, Step, begin
from kilonova.services import Services
from kilonova.store import Row, Transaction

NAME_LENGTH = 255
# Formats in which a disk can be written; a disk that came from anything else is written raw.
_DISKS = frozenset({"raw", "qcow2", "vhd", "vhdx", "vmdk", "vdi", "ploop"})
# What is true of an image's own bytes, or of where they are, and not of a disk that began with them.
_OWN = ("img_signature", "os_glance", "cache_in_nova", "bittorrent", "signature_verified")
_FACTS = frozenset({"disk_format", "container_format", "min_disk", "min_ram"})


class DropImage(Operation):
    """Delete an image that is of no more use, however long the image service is away.

    `params`: `image_id`.
    """

    kind = "drop image"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("delete image", _drop, undo=None, why="nobody needs the image", deadline=FOR_EVER),)


async def begin_drop(tx: Transaction, op: Operation, image_id: str | None) -> None:
    """Have the image deleted once `tx` is committed; for the last transaction of whatever made it useless."""
    if image_id is None:
        return
    await begin(
        tx,
        DropImage,
        params={"image_id": image_id},
        project_id=op.project_id,
        user_id=op.user_id,
        request_id=op.request_id,
    )


async def make(op: Operation, server: Row, name: str) -> str:
    """The id of an image that waits for the server's disk. What an earlier run made is found again."""
    image_id = snapshot_id(op.id)
    try:
        await create(op.services, image_id, server, name)
    except ImageError as error:
        raise Failed(f"The image service refused a snapshot: {error}") from error
    return image_id


async def create(
    services: Services, image_id: str, server: Row, name: str, properties: dict[str, str] | None = None
) -> None:
    """Have such an image, with these properties besides what the server's own image leaves it. Raises ImageError."""
    token = await services.identity.token()
    try:
        await services.image.create({"id": image_id, **_described(server, name, properties or {})}, token)
    except ImageError as error:
        if error.status != 409:
            raise


async def find(op: Operation, image_id: str) -> dict[str, Any]:
    """The image as it is now. Raises Failed if it is gone: it belongs to the project, which may delete it."""
    image: dict[str, Any] | None = await op.services.image.show(image_id, await op.services.identity.token())
    if image is None:
        raise Failed(f"The snapshot of the server, image {image_id}, could not be found.")
    return image


async def is_filled(op: Operation, image_id: str) -> bool:
    """Whether its data is there."""
    return bool((await find(op, image_id))["status"] == "active")


async def delete(op: Operation, image_id: str) -> None:
    """Have no such image. One that its owner has protected meanwhile stays: somebody wants it."""
    try:
        await op.services.image.delete(image_id, await op.services.identity.token())
    except ImageError as error:
        if error.status != 403:
            raise Passing(f"the image service does not delete image {image_id}: {error}") from error


def snapshot_id(operation_id: str) -> str:
    """An operation makes one snapshot, whose id is known before it is there."""
    return str(uuid.uuid5(uuid.UUID(operation_id), "snapshot"))


async def _drop(op: Operation) -> None:
    await delete(op, op.params["image_id"])


def _described(server: Row, name: str, properties: dict[str, str]) -> dict[str, Any]:
    """What the image service is told: whose disk this is, and what a server needs to boot from it."""
    base: dict[str, str] = orjson.loads(server["image_properties"])
    kept = {key: value for key, value in base.items() if key not in _FACTS and not key.startswith(_OWN)}
    disk_format = base.get("disk_format", "raw")
    return {
        **kept,
        "image_type": "snapshot",
        "image_location": "snapshot",
        "image_state": "available",
        "instance_uuid": server["id"],
        "user_id": server["user_id"],
        **({"base_image_ref": server["image_id"]} if server["image_id"] else {}),
        **{key: value for key, value in properties.items() if key not in FACTS and not key.startswith("os_glance")},
        "name": name[:NAME_LENGTH],
        "owner": server["project_id"],
        "visibility": "private",
        "disk_format": disk_format if disk_format in _DISKS else "raw",
        "container_format": "bare",
        "min_disk": orjson.loads(server["flavor"])["disk"] or int(base.get("min_disk", 0)),
        "min_ram": int(base.get("min_ram", 0)),
    }
