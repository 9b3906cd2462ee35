"""Re-image: a server that boots from a volume gets a new guest, and its volume the content of an image.

Until the volume service has agreed to it everything can be taken back, and the old data boots. After that there is no
old data any more: a failure leaves the server in error, with its volume reserved and connected to no host.
"""

from __future__ import annotations

from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.external_events.schemas import VOLUME_REIMAGED
from kilonova.compute.operations import leftovers, rebuild, resize, stopping, volumes
from kilonova.compute.operations.common import server_of
from kilonova.compute.operations.resize import BUILD, PARK, STOP
from kilonova.compute.servers import model
from kilonova.compute.volumes import reasons
from kilonova.http.client import Unreachable
from kilonova.identity.client import Auth
from kilonova.operations import Cancelled, Failed, Operation, Passing, Step, Wait
from kilonova.store import Reader, Row, Transaction

RESERVE, RELEASE, SAVE, REIMAGE, WAIT = (
    *("reserve volume", "release volume", "save attachment", "re-image volume", "wait for the volume"),
)
CONNECT, COMPLETE = "connect volume", "complete volume"
POLL_SECONDS = 3.0
# So often the volume service may fail to answer before that counts as a refusal.
ATTEMPTS = 4
DOWNLOADING, ERROR, ATTACHING, IN_USE = "downloading", "error", "attaching", "in-use"


class Reimage(Operation):
    """`params`: `columns` as of Rebuild, `volume_id`, `image_id` and `image_bytes`, by which its time is measured."""

    kind = "reimage"
    action = "rebuild"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Step | Wait, ...]:
        reserved = f"undoing '{RESERVE}' has the volume connected again"
        return (
            Step(STOP, rebuild.stop, undo=start_again, deadline=stopping.deadline),
            Step(PARK, rebuild.park, undo=unpark, deadline=300),
            # Else the volume service might make it after the undo has looked for it.
            Step(RESERVE, reserve, undo=give_back, deadline=120, cancellable=False),
            Step(RELEASE, release, undo=None, why=reserved, deadline=120),
            Step(SAVE, save, undo=None, why=reserved, deadline=30, transaction=True),
            Step(REIMAGE, ask, undo=None, why="what is overwritten is lost", deadline=120, cancellable=False),
            Wait(WAIT, key=event_key, deadline=patience, poll=is_over, poll_every=POLL_SECONDS),
            Step(CONNECT, connect, undo=disconnect, deadline=lambda op: 300 + patience(op), cancellable=False),
            Step(BUILD, rebuild.build, undo=destroy, deadline=600),
            Step(COMPLETE, complete, undo=None, why=f"undoing '{CONNECT}' deletes the attachment", deadline=120),
            Step(
                "settle",
                rebuild.settle,
                undo=None,
                why="one transaction: state and all that was asked for, and the order to discard the old guest",
                deadline=30,
                transaction=True,
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        server_id = str(self.server_id)
        if isinstance(error, Cancelled) and await model.is_being_deleted(tx, server_id):
            return
        tell = model.note_fault if await _is_connected(self, tx) else model.fail
        await tell(tx, server_id, str(error), error.fault)


# The guest that was: kept for as long as there is anything for it to boot from


async def start_again(op: Operation) -> None:
    if await _is_connected(op):
        await resize.start_again(op)


async def unpark(op: Operation) -> None:
    if await _is_connected(op):
        await resize.unpark(op)
    else:
        server = await server_of(op)
        await leftovers.clear(op, server["host"], f"undo {PARK}", slot=op.id)


async def destroy(op: Operation) -> None:
    """One that a silent host may keep is its server's, and stands still: the volume is not there for it any more."""
    server = await server_of(op)
    await leftovers.clear(op, server["host"], f"undo {BUILD}", leave=False)
    await leftovers.restore(op, server["host"], f"stop after undo {BUILD}", running=False)


# The volume: reserved, so that nobody else takes it while no host has it


async def reserve(op: Operation) -> dict[str, Any]:
    """The result: the empty attachment, to which host the volume is connected, and what it was made of."""
    device, volume = await _root(op), await _volume(op)
    if volume["status"] in (DOWNLOADING, ERROR):
        message = f"Volume {volume['id']} is in status {volume['status']}; an operator has to look at it first."
        raise await reasons.failure(op, volume["id"], message) if volume["status"] == ERROR else Failed(message)
    return {
        "attachment_id": await _empty_attachment(op, device),
        "host": volumes.way_of(device).get(volumes.HOST, ""),
        "image_id": image_id_of(volume),
    }


async def _empty_attachment(op: Operation, device: Row) -> str:
    auth = await op.services.identity.auth()
    async with volumes.explained():
        there = await _attachments(op, device, auth)
        found = next((one for one in there if one["status"] == volumes.RESERVED), None)
        if found is None:
            found = await op.services.volume.create_attachment(device["volume_id"], str(op.server_id), auth)
    return str(found["id"])


async def release(op: Operation) -> dict[str, str | None]:
    """The result: when the volume last changed, by which a change since then can be told."""
    auth = await op.services.identity.auth()
    async with volumes.explained():
        for attachment in await _attachments(op, await _root(op), auth):
            if attachment["id"] != op.results[RESERVE]["attachment_id"]:
                await op.services.volume.delete_attachment(attachment["id"], auth)
    return {"updated_at": (await _volume(op))["updated_at"]}


async def _attachments(op: Operation, device: Row, auth: Auth) -> list[volumes.Item]:
    found: list[volumes.Item] = await op.services.volume.attachments(
        auth, volume_id=device["volume_id"], instance_id=str(op.server_id)
    )
    return found


async def save(op: Operation, tx: Transaction) -> str:
    attachment_id: str = op.results[RESERVE]["attachment_id"]
    await devices.set_attachment(tx, (await _root(op, tx))["uuid"], attachment_id)
    return attachment_id


async def give_back(op: Operation) -> None:
    """Have the volume connected as it was, if it is what it was."""
    if await _is_lost(op):
        return
    device = await _root(op)
    host = op.results[RESERVE]["host"] if RESERVE in op.results else volumes.way_of(device).get(volumes.HOST, "")
    try:
        await (volumes.put_back(op, host) if host else volumes.reserve(op, device))
    except Failed:
        if not await leftovers.is_hopeless(op):
            raise


async def _is_lost(op: Operation) -> bool:
    """Whether the old data is, or may be. An answer that did not arrive can have been a yes.

    The same image written once more shows in nothing but the time of the volume's last change.
    """
    if REIMAGE in op.results:
        return True
    if SAVE not in op.results:
        return False
    volume = await _look(op)
    if volume is None or volume["status"] == ERROR:
        return True
    if volume["status"] == DOWNLOADING:
        raise Passing(f"volume {volume['id']} is being written to")
    if volume["status"] in (ATTACHING, IN_USE):
        return False  # an earlier run of the undo has given it back
    return bool(volume["updated_at"] != op.results[RELEASE]["updated_at"])


# Its content


async def ask(op: Operation) -> bool:
    """An earlier run may have been heard: nobody else does this to a volume that the server has reserved."""
    volume = await _volume(op)
    if volume["status"] == DOWNLOADING or _is_done(op, volume):
        return True
    auth = await op.services.identity.auth()
    try:
        async with volumes.explained():
            await op.services.volume.reimage(volume["id"], op.params["image_id"], auth)
    except Unreachable as error:
        if op.attempt < ATTEMPTS:
            raise
        raise Failed(f"The volume service could not {REIMAGE}: {error}") from error
    return True


def event_key(op: Operation) -> str:
    return f"{VOLUME_REIMAGED}:{op.server_id}:{op.params['volume_id']}"


def patience(op: Operation) -> float:
    """So many seconds per GiB of the image, and as many again."""
    seconds = op.services.config.compute.reimage_seconds
    return float(seconds * (1 + op.params["image_bytes"] / 2**30))


async def is_over(op: Operation) -> dict[str, str] | None:
    """The volume itself knows, whatever became of the event."""
    volume = await _volume(op)
    return None if volume["status"] == DOWNLOADING else {"volume": volume["status"]}


async def connect(op: Operation) -> None:
    """An event can be late, or lie. What counts is what the volume is."""
    server, volume = await server_of(op), await _volume(op)
    if volume["status"] == DOWNLOADING:
        raise Passing(f"volume {volume['id']} is being written to")
    if volume["status"] == ERROR:
        raise await reasons.failure(
            op,
            volume["id"],
            f"The volume service could not write image {op.params['image_id']} to volume {volume['id']}, which is in"
            " status error. The server can be rebuilt when an operator has repaired the volume.",
        )
    await volumes.connect(op, await _root(op), server["host"])


async def disconnect(op: Operation) -> None:
    await volumes.reserve(op, await _root(op))


async def complete(op: Operation) -> None:
    await volumes.complete(op, [await _root(op)])


# Looking


async def _root(op: Operation, reader: Reader | None = None) -> Row:
    device = await devices.root_of(reader or op.db, str(op.server_id))
    if device is None:
        raise Failed(f"Instance {op.server_id} does not boot from a volume.")
    return device


async def _is_connected(op: Operation, reader: Reader | None = None) -> bool:
    return bool(volumes.way_of(await _root(op, reader)))


async def _volume(op: Operation) -> volumes.Item:
    found = await _look(op)
    if found is None:
        raise Failed(f"Volume {op.params['volume_id']} could not be found.")
    return found


async def _look(op: Operation) -> volumes.Item | None:
    auth = await op.services.identity.auth()
    async with volumes.explained():
        found: volumes.Item | None = await op.services.volume.show(op.params["volume_id"], auth)
    return found


def image_id_of(volume: volumes.Item) -> str | None:
    """The image that the volume's content came from."""
    image_id: str | None = (volume.get("volume_image_metadata") or {}).get("image_id")
    return image_id


def _is_done(op: Operation, volume: volumes.Item) -> bool:
    """Whether the volume has become what it was not before."""
    return bool(image_id_of(volume) == op.params["image_id"] != op.results[RESERVE]["image_id"])
