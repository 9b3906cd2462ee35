"""Delete: the guest goes, its ports and volumes go, and its share of the host is given back. It only goes forward.

So does what a resize that was not decided yet keeps for the way back, and the snapshot of a shelved server.
"""

from __future__ import annotations

import time

import orjson

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import images, leftovers, new_volumes, ports, silence, volumes
from kilonova.compute.operations.common import command, server_of
from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Change, Destroy, Discard
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.operations import Failed, Operation, Step
from kilonova.placement.claims import release
from kilonova.store import Transaction

RELEASE, DELETE_VOLUMES = "release volumes", "delete volumes"
# Those that a server without volumes does not need.
WITH_VOLUMES = frozenset({RELEASE, DELETE_VOLUMES})
# Of a volume service that is away, the return is waited for: nobody has to ask for the deletion again.
VOLUMES_SECONDS = 24 * 3600.0


class Delete(Operation):
    kind = "delete"
    action = "delete"
    task_state = "deleting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("destroy guest", destroy, undo=None, why="a destroyed guest cannot be had back", deadline=1800),
            Step("discard old guest", discard, undo=None, why="nobody goes back to it any more", deadline=1800),
            Step(
                RELEASE,
                release_volumes,
                undo=None,
                why="the guest that used them is gone",
                deadline=VOLUMES_SECONDS,
            ),
            Step("drop ports", drop_ports, undo=None, why="the guest that used them is gone", deadline=600),
            Step(
                DELETE_VOLUMES,
                new_volumes.delete,
                undo=None,
                why="a deleted volume cannot be had back",
                deadline=VOLUMES_SECONDS,
            ),
            Step("settle", settle, undo=None, why="one transaction: shares and record", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.fail(tx, str(self.server_id), str(error), error.fault)


async def destroy(op: Operation) -> dict[str, str] | None:
    server = await server_of(op)
    if not server["host"]:
        return None
    return await _done_or_left(op, server["host"], "destroy guest", Destroy(guest_id=server["id"]))


async def discard(op: Operation) -> dict[str, str] | None:
    """What the source of an undecided resize keeps."""
    resize = await moves.waiting(op.db, str(op.server_id))
    if resize is None:
        return None
    verb = Discard(guest_id=str(op.server_id), slot=resize["operation_id"])
    return await _done_or_left(op, resize["source_host"], "discard old guest", verb)


async def _done_or_left(op: Operation, host: str, step: str, verb: Change) -> dict[str, str] | None:
    """The result of the step: nothing, or the silent host that is to do it on its return."""
    since = time.monotonic()
    try:
        await command(op, host, step, verb, timeout=op.services.config.operations.host_seconds)
    except HostUnreachable:
        if not await silence.is_silent(op, host, since):
            raise
        return {"left on": host}
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in leftovers.GONE):
            raise
    return None


async def release_volumes(op: Operation) -> None:
    await volumes.release(op, await volumes.of_server(op))


async def drop_ports(op: Operation) -> None:
    server = await server_of(op)
    given = {nic["port_id"] for nic in orjson.loads(server["nics"]) if nic["given"]}
    await ports.drop(op, given)


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    if left := op.results.get("destroy guest"):
        await leftovers.leave_guest(op, tx, left["left on"])
    await release(tx, server["id"])
    await _end_resize(op, tx)
    await images.begin_drop(tx, op, server["shelved_image_id"])
    await groups.leave(tx, str(op.server_id))
    await devices.remove_all(tx, str(op.server_id))
    now = clock.now()
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, deleted = TRUE, nics = '[]', terminated_at = $4,"
        " updated_at = $4 WHERE id = $1",
        op.server_id,
        states.DELETED,
        states.NOSTATE,
        now,
    )


async def _end_resize(op: Operation, tx: Transaction) -> None:
    """Nobody can go back any more, which is what confirming means."""
    resize = await moves.waiting(tx, str(op.server_id))
    if resize is None:
        return
    if left := op.results.get("discard old guest"):
        await leftovers.leave_guest(op, tx, left["left on"], slot=resize["operation_id"])
    await release(tx, resize["operation_id"])
    await moves.set_outcome(tx, resize["operation_id"], moves.CONFIRMED)
