"""Rebuild a volume-backed server: replace the content of its boot volume by an image, and build a new guest.

Until the volume service accepts the re-image, every step can be undone and the old data boots. After that the old data
is lost: a failure leaves the server in ERROR, with its volume reserved and connected to no host.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute import operation_kinds as kinds
from kilonova.compute import volume_messages
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.external_events.schemas import VOLUME_REIMAGED
from kilonova.compute.host_calls import is_refused_too_often
from kilonova.compute.operations.steps import cleanup, guest, images, plugged, power, volumes
from kilonova.compute.operations.steps.guest import BUILD, PARK, STOP
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model
from kilonova.http.client import Unreachable
from kilonova.operations import (
    Cancelled,
    Entry,
    Failed,
    Operation,
    Step,
    StepResult,
    TransientError,
    Wait,
    transaction_step,
)
from kilonova.store import Reader, Transaction
from kilonova.volume.client import Volume


class Reservation(Struct, frozen=True):
    """The empty attachment, the host that was connected (empty: none), and the image of the old content."""

    attachment_id: str
    host: str
    image_id: str | None


class ReleasedVolume(Struct, frozen=True):
    """`updated_at` shows later changes of the volume."""

    updated_at: str | None


RESERVE = StepResult("reserve volume", Reservation)
RELEASE = StepResult("release volume", ReleasedVolume)
SAVE = StepResult("save attachment", str)
REIMAGE = StepResult("re-image volume", bool)
WAIT, CONNECT, COMPLETE = "wait for the volume", "connect volume", "complete volume"
POLL_SECONDS = 3.0
# After so many calls without an answer of the volume service, the step fails.
ATTEMPTS = 4
DOWNLOADING, ERROR, ATTACHING, IN_USE = "downloading", "error", "attaching", "in-use"


class ReimageParams(Struct, frozen=True, kw_only=True):
    """`image_bytes` determines the time limit. `image_hash` is the hash of the image when the rebuild was requested.

    `grace` and `columns` are as of Rebuild.
    """

    volume_id: str
    image_id: str
    image_bytes: int
    grace: int | UnsetType = UNSET
    columns: dict[str, str | None] = {}
    image_hash: str = ""


class Reimage(Operation[ReimageParams]):
    kind = kinds.REIMAGE
    action = "rebuild"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Entry[Reimage], ...]:
        reserved = f"undoing '{RESERVE}' has the volume connected again"
        return (
            Step(STOP, guest.stop_existing, undo=start_again, deadline=power.stop_deadline),
            Step(PARK, guest.park_existing, undo=unpark, deadline=300),
            # Not cancellable: the volume service might create the attachment after the undo looked for it.
            Step(RESERVE, reserve, undo=reconnect, deadline=120, cancellable=False),
            Step(RELEASE, release, undo=None, why=reserved, deadline=120),
            Step(SAVE, save, undo=None, why=reserved, deadline=30, transaction=True),
            Step(REIMAGE, request_reimage, undo=None, why="overwritten data is lost", deadline=120, cancellable=False),
            Wait(WAIT, key=event_key, deadline=reimage_seconds, poll=is_over, poll_every=POLL_SECONDS),
            Step(CONNECT, connect, undo=disconnect, deadline=lambda op: 300 + reimage_seconds(op), cancellable=False),
            Step(BUILD, guest.rebuild, undo=destroy, deadline=600),
            # A failure would leave the server in ERROR, because its old data is lost.
            plugged.wait_for(guest.expected_ports, always_continues=True),
            Step(COMPLETE, complete, undo=None, why=f"undoing '{CONNECT}' deletes the attachment", deadline=120),
            transaction_step("settle", guest.settle_rebuilt, "the server's row; begins the cleanup of the old guest"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await guest.remove_columns(self, tx)
        server_id = str(self.server_id)
        if isinstance(error, Cancelled) and await model.is_being_deleted(tx, server_id):
            return
        record = model.note_fault if await _is_connected(self, tx) else model.fail
        await record(tx, server_id, str(error), error.fault)


# The old guest, kept while its boot volume has the old data


async def start_again(op: Reimage) -> None:
    if await _is_connected(op):
        await guest.start_again(op)


async def unpark(op: Reimage) -> None:
    if await _is_connected(op):
        await guest.unpark(op)
    else:
        server = await server_of(op)
        await cleanup.clean_up(op, server.host_name, f"undo {PARK}", slot=op.id)


async def destroy(op: Reimage) -> None:
    """Remove the new guest. On an unreachable host it stays with its server, stopped, without its volume."""
    server = await server_of(op)
    await cleanup.clean_up(op, server.host_name, f"undo {BUILD}", defer_if_unreachable=False)
    await cleanup.restore(op, server.host_name, f"stop after undo {BUILD}", running=False)


# The volume, reserved while no host is connected


async def reserve(op: Reimage) -> Reservation:
    """Reserve the volume."""
    device, volume = await _root(op), await _volume(op)
    if volume.status in (DOWNLOADING, ERROR):
        message = f"Volume {volume.id} is in status {volume.status}; an operator has to look at it first."
        raise (
            await volume_messages.failure_with_message(op, volume.id, message)
            if volume.status == ERROR
            else Failed(message)
        )
    return Reservation(await _empty_attachment(op, device), device.connected_host, _image_id(volume))


async def _empty_attachment(op: Reimage, device: BlockDevice) -> str:
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        there = await volumes.attachments(op, device.volume, auth)
        found = next((one for one in there if one.status == volumes.RESERVED), None)
        if found is None:
            found = await op.services.volume.create_attachment(device.volume, str(op.server_id), auth)
    return found.id


async def release(op: Reimage) -> ReleasedVolume:
    """Delete the other attachments."""
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        for attachment in await volumes.attachments(op, (await _root(op)).volume, auth):
            if attachment.id != op.result(RESERVE).attachment_id:
                await op.services.volume.delete_attachment(attachment.id, auth)
    return ReleasedVolume((await _volume(op)).updated_at)


async def save(op: Reimage, tx: Transaction) -> str:
    attachment_id = op.result(RESERVE).attachment_id
    await devices.set_attachment(tx, (await _root(op, tx)).uuid, attachment_id)
    return attachment_id


async def reconnect(op: Reimage) -> None:
    """Undo `reserve`: connect the volume again, if it still has the old data."""
    if await _is_lost(op):
        return
    device, reservation = await _root(op), op.find_result(RESERVE)
    host = device.connected_host if reservation is None else reservation.host
    try:
        await (volumes.restore_connection(op, host) if host else volumes.reserve(op, device))
    except Failed:
        if not await is_refused_too_often(op):
            raise


async def _is_lost(op: Reimage) -> bool:
    """Whether the old data is or may be lost: the volume service may have accepted a call whose answer did not arrive.

    If the same image was written again, only the volume's `updated_at` shows it.
    """
    if op.find_result(REIMAGE):
        return True
    if op.find_result(SAVE) is None:
        return False
    volume = await _find_volume(op)
    if volume is None or volume.status == ERROR:
        return True
    if volume.status == DOWNLOADING:
        raise TransientError(f"volume {volume.id} is being written to")
    if volume.status in (ATTACHING, IN_USE):
        return False  # an earlier run of the undo has connected it
    return volume.updated_at != op.result(RELEASE).updated_at


# The content


async def request_reimage(op: Reimage) -> bool:
    """Request the re-image, unless an earlier run did: only this operation can re-image the reserved volume."""
    volume = await _volume(op)
    if volume.status == DOWNLOADING or _is_done(op, volume):
        return True
    await images.check_unchanged(op, op.params.image_id, op.params.image_hash)
    auth = await op.services.identity.auth()
    try:
        async with volumes.volume_errors():
            await op.services.volume.reimage(volume.id, op.params.image_id, auth)
    except Unreachable as error:
        if op.attempt < ATTEMPTS:
            raise
        raise Failed(f"The volume service could not {REIMAGE}: {error}") from error
    return True


def event_key(op: Reimage) -> str:
    return f"{VOLUME_REIMAGED}:{op.server_id}:{op.params.volume_id}"


def reimage_seconds(op: Reimage) -> float:
    """Time limit in seconds, by the size of the image."""
    seconds = op.services.config.compute.reimage_seconds_per_gib
    return seconds * (1 + op.params.image_bytes / 2**30)


async def is_over(op: Reimage) -> bool | None:
    """Poll the volume, in case its event got lost."""
    return None if (await _volume(op)).status == DOWNLOADING else True


async def connect(op: Reimage) -> None:
    """Connect the volume. Its status decides, not the event, which may be late or wrong."""
    server, volume = await server_of(op), await _volume(op)
    if volume.status == DOWNLOADING:
        raise TransientError(f"volume {volume.id} is being written to")
    if volume.status == ERROR:
        raise await volume_messages.failure_with_message(
            op,
            volume.id,
            f"The volume service could not write image {op.params.image_id} to volume {volume.id}, which is in"
            " status error. The server can be rebuilt when an operator has repaired the volume.",
        )
    await volumes.connect(op, await _root(op), server.host_name)


async def disconnect(op: Reimage) -> None:
    await volumes.reserve(op, await _root(op))


async def complete(op: Reimage) -> None:
    await volumes.complete_attachments(op, (await _root(op)).attachment)


# Queries


async def _root(op: Reimage, reader: Reader | None = None) -> BlockDevice:
    device = await devices.root_of(reader or op.db, str(op.server_id))
    if device is None:
        raise Failed(f"Instance {op.server_id} does not boot from a volume.")
    return device


async def _is_connected(op: Reimage, reader: Reader | None = None) -> bool:
    return bool((await _root(op, reader)).connection)


async def _volume(op: Reimage) -> Volume:
    found = await _find_volume(op)
    if found is None:
        raise Failed(f"Volume {op.params.volume_id} could not be found.")
    return found


async def _find_volume(op: Reimage) -> Volume | None:
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        return await op.services.volume.show(op.params.volume_id, auth)


def _image_id(volume: Volume) -> str | None:
    """The id of the image that the volume was created or re-imaged from."""
    return volume.image_metadata.get("image_id")


def _is_done(op: Reimage, volume: Volume) -> bool:
    """Whether the volume has the new image's content and had another one before."""
    return _image_id(volume) == op.params.image_id != op.result(RESERVE).image_id
