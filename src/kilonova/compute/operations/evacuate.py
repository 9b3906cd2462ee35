"""Evacuate: a server whose host is down is built again on another; the old guest goes before its host is up again."""

from __future__ import annotations

import orjson

from kilonova.compute.operations import choosing, leftovers, moving, ports, silence
from kilonova.compute.operations.common import guest_of, server_of
from kilonova.compute.operations.moving import Move, destination
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Spawn
from kilonova.hosts.transport import HostFailed
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
            Step(choosing.CHOOSE, moving.choose, undo=None, why="a plan changes nothing", deadline=60),
            Step(
                choosing.CLAIM,
                moving.take,
                undo=moving.give_back,
                deadline=30,
                transaction=True,
                undo_transaction=True,
            ),
            Step("move ports", move_ports, undo=return_ports, deadline=120),
            Step(BUILD, build, undo=destroy, deadline=600),
            Step(
                "hand over",
                hand_over,
                undo=None,
                why="one transaction: share, host and state, and the order to remove the old guest",
                deadline=30,
                transaction=True,
            ),
        )


async def move_ports(op: Operation) -> None:
    await ports.move(op, destination(op))


async def return_ports(op: Operation) -> None:
    await ports.move(op, (await server_of(op))["host"])


async def build(op: Operation) -> None:
    server, host = await server_of(op), destination(op)
    verb = Spawn(guest=guest_of(server, orjson.loads(server["nics"])), start=op.params["start"], disk_of=server["host"])
    try:
        await silence.insist(op, host, BUILD, verb)
    except (HostSilent, HostFailed) as error:
        if error.passing:
            raise
        choosing.next_host(op, host, error)
    op.services.scheduler.built(host, True)


async def destroy(op: Operation) -> None:
    await leftovers.clear(op, destination(op), f"undo {BUILD}")


async def hand_over(op: Operation, tx: Transaction) -> None:
    server = await moving.hand_over(op, tx)
    state = (states.ACTIVE, states.RUNNING) if op.params["start"] else (states.STOPPED, states.SHUTDOWN)
    await model.settle(tx, server["id"], *state)
    # The fence: until this is done, the old host does not count as up.
    await leftovers.leave_guest(op, tx, server["host"])
