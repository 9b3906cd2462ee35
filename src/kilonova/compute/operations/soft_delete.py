"""Soft delete: a server is switched off and out of sight, and can be restored until it is reclaimed."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.operations import leftovers, silence, stopping
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import model, states
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

STOP = "stop guest"


class SoftDelete(Harmless):
    """`params`: those of Stop, and `rescued`, for a restore to know."""

    kind = "soft delete"
    action = "delete"
    task_state = "soft-deleting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=stopping.deadline),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def stop(op: Operation) -> dict[str, str] | None:
    """A host that is silent switches the guest off on its return; a guest that is gone is off."""
    server = await server_of(op)
    try:
        await stopping.stop(op, server, STOP)
    except Failed as error:
        if isinstance(error.__cause__, HostSilent) and await silence.is_down(op, server["host"]):
            return {"left on": server["host"]}
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in leftovers.GONE):
            raise
    return None


async def start_again(op: Operation) -> None:
    await stopping.start_again(op, STOP)


async def settle(op: Operation, tx: Transaction) -> None:
    server_id = str(op.server_id)
    if left := op.results.get(STOP):
        await leftovers.leave_stopped(op, tx, left["left on"])
    await model.settle(tx, server_id, states.SOFT_DELETED, states.SHUTDOWN)
    await tx.execute("UPDATE servers SET soft_deleted_at = $2 WHERE id = $1", server_id, clock.now())
