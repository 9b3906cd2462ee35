"""Delete a server: destroy its guest, release its ports, volumes and allocations. There is no undo.

The guest that an unconfirmed resize has parked and the image of a shelved server are deleted too.
"""

from __future__ import annotations

import time

import orjson

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup, hosts, images, new_volumes, ports, volumes
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Change, Destroy, Discard
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.placement.claims import release
from kilonova.store import Transaction

RELEASE, DELETE_VOLUMES = "release volumes", "delete volumes"
# Steps that a server without volumes skips.
WITH_VOLUMES = frozenset({RELEASE, DELETE_VOLUMES})
# The delete waits for a volume service that is down, so that users need not repeat it.
VOLUMES_SECONDS = 24 * 3600.0


class Delete(Operation):
    kind = "delete"
    action = "delete"
    task_state = "deleting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("destroy guest", destroy, undo=None, why="a destroyed guest cannot be restored", deadline=1800),
            Step("discard old guest", discard, undo=None, why="the resize cannot be reverted any more", deadline=1800),
            Step(
                RELEASE,
                release_volumes,
                undo=None,
                why="the guest that used them is destroyed",
                deadline=VOLUMES_SECONDS,
            ),
            Step("drop ports", drop_ports, undo=None, why="the guest that used them is destroyed", deadline=600),
            Step(
                DELETE_VOLUMES,
                new_volumes.delete,
                undo=None,
                why="a deleted volume cannot be restored",
                deadline=VOLUMES_SECONDS,
            ),
            transaction_step("settle", settle, "allocations and the server's row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.fail(tx, str(self.server_id), str(error), error.fault)


async def destroy(op: Operation) -> dict[str, str] | None:
    server = await server_of(op)
    if not server["host"]:
        return None
    return await _done_or_left(op, server["host"], "destroy guest", Destroy(guest_id=server["id"]))


async def discard(op: Operation) -> dict[str, str] | None:
    """Discard the guest that an unconfirmed resize has parked on its source."""
    resize = await moves.find_unconfirmed(op.db, str(op.server_id))
    if resize is None:
        return None
    verb = Discard(guest_id=str(op.server_id), slot=resize["operation_id"])
    return await _done_or_left(op, resize["source_host"], "discard old guest", verb)


async def _done_or_left(op: Operation, host: str, step: str, verb: Change) -> dict[str, str] | None:
    """Call the host. Returns None, or an unreachable host for which the step is deferred."""
    since = time.monotonic()
    try:
        await hosts.call_once_or_fail(op, host, step, verb, timeout=op.services.config.operations.host_timeout_seconds)
    except HostUnreachable:
        if not await hosts.is_unresponsive(op, host, since):
            raise
        return {"left on": host}
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in cleanup.MISSING):
            raise
    return None


async def release_volumes(op: Operation) -> None:
    await volumes.release(op, await volumes.of_server(op))


async def drop_ports(op: Operation) -> None:
    server = await server_of(op)
    given = {nic["port_id"] for nic in orjson.loads(server["nics"]) if nic["given"]}
    await ports.release(op, given)


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    if left := op.results.get("destroy guest"):
        await cleanup.defer_clean_up(op, tx, left["left on"])
    await release(tx, server["id"])
    await _end_resize(op, tx)
    await images.begin_delete(tx, op, server["shelved_image_id"])
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
    """Mark an unconfirmed resize as confirmed."""
    resize = await moves.find_unconfirmed(tx, str(op.server_id))
    if resize is None:
        return
    if left := op.results.get("discard old guest"):
        await cleanup.defer_clean_up(op, tx, left["left on"], slot=resize["operation_id"])
    await release(tx, resize["operation_id"])
    await moves.set_outcome(tx, resize["operation_id"], moves.CONFIRMED)
