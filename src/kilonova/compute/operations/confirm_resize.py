"""Confirm: a resized or migrated server stays as it is now; what it was goes, and its share of the source."""

from __future__ import annotations

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import leftovers
from kilonova.compute.operations.common import Harmless, server_of
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
            Step(DISCARD, discard, undo=None, why="what is discarded cannot be had back", deadline=600),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state, share and what is counted",
                deadline=600,
                transaction=True,
            ),
        )


async def discard(op: Operation) -> None:
    move = await moves.of_operation(op.db, op.params["move"])
    await leftovers.clear(op, move["source_host"], DISCARD, slot=move["operation_id"])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await release(tx, op.params["move"])
    await moves.set_outcome(tx, op.params["move"], moves.CONFIRMED)
    await model.count(tx, server["id"], orjson.loads(server["flavor"]))
    state = states.ACTIVE if server["power_state"] == states.RUNNING else states.STOPPED
    await model.settle(tx, server["id"], state, server["power_state"])
