"""Evacuate: a server whose host is down is built again on another; the old guest goes before its host is up again."""

from __future__ import annotations

from kilonova.compute.operations import choosing, landing, leftovers, moving, volumes
from kilonova.compute.operations.choosing import claimed
from kilonova.compute.operations.common import server_of
from kilonova.compute.operations.moving import Move
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Spawn
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

BUILD = "build guest"


class Evacuate(Move):
    """`params`: those of Move, and `start` (whether the server shall run at its destination)."""

    kind = "evacuate"
    action = "evacuate"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            *moving.first_steps(),
            moving.volume_step(),
            Step(moving.PORTS, moving.move_ports, undo=moving.return_ports, deadline=120),
            Step(BUILD, build, undo=destroy, deadline=600),
            landing.complete_step(),
            Step(
                moving.HAND_OVER,
                hand_over,
                undo=None,
                why="one transaction: share, host and state, and the order to remove the old guest",
                deadline=30,
                transaction=True,
            ),
        )


async def build(op: Operation) -> None:
    server = await server_of(op)
    verb = Spawn(guest=await volumes.guest(op, server), start=op.params["start"], disk_of=server["host"])
    await choosing.build(op, claimed(op), BUILD, await landing.with_data(op.services, verb))


async def destroy(op: Operation) -> None:
    await leftovers.clear(op, claimed(op), f"undo {BUILD}")


async def hand_over(op: Operation, tx: Transaction) -> None:
    server = await moving.hand_over(op, tx)
    state = (states.ACTIVE, states.RUNNING) if op.params["start"] else (states.STOPPED, states.SHUTDOWN)
    await model.settle(tx, server["id"], *state)
    # The fence: until this is done, the old host does not count as up.
    await leftovers.leave_guest(op, tx, server["host"])
