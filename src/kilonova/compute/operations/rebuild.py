"""Rebuild: a server gets a new disk from an image, where it is. Until that is sure its old guest lies in a slot.

Its volumes stay what they are: a server that boots from one is built anew around it (see `reimage` for new content).
"""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.operations import landing, leftovers, resize, silence, stopping, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.operations.resize import BUILD, PARK, STOP
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Change, Park, Spawn
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Row, Transaction

CONNECT, COMPLETE = "connect volumes", "complete volumes"
# Those that a server without volumes does not need.
WITH_VOLUMES = frozenset({CONNECT, COMPLETE})


class Rebuild(Harmless):
    """`params`: those of Stop, and `columns`, what the server's row shall say when the new guest is there."""

    kind = "rebuild"
    action = "rebuild"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=resize.start_again, deadline=stopping.deadline),
            Step(PARK, park, undo=resize.unpark, deadline=300),
            Step(
                CONNECT,
                connect,
                undo=None,
                why="volumes are connected already, but where an earlier failure left the server without its guest",
                deadline=300,
            ),
            Step(BUILD, build, undo=destroy, deadline=600),
            Step(COMPLETE, volumes.complete, undo=None, why="they were in use before", deadline=120),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: image, state and all that was asked for, and the order to discard the old guest",
                deadline=30,
                transaction=True,
            ),
        )


def starts(server: Row) -> bool:
    """A server that was stopped stays so; one in error is built to run."""
    return bool(server["vm_state"] != states.STOPPED)


async def stop(op: Operation) -> None:
    server = await server_of(op)
    await _unless_gone(op, server, STOP, stopping.verb(op, server["id"]), takes=stopping.grace(op))


async def park(op: Operation) -> None:
    server = await server_of(op)
    await _unless_gone(op, server, PARK, Park(guest_id=server["id"], slot=op.id))


async def connect(op: Operation) -> None:
    server = await server_of(op)
    await volumes.move(op, server["host"])


async def build(op: Operation) -> None:
    server = await server_of(op)
    guest = await volumes.guest(op, {**server, **op.params["columns"]})
    verb = await landing.with_data(op.services, Spawn(guest=guest, start=starts(server)))
    await silence.demand(op, server["host"], BUILD, verb)


async def destroy(op: Operation) -> None:
    """What is left of it is replaced when the guest in the slot is taken out."""
    server = await server_of(op)
    await leftovers.clear(op, server["host"], f"undo {BUILD}", leave=False)


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    columns: dict[str, Any] = {**op.params["columns"], "launched_at": clock.now()}
    changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
    await tx.execute(f"UPDATE servers SET {changes} WHERE id = $1", server["id"], *columns.values())
    state = (states.ACTIVE, states.RUNNING) if starts(server) else (states.STOPPED, states.SHUTDOWN)
    await model.settle(tx, server["id"], *state)
    await leftovers.leave_guest(op, tx, server["host"], slot=op.id)


async def _unless_gone(op: Operation, server: Row, step: str, verb: Change, *, takes: float = 0.0) -> None:
    """A server whose guest is lost is worth rebuilding above all."""
    try:
        await silence.demand(op, server["host"], step, verb, takes=takes)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in leftovers.GONE):
            raise
