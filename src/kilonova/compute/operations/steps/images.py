"""Steps for snapshots of servers: create the image, have the host upload the disk, delete unneeded images."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from kilonova import image_hash
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import HostCallFailed, call, is_refused_too_often
from kilonova.compute.operations.steps.server import image_transfer, server_of
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import Snapshot
from kilonova.hosts.transport import ImageBusy
from kilonova.identity.client import RoleMissing
from kilonova.image.client import Image, ImageError, is_property
from kilonova.operations import Failed, Operation, Step, StepResult, TransientError, begin, get_kind
from kilonova.services import Services
from kilonova.store import Transaction

NAME_LENGTH = 255
MAKE = StepResult("make image", str)
# The hash of the image's data.
SNAPSHOT = StepResult("snapshot", str)
UPLOADING = "image_uploading"
HOUR_SECONDS = 3600.0
# Formats in which a host can write a disk. A disk of any other format is written raw.
_DISK_FORMATS = frozenset({"raw", "qcow2", "vhd", "vhdx", "vmdk", "vdi", "ploop"})
# Properties of the base image's own data, which its snapshots do not inherit.
_OF_BASE_IMAGE = ("img_signature", "cinder_encryption_key", "cache_in_nova", "bittorrent", "signature_verified")


class DeleteImageParams(Struct, frozen=True):
    image_id: str


class NewImageParams(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...


class Requester(Protocol):
    """An operation or an API request that begins the deletion of an image."""

    @property
    def project_id(self) -> str | None: ...

    @property
    def user_id(self) -> str | None: ...

    @property
    def request_id(self) -> str | None: ...


async def begin_delete(tx: Transaction, requester: Requester, image_id: str | None) -> None:
    """Begin the deletion of an image that is no longer needed once `tx` is committed."""
    if image_id is None:
        return
    await begin(
        tx,
        get_kind(kinds.DELETE_IMAGE, DeleteImageParams),
        params=DeleteImageParams(image_id),
        project_id=requester.project_id,
        user_id=requester.user_id,
        request_id=requester.request_id,
    )


def make_image_step(task_state: str) -> Step[Operation[NewImageParams]]:
    """The first step of an operation that creates an image."""
    # Not cancellable: the image service might create the image after the undo looked for it.
    return Step(MAKE, _make_named, undo=drop, deadline=120, task_state=task_state, cancellable=False)


def snapshot_step(task_state: str = UPLOADING) -> Step[Operation]:
    """Has the guest's host write the disk to the image."""
    filled = f"the image that it fills is deleted by undoing '{MAKE}'"
    return Step(SNAPSHOT, fill, undo=None, why=filled, deadline=6 * HOUR_SECONDS, task_state=task_state)


async def _make_named(op: Operation[NewImageParams]) -> str:
    return await make(op, await server_of(op), op.params.name, op.params.metadata)


async def make(op: Operation, server: Server, name: str, properties: Mapping[str, str] = {}) -> str:
    """Create a queued image for the server's disk, or find the one of an earlier run. Returns its id."""
    image_id = snapshot_id(op.id)
    try:
        await create(op.services, image_id, server, name, properties)
    except ImageError as error:
        raise Failed(f"The image service refused the image: {error}") from error
    except RoleMissing as error:
        raise Failed("Images cannot be made for servers of this project.", fault=str(error)) from error
    return image_id


async def drop(op: Operation) -> None:
    """Undo `make`."""
    await delete(op, snapshot_id(op.id))


async def fill(op: Operation) -> str | None:
    """Have the host upload the disk, unless an earlier run did. Any data since the request is a valid snapshot.

    Returns the hash of the data.
    """
    server, image_id = await server_of(op), op.find_result(MAKE)
    if image_id is None:
        return None
    try:
        if not await is_filled(op, image_id):
            data = image_transfer(op, image_id, server.host_name, "PUT")
            await call(op, server.host_name, SNAPSHOT.name, Snapshot(guest_id=server.id, data=data))
    except Failed as failure:
        if not await is_filled(op, image_id):
            is_busy = isinstance(failure, HostCallFailed) and isinstance(failure.outcome, ImageBusy)
            if is_busy and not await is_refused_too_often(op):
                # The image service may not have seen yet that an earlier upload was cut off. At a Glance that was
                # killed meanwhile it never ends.
                raise TransientError("an earlier upload of the snapshot has not ended") from failure
            raise
    return (await find(op, image_id)).hash or None


async def create(
    services: Services, image_id: str, server: Server, name: str, properties: Mapping[str, str] = {}
) -> None:
    """Create the image with these properties and those inherited from the server's image. Idempotent.

    Raises ImageError, Unreachable and IdentityError.
    """
    token = await services.image.owner_token(services.identity, server.project_id)
    try:
        await services.image.create({"id": image_id, **_described(server, name, properties)}, token)
    except ImageError as error:
        if error.status != 409:
            raise


async def find(op: Operation, image_id: str) -> Image:
    """The image. Raises Failed if the project has deleted it."""
    image = await op.services.image.show(image_id, await op.services.identity.token())
    if image is None:
        raise Failed(f"The snapshot of the server, image {image_id}, could not be found.")
    return image


async def check_not_replaced(op: Operation, server: Server) -> None:
    """Raise Failed if the server's image has other data than when the server was created from it.

    Hosts check the data that they fetch. This check also holds for hosts that fetch no data.
    """
    if server.image_id is not None:
        await check_unchanged(op, server.image_id, server.image_hash)


async def check_unchanged(op: Operation, image_id: str, recorded: str | None) -> None:
    """Raise Failed if the image has other data than when its hash was recorded. A deleted image passes."""
    if not recorded:
        return
    image = await op.services.image.show(image_id, await op.services.identity.token())
    if image is not None:
        check_hash(image, recorded)


def check_hash(image: Image, recorded: str | None) -> None:
    if image_hash.is_replaced(recorded or "", image.hash):
        raise Failed(
            f"Image {image.id} was replaced: the hash of its data is {image.hash}, and that of the server's image is"
            f" {recorded}."
        )


async def is_filled(op: Operation, image_id: str) -> bool:
    """Whether the image's data is uploaded."""
    return (await find(op, image_id)).status == "active"


async def delete(op: Operation, image_id: str) -> None:
    """Delete the image. An image that its owner has protected stays. Idempotent."""
    try:
        await op.services.image.delete(image_id, await op.services.identity.token())
    except ImageError as error:
        if error.status != 403:
            raise TransientError(f"the image service does not delete image {image_id}: {error}") from error


def snapshot_id(operation_id: str) -> str:
    """The id of the operation's snapshot, known before the image exists."""
    return str(uuid.uuid5(uuid.UUID(operation_id), "snapshot"))


def _described(server: Server, name: str, properties: Mapping[str, str]) -> dict[str, object]:
    """The image's attributes: its owner, and the properties that a server needs to boot from it."""
    base = server.image_properties
    kept = {key: value for key, value in base.items() if is_property(key) and not key.startswith(_OF_BASE_IMAGE)}
    disk_format = base.get("disk_format", "raw")
    return {
        **kept,
        "image_type": "snapshot",
        "image_location": "snapshot",
        "image_state": "available",
        "instance_uuid": server.id,
        "user_id": server.user_id,
        **({"base_image_ref": server.image_id} if server.image_id else {}),
        **{key: value for key, value in properties.items() if is_property(key)},
        "name": name[:NAME_LENGTH],
        "owner": server.project_id,
        "visibility": "private",
        "disk_format": disk_format if disk_format in _DISK_FORMATS else "raw",
        "container_format": "bare",
        "min_disk": server.flavor.disk or int(base.get("min_disk", 0)),
        "min_ram": int(base.get("min_ram", 0)),
    }
