"""Soft-delete a server: stop and hide it. It can be restored until it is reclaimed."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import UNLESS_MISSING, HostCallFailed, is_down
from kilonova.compute.operations.steps import cleanup, power
from kilonova.compute.operations.steps.cleanup import LeftOn
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.hosts.transport import HostNotResponding
from kilonova.operations import Entry, Operation, Step, StepResult, begin, get_kind, transaction_step
from kilonova.operations.definition import NoParams
from kilonova.store import Transaction

STOP = StepResult("stop guest", LeftOn)


class SoftDeleteParams(Struct, frozen=True):
    """Those of Stop, and `rescued`, which a restore needs."""

    rescued: bool = False
    grace: int | UnsetType = UNSET


class SoftDelete(Harmless[SoftDeleteParams]):
    kind = kinds.SOFT_DELETE
    action = "delete"
    task_state = "soft-deleting"

    @staticmethod
    def steps() -> tuple[Entry[SoftDelete], ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=power.stop_deadline),
            transaction_step("settle", settle, "the state"),
        )


async def stop(op: SoftDelete) -> LeftOn | None:
    """Stop the guest. On an unreachable host the stop is deferred; a missing guest is stopped."""
    server = await server_of(op)
    if not _can_be_restored(server):
        return None
    host = server.host_name
    try:
        await power.stop(op, server, STOP.name, UNLESS_MISSING)
    except HostCallFailed as failure:
        if isinstance(failure.outcome, HostNotResponding) and await is_down(op.services, op.db, host):
            return LeftOn(host)
        raise
    return None


async def start_again(op: Operation) -> None:
    if _can_be_restored(await server_of(op)):
        await power.start_again(op, STOP.name)


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    if not _can_be_restored(server):
        # The operation that this one cancelled has ended after all, so the server is deleted at once.
        await begin(
            tx,
            get_kind(kinds.DELETE, NoParams),
            server_id=server.id,
            project_id=server.project_id,
            user_id=op.user_id,
            request_id=op.request_id,
            host=server.host,
        )
        return
    if left := op.find_result(STOP):
        await cleanup.defer_stop(op, tx, left.host)
    await model.soft_delete(tx, server.id)


def _can_be_restored(server: Server) -> bool:
    return states.TRANSITIONS["soft delete"].allows(server.vm_state, shelved=server.is_shelved)
