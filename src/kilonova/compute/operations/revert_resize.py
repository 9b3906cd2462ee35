"""Revert: a resized or migrated server becomes what it was, where it was. Until that is sure nothing of it is lost."""

from __future__ import annotations

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import landing, leftovers, moving, ports, silence, stopping, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.operations.moving import HAND_OVER, PORTS, VOLUMES
from kilonova.compute.operations.resize import PARK, STOP, runs
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Park, Unpark
from kilonova.operations import Failed, Operation, Step
from kilonova.placement import exchange
from kilonova.placement.claims import Consumer, release
from kilonova.store import Row, Transaction

UNPARK = "unpark guest"


class RevertResize(Harmless):
    """`params`: `move`, the id of the operation that resized or migrated the server."""

    kind = "revert_resize"
    action = "revertResize"
    task_state = "resize_reverting"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STOP, stop, undo=start_again, deadline=stopping.deadline),
            Step(PARK, park, undo=unpark_again, deadline=300),
            Step(VOLUMES, move_volumes, undo=moving.return_volumes, deadline=120, cancellable=False),
            Step(PORTS, move_ports, undo=moving.return_ports, deadline=120),
            Step(UNPARK, unpark, undo=park_again, deadline=300),
            landing.complete_step(),
            Step(
                "hand back",
                hand_back,
                undo=None,
                why="one transaction: shares, host, flavor and state, and the order to remove what was put aside",
                deadline=30,
                transaction=True,
            ),
        )


async def stop(op: Operation) -> dict[str, str] | None:
    """A host that was given up is left as it is: nobody wants what it has, and it is not up before it has removed that.

    But where the server would come back to a host that is down, it goes on running here.
    """
    server, move = await server_of(op), await _move(op)
    if move["source_host"] != server["host"] and await silence.is_down(op, move["source_host"]):
        raise Failed(f"The host could not {UNPARK}: it is down", fault=f"{move['source_host']}: down")
    try:
        await stopping.stop(op, server, STOP)
    except Failed as error:
        if not isinstance(error.__cause__, HostSilent) or not await silence.is_given_up(op, server["host"]):
            raise
        return {"left on": server["host"]}
    return None


async def start_again(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], f"undo {STOP}", running=runs(server))


async def park(op: Operation) -> None:
    if op.results.get(STOP):
        return
    server = await server_of(op)
    await silence.demand(op, server["host"], PARK, Park(guest_id=server["id"], slot=op.id))


async def unpark_again(op: Operation) -> None:
    """On one and the same host the guest as it was may stand here by now, and goes back into its slot first."""
    if op.results.get(STOP):
        return
    server, move = await server_of(op), await _move(op)
    await leftovers.restore(
        op,
        server["host"],
        f"undo {PARK}",
        running=runs(server) and not await model.is_being_deleted(op.db, server["id"]),
        slot=op.id,
        aside=move["operation_id"] if move["source_host"] == server["host"] else None,
    )


async def move_volumes(op: Operation) -> None:
    await volumes.move(op, (await _move(op))["source_host"])


async def move_ports(op: Operation) -> None:
    await ports.move(op, (await _move(op))["source_host"])


async def unpark(op: Operation) -> None:
    move = await _move(op)
    running = move["old_power_state"] == states.RUNNING
    disks = await volumes.disks(op)
    verb = Unpark(guest_id=move["server_id"], slot=move["operation_id"], start=running, disks=disks)
    await silence.demand(op, move["source_host"], UNPARK, verb)


async def park_again(op: Operation) -> None:
    server, move = await server_of(op), await _move(op)
    if move["source_host"] != server["host"]:
        await leftovers.park(op, move["source_host"], f"undo {UNPARK}", slot=move["operation_id"])


async def hand_back(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    move = await moves.of_operation(tx, op.params["move"])
    flavor = orjson.loads(move["old_flavor"])
    owner = Consumer(server["id"], server["project_id"], server["user_id"])
    await exchange(tx, owner, Consumer(move["operation_id"], server["project_id"], server["user_id"], "MIGRATION"))
    await release(tx, move["operation_id"])
    await moves.set_outcome(tx, move["operation_id"], moves.REVERTED)
    await model.set_host(tx, server["id"], move["source_host"], move["source_node"])
    await model.set_flavor(tx, server["id"], flavor.pop("flavor_id"), flavor, await _old_disk_config(tx, move))
    await model.count(tx, server["id"], flavor)
    await model.settle(tx, server["id"], move["old_vm_state"], move["old_power_state"])
    await leftovers.leave_guest(op, tx, server["host"], slot=None if op.results.get(STOP) else op.id)
    op.host = move["source_host"]


async def _move(op: Operation) -> Row:
    return await moves.of_operation(op.db, op.params["move"])


async def _old_disk_config(tx: Transaction, move: Row) -> str | None:
    results = await tx.fetch_value("SELECT results FROM operations WHERE id = $1", move["operation_id"])
    found: str | None = orjson.loads(results).get(HAND_OVER, {}).get("disk_config")
    return found
