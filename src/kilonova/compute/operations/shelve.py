"""Shelve: a server is stopped and its disk kept as an image, so that it can leave its host.

One that boots from a volume has its disk there, needs no image, and leaves its host at once.
"""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.operations import images, offload, silence, stopping
from kilonova.compute.operations.common import Harmless, server_of, transfer_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Snapshot
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

STOP, MAKE = "stop guest", "make image"


class Shelve(Harmless):
    """`params`: those of Stop."""

    kind = "shelve"
    action = "shelve"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        filled = "the image that it fills is deleted by undoing the step before"
        return (
            Step(STOP, stop, undo=start_again, deadline=stopping.deadline, task_state="shelving"),
            Step(
                MAKE,
                make,
                undo=drop,
                deadline=120,
                task_state="shelving_image_pending_upload",
                # Else the image service might make it after the undo has looked for it.
                cancellable=False,
            ),
            Step("snapshot", fill, undo=None, why=filled, deadline=6 * 3600, task_state="shelving_image_uploading"),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state and image, and the offload where it follows at once",
                deadline=30,
                transaction=True,
                task_state="shelving",
            ),
        )


async def stop(op: Operation) -> None:
    await stopping.stop(op, await server_of(op), STOP)


async def start_again(op: Operation) -> None:
    await stopping.start_again(op, STOP)


async def make(op: Operation) -> str | None:
    server = await server_of(op)
    if is_volume_backed(server):
        return None
    suffix = "-shelved"
    return await images.make(op, server, server["name"][: images.NAME_LENGTH - len(suffix)] + suffix)


async def drop(op: Operation) -> None:
    await images.delete(op, images.snapshot_id(op.id))


async def fill(op: Operation) -> None:
    """A guest that stands still writes the same again; so data that is there, whoever was told of it, is good."""
    server, image_id = await server_of(op), op.results.get(MAKE)
    if image_id is None:
        return
    try:
        if not await images.is_filled(op, image_id):
            data = await transfer_of(op.services, image_id)
            await silence.demand(op, server["host"], "snapshot", Snapshot(guest_id=server["id"], data=data))
    except Failed:
        if not await images.is_filled(op, image_id):
            raise


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.SHELVED, states.SHUTDOWN)
    await tx.execute(
        "UPDATE servers SET shelved_at = $2, shelved_image_id = $3 WHERE id = $1",
        op.server_id,
        clock.now(),
        op.results.get(MAKE),
    )
    server = await server_of(op, tx)
    if is_volume_backed(server) or op.services.config.compute.shelved_offload_seconds == 0:
        await offload.begin_offload(tx, server)
