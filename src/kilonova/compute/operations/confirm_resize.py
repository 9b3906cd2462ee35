"""Confirm a resize or migration: discard the parked guest and release the allocation on the source."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup
from kilonova.compute.operations.steps.move import EndResizeParams
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.operations import Entry, Step
from kilonova.placement.claims import release
from kilonova.store import Transaction

DISCARD = "discard guest"


class ConfirmResize(Harmless[EndResizeParams]):
    kind = kinds.CONFIRM_RESIZE
    action = "confirmResize"
    task_state = "resize_confirming"

    @staticmethod
    def steps() -> tuple[Entry[ConfirmResize], ...]:
        return (
            Step(DISCARD, discard, undo=None, why="a discarded guest cannot be restored", deadline=600),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state, allocation and quota usage",
                deadline=600,
                transaction=True,
            ),
        )


async def discard(op: ConfirmResize) -> None:
    move = await moves.get_by_operation(op.db, op.params.move)
    await cleanup.clean_up(op, move.source_host, DISCARD, slot=move.operation_id)


async def settle(op: ConfirmResize, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await release(tx, op.params.move)
    await moves.set_outcome(tx, op.params.move, moves.CONFIRMED)
    await model.set_quota_usage(tx, server.id, server.flavor)
    state = states.ACTIVE if server.power_state == states.RUNNING else states.STOPPED
    await model.settle(tx, server.id, "confirmResize", state, server.power_state)
