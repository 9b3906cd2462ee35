"""Soft-delete a server: stop and hide it. It can be restored until it is reclaimed."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.operations.steps import cleanup, hosts, power
from kilonova.compute.operations.steps.hosts import HostNotResponding
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

STOP = "stop guest"


class SoftDelete(Harmless):
    """`params`: those of Stop, and `rescued`, which a restore needs."""

    kind = "soft_delete"
    action = "delete"
    task_state = "soft-deleting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=power.stop_deadline),
            transaction_step("settle", settle, "the state"),
        )


async def stop(op: Operation) -> dict[str, str] | None:
    """Stop the guest. On an unreachable host the stop is deferred; a missing guest is stopped."""
    server = await server_of(op)
    try:
        await power.stop(op, server, STOP)
    except Failed as error:
        if isinstance(error.__cause__, HostNotResponding) and await hosts.is_down(op, server["host"]):
            return {"left on": server["host"]}
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in cleanup.MISSING):
            raise
    return None


async def start_again(op: Operation) -> None:
    await power.start_again(op, STOP)


async def settle(op: Operation, tx: Transaction) -> None:
    server_id = str(op.server_id)
    if left := op.results.get(STOP):
        await cleanup.defer_stop(op, tx, left["left on"])
    await model.settle(tx, server_id, states.SOFT_DELETED, states.SHUTDOWN)
    await tx.execute("UPDATE servers SET soft_deleted_at = $2 WHERE id = $1", server_id, clock.now())
