"""Shelve and offload a server: stop it, upload its disk as an image, and take it off its host.

A volume-backed server needs no image and is offloaded at once.
"""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.operations.steps import cleanup, hosts, images, ports, power, volumes
from kilonova.compute.operations.steps.hosts import HostNotResponding
from kilonova.compute.operations.steps.images import MAKE
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Destroy
from kilonova.ids import new_id
from kilonova.operations import Failed, Operation, Step, begin, transaction_step
from kilonova.placement.claims import release
from kilonova.store import Row, Transaction

STOP = "stop guest"


class Shelve(Harmless):
    """`params`: those of Stop."""

    kind = "shelve"
    action = "shelve"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=power.stop_deadline, task_state="shelving"),
            Step(
                MAKE,
                make,
                undo=images.drop,
                deadline=120,
                task_state="shelving_image_pending_upload",
                # Not cancellable: the image service might create the image after the undo looked for it.
                cancellable=False,
            ),
            images.snapshot_step("shelving_image_uploading"),
            transaction_step(
                "settle", settle, "state and image; begins the offload if it follows at once", task_state="shelving"
            ),
        )


async def stop(op: Operation) -> None:
    await power.stop(op, await server_of(op), STOP)


async def start_again(op: Operation) -> None:
    await power.start_again(op, STOP)


async def make(op: Operation) -> str | None:
    server = await server_of(op)
    if is_volume_backed(server):
        return None
    suffix = "-shelved"
    return await images.make(op, server, server["name"][: images.NAME_LENGTH - len(suffix)] + suffix)


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
        await begin_offload(tx, server)


# Offload


class Offload(Harmless):
    kind = "shelve_offload"
    action = "shelveOffload"
    task_state = "shelving_offloading"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        kept = "the image, or its volume, has all that was in the guest"
        return (
            Step("destroy guest", destroy, undo=None, why=kept, deadline=1800),
            Step("reserve volumes", reserve, undo=None, why="unshelve connects them", deadline=600),
            Step("unbind ports", unbind, undo=None, why="unshelve binds them", deadline=600),
            transaction_step("settle", settle_offload, "allocation, host and state"),
        )


async def begin_offload(tx: Transaction, server: Row) -> str:
    """Begin an offload without a user's request, with a request id of its own."""
    return await begin(
        tx,
        Offload,
        server_id=server["id"],
        project_id=server["project_id"],
        user_id=server["user_id"],
        request_id=f"req-{new_id()}",
        host=server["host"],
    )


async def destroy(op: Operation) -> dict[str, str] | None:
    """Destroy the guest. On an unreachable host the cleanup is deferred."""
    server = await server_of(op)
    try:
        await hosts.call_or_fail(op, server["host"], "destroy guest", Destroy(guest_id=server["id"]))
    except Failed as error:
        if not isinstance(error.__cause__, HostNotResponding):
            raise
        return {"left on": server["host"]}
    return None


async def reserve(op: Operation) -> None:
    await volumes.move(op, "")


async def unbind(op: Operation) -> None:
    await ports.move(op, "")


async def settle_offload(op: Operation, tx: Transaction) -> None:
    left = op.results.get("destroy guest")
    if left:
        await cleanup.defer_clean_up(op, tx, left["left on"])
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    await model.settle(tx, str(op.server_id), states.SHELVED_OFFLOADED, states.NOSTATE)
    op.host = None
