"""Confirm a resize or migration: discard the parked guest and release the allocation on the source."""

from __future__ import annotations

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.operations import Operation, Step
from kilonova.placement.claims import release
from kilonova.store import Transaction

DISCARD = "discard guest"


class ConfirmResize(Harmless):
    """`params`: `move`, the id of the operation that resized or migrated the server."""

    kind = "confirm_resize"
    action = "confirmResize"
    task_state = "resize_confirming"

    @staticmethod
    def steps() -> tuple[Step, ...]:
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


async def discard(op: Operation) -> None:
    move = await moves.get_by_operation(op.db, op.params["move"])
    await cleanup.clean_up(op, move["source_host"], DISCARD, slot=move["operation_id"])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await release(tx, op.params["move"])
    await moves.set_outcome(tx, op.params["move"], moves.CONFIRMED)
    await model.set_quota_usage(tx, server["id"], orjson.loads(server["flavor"]))
    state = states.ACTIVE if server["power_state"] == states.RUNNING else states.STOPPED
    await model.settle(tx, server["id"], state, server["power_state"])
