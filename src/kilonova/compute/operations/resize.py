"""Resize and cold migration: park the guest on its source, and build it from its disks with a new flavor or host.

The parked guest and the allocation on the source are kept until the user confirms or reverts.
"""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose, cleanup, guest, move, place, power, volumes
from kilonova.compute.operations.steps.choose import claimed_host
from kilonova.compute.operations.steps.guest import BUILD, PARK, STOP, was_running
from kilonova.compute.operations.steps.hosts import HostNotResponding
from kilonova.compute.operations.steps.move import HAND_OVER, PORTS, Move
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Receive
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Row, Transaction


def _steps() -> tuple[Step, ...]:
    return (
        *move.first_steps(task_state="resize_prep"),
        Step(STOP, stop, undo=guest.start_again, deadline=power.stop_deadline, task_state="resize_migrating"),
        Step(PARK, guest.park, undo=guest.unpark, deadline=300, task_state="resize_migrating"),
        move.volume_step(task_state="resize_migrated"),
        Step(PORTS, move.move_ports, undo=move.return_ports, deadline=120, task_state="resize_migrated"),
        Step(BUILD, build, undo=destroy, deadline=3600, task_state="resize_finish"),
        place.complete_step(task_state="resize_finish"),
        transaction_step(HAND_OVER, hand_over, "allocations, host, flavor and state", task_state="resize_finish"),
    )


class _ColdMove(Move):
    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        server = await server_of(self, tx)
        await model.set_quota_usage(tx, server["id"], orjson.loads(server["flavor"]))


class Resize(_ColdMove):
    """`params`: those of Move and of Stop, and `disk_config` (the new one, or null)."""

    kind = "resize"
    action = "resize"
    steps = staticmethod(_steps)


class Migrate(_ColdMove):
    kind = "migrate"
    action = "migrate"
    steps = staticmethod(_steps)


async def stop(op: Operation) -> None:
    server = await server_of(op)
    if op.round > 1 and await cleanup.is_unrestored(op, server["host"], slot=op.id):
        tried = ", ".join(sorted(choose.tried_hosts(op)))
        fault = f"{server['host']}: could not undo '{PARK}' after it was tried on {tried}"
        raise Failed("The server's host could not undo what was begun", fault=fault)
    await power.stop(op, server, STOP)


async def build(op: Operation) -> None:
    server = await server_of(op)
    flavor, _ = _new_flavor(await moves.get_by_operation(op.db, op.id))
    described = await volumes.describe_guest(op, {**server, "flavor": orjson.dumps(flavor)})
    verb = Receive(
        guest=described,
        source=server["host"],
        slot=op.id,
        start=was_running(server),
        reach=await _reach_of_source(op, server),
    )
    await choose.build_guest(op, claimed_host(op), BUILD, verb)


async def _reach_of_source(op: Operation, server: Row) -> dict[str, str]:
    if claimed_host(op) == server["host"]:
        return {}
    try:
        return await move.addresses_of_host(op, server["host"])
    except (HostNotResponding, HostFailed) as error:
        if error.passing:
            raise
        raise Failed(
            f"The server's host could not tell where it is reached: {error.public}", fault=str(error)
        ) from error


async def destroy(op: Operation) -> None:
    """Undo `build`. On the source itself, taking the parked guest out of its slot replaces the new one."""
    server, host = await server_of(op), claimed_host(op)
    await cleanup.clean_up(op, host, f"undo {BUILD}", defer_if_unreachable=host != server["host"])


async def hand_over(op: Operation, tx: Transaction) -> dict[str, Any]:
    """Hand the server over. The result keeps the old `disk_config` for a revert."""
    server = await move.swap_to_destination(op, tx)
    flavor, flavor_id = _new_flavor(await moves.get_by_operation(tx, op.id))
    await model.set_flavor(tx, server["id"], flavor_id, flavor, op.params.get("disk_config"))
    await model.set_quota_usage(tx, server["id"], flavor, orjson.loads(server["flavor"]))
    await model.settle(tx, server["id"], states.RESIZED, server["power_state"])
    return {"disk_config": server["disk_config"]}


def _new_flavor(move: Row) -> tuple[dict[str, Any], str]:
    flavor = orjson.loads(move["new_flavor"])
    return flavor, flavor.pop("flavor_id")
