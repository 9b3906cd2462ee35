"""Resize and migrate: a server is stopped and put aside, and built again from its disks, elsewhere or of a new flavor.

What it was stays in a slot of the source, and its share of it with the move, until somebody confirms or reverts.
"""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import choosing, landing, leftovers, moving, silence, stopping, volumes
from kilonova.compute.operations.choosing import claimed
from kilonova.compute.operations.common import server_of
from kilonova.compute.operations.moving import HAND_OVER, PORTS, Move
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Park, Receive
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Row, Transaction

STOP, PARK, BUILD = "stop guest", "park guest", "build guest"


def _steps() -> tuple[Step, ...]:
    return (
        *moving.first_steps(task_state="resize_prep"),
        Step(STOP, stop, undo=start_again, deadline=stopping.deadline, task_state="resize_migrating"),
        Step(PARK, park, undo=unpark, deadline=300, task_state="resize_migrating"),
        moving.volume_step(task_state="resize_migrated"),
        Step(PORTS, moving.move_ports, undo=moving.return_ports, deadline=120, task_state="resize_migrated"),
        Step(BUILD, build, undo=destroy, deadline=3600, task_state="resize_finish"),
        landing.complete_step(task_state="resize_finish"),
        Step(
            HAND_OVER,
            hand_over,
            undo=None,
            why="one transaction: shares, host, flavor and state",
            deadline=30,
            transaction=True,
            task_state="resize_finish",
        ),
    )


class _ColdMove(Move):
    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        server = await server_of(self, tx)
        await model.count(tx, server["id"], orjson.loads(server["flavor"]))


class Resize(_ColdMove):
    """`params`: those of Move and of Stop, and `disk_config` (the new one, or null)."""

    kind = "resize"
    action = "resize"
    steps = staticmethod(_steps)


class Migrate(_ColdMove):
    kind = "migrate"
    action = "migrate"
    steps = staticmethod(_steps)


def runs(server: Row) -> bool:
    """Whether its guest ran before the operation, which changes the row only at its end."""
    return bool(server["power_state"] == states.RUNNING)


async def stop(op: Operation) -> None:
    server = await server_of(op)
    if op.round > 1 and await leftovers.is_unrestored(op, server["host"], slot=op.id):
        tried = ", ".join(sorted(choosing.tried(op)))
        fault = f"{server['host']}: could not undo '{PARK}' after it was tried on {tried}"
        raise Failed("The server's host could not undo what was begun", fault=fault)
    await stopping.stop(op, server, STOP)


async def start_again(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], f"undo {STOP}", running=runs(server))


async def park(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], PARK, Park(guest_id=server["id"], slot=op.id))


async def unpark(op: Operation) -> None:
    """Started right here: whoever finds the host silent leaves one thing to be done on its return."""
    server = await server_of(op)
    running = runs(server) and not await model.is_being_deleted(op.db, server["id"])
    await leftovers.restore(op, server["host"], f"undo {PARK}", running=running, slot=op.id)


async def build(op: Operation) -> None:
    server = await server_of(op)
    flavor, _ = _new_flavor(await moves.of_operation(op.db, op.id))
    guest = await volumes.guest(op, {**server, "flavor": orjson.dumps(flavor)})
    verb = Receive(
        guest=guest, source=server["host"], slot=op.id, start=runs(server), reach=await _reach_of_source(op, server)
    )
    await choosing.build(op, claimed(op), BUILD, verb)


async def _reach_of_source(op: Operation, server: Row) -> dict[str, str]:
    if claimed(op) == server["host"]:
        return {}
    try:
        return await moving.reach(op, server["host"])
    except (HostSilent, HostFailed) as error:
        if error.passing:
            raise
        raise Failed(
            f"The server's host could not tell where it is reached: {error.public}", fault=str(error)
        ) from error


async def destroy(op: Operation) -> None:
    """On the source itself the guest is replaced when the one in the slot is taken out."""
    server, host = await server_of(op), claimed(op)
    await leftovers.clear(op, host, f"undo {BUILD}", leave=host != server["host"])


async def hand_over(op: Operation, tx: Transaction) -> dict[str, Any]:
    """The result is what a revert could not find elsewhere."""
    server = await moving.exchange_shares(op, tx)
    flavor, flavor_id = _new_flavor(await moves.of_operation(tx, op.id))
    await model.set_flavor(tx, server["id"], flavor_id, flavor, op.params.get("disk_config"))
    await model.count(tx, server["id"], flavor, orjson.loads(server["flavor"]))
    await model.settle(tx, server["id"], states.RESIZED, server["power_state"])
    return {"disk_config": server["disk_config"]}


def _new_flavor(move: Row) -> tuple[dict[str, Any], str]:
    flavor = orjson.loads(move["new_flavor"])
    return flavor, flavor.pop("flavor_id")
