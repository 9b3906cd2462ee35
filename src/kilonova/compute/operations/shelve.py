"""Shelve and offload a server: stop it, upload its disk as an image, and take it off its host.

A volume-backed server needs no image and is offloaded at once.
"""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import HostCallFailed, call
from kilonova.compute.operations.steps import cleanup, images, ports, power, volumes
from kilonova.compute.operations.steps.cleanup import LeftOn
from kilonova.compute.operations.steps.images import MAKE
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import Destroy
from kilonova.hosts.transport import HostNotResponding
from kilonova.ids import new_id
from kilonova.operations import Entry, Step, StepResult, begin, transaction_step
from kilonova.placement.claims import release
from kilonova.store import Transaction

STOP = "stop guest"
DESTROY = StepResult("destroy guest", LeftOn)


class Shelve(Harmless[power.StopParams]):
    kind = kinds.SHELVE
    action = "shelve"

    @staticmethod
    def steps() -> tuple[Entry[Shelve], ...]:
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


async def stop(op: Shelve) -> None:
    await power.stop(op, await server_of(op), STOP)


async def start_again(op: Shelve) -> None:
    await power.start_again(op, STOP)


async def make(op: Shelve) -> str | None:
    server = await server_of(op)
    if server.is_volume_backed:
        return None
    suffix = "-shelved"
    return await images.make(op, server, server.name[: images.NAME_LENGTH - len(suffix)] + suffix)


async def settle(op: Shelve, tx: Transaction) -> None:
    await model.shelve(tx, str(op.server_id), op.find_result(MAKE), op.find_result(images.SNAPSHOT))
    server = await server_of(op, tx)
    if server.is_volume_backed or op.services.config.compute.shelved_offload_seconds == 0:
        await begin_offload(tx, server)


# Offload


class Offload(Harmless):
    kind = kinds.SHELVE_OFFLOAD
    action = "shelveOffload"
    task_state = "shelving_offloading"

    @staticmethod
    def steps() -> tuple[Entry[Offload], ...]:
        kept = "the image, or its volume, has all that was in the guest"
        return (
            Step(DESTROY, destroy, undo=None, why=kept, deadline=1800),
            Step("reserve volumes", reserve, undo=None, why="unshelve connects them", deadline=600),
            Step("unbind ports", unbind, undo=None, why="unshelve binds them", deadline=600),
            transaction_step("settle", settle_offload, "allocation, host and state"),
        )


async def begin_offload(tx: Transaction, server: Server) -> str:
    """Begin an offload without a user's request, with a request id of its own."""
    return await begin(
        tx,
        Offload,
        server_id=server.id,
        project_id=server.project_id,
        user_id=server.user_id,
        request_id=f"req-{new_id()}",
        host=server.host,
    )


async def destroy(op: Offload) -> LeftOn | None:
    """Destroy the guest. On an unreachable host the cleanup is deferred."""
    server = await server_of(op)
    host = server.host_name
    try:
        await call(op, host, DESTROY.name, Destroy(guest_id=server.id))
    except HostCallFailed as failure:
        if isinstance(failure.outcome, HostNotResponding):
            return LeftOn(host)
        raise
    return None


async def reserve(op: Offload) -> None:
    await volumes.move(op, "")


async def unbind(op: Offload) -> None:
    await ports.move(op, "")


async def settle_offload(op: Offload, tx: Transaction) -> None:
    if left := op.find_result(DESTROY):
        await cleanup.defer_clean_up(op, tx, left.host)
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    await model.settle(tx, str(op.server_id), "shelveOffload", states.SHELVED_OFFLOADED, states.NOSTATE)
    op.host = None
