"""Revert a resize or migration: bring the server back to its source, with its former flavor.

The resized guest is parked until the former one runs.
"""

from __future__ import annotations

import orjson

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import cleanup, guest, hosts, move, place, ports, power, volumes
from kilonova.compute.operations.steps.guest import PARK, STOP, was_running
from kilonova.compute.operations.steps.hosts import HostNotResponding
from kilonova.compute.operations.steps.move import HAND_OVER, PORTS, VOLUMES
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Park, Unpark
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.placement import swap_allocations
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
            Step(STOP, stop, undo=guest.start_again, deadline=power.stop_deadline),
            Step(PARK, park, undo=unpark_again, deadline=300),
            Step(VOLUMES, move_volumes, undo=move.return_volumes, deadline=120, cancellable=False),
            Step(PORTS, move_ports, undo=move.return_ports, deadline=120),
            Step(UNPARK, unpark, undo=park_again, deadline=300),
            place.complete_step(),
            transaction_step(
                "hand back", hand_back, "allocations, host, flavor and state; begins the cleanup of the parked guest"
            ),
        )


async def stop(op: Operation) -> dict[str, str] | None:
    """Stop the resized guest. Skip this on a host that is forced down or removed: its guest is cleaned up later.

    Fails if the source is down, so that the server keeps running here.
    """
    server, move = await server_of(op), await _move(op)
    if move["source_host"] != server["host"] and await hosts.is_down(op, move["source_host"]):
        raise Failed(f"The host could not {UNPARK}: it is down", fault=f"{move['source_host']}: down")
    try:
        await power.stop(op, server, STOP)
    except Failed as error:
        if not isinstance(error.__cause__, HostNotResponding) or not await hosts.is_forced_down_or_removed(
            op, server["host"]
        ):
            raise
        return {"left on": server["host"]}
    return None


async def park(op: Operation) -> None:
    if op.results.get(STOP):
        return
    server = await server_of(op)
    await hosts.call_or_fail(op, server["host"], PARK, Park(guest_id=server["id"], slot=op.id))


async def unpark_again(op: Operation) -> None:
    """Undo `park`. If source and destination are the same host, the former guest goes back to its slot first."""
    if op.results.get(STOP):
        return
    server, move = await server_of(op), await _move(op)
    await cleanup.restore(
        op,
        server["host"],
        f"undo {PARK}",
        running=was_running(server) and not await model.is_being_deleted(op.db, server["id"]),
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
    await hosts.call_or_fail(op, move["source_host"], UNPARK, verb)


async def park_again(op: Operation) -> None:
    server, move = await server_of(op), await _move(op)
    if move["source_host"] != server["host"]:
        await cleanup.park(op, move["source_host"], f"undo {UNPARK}", slot=move["operation_id"])


async def hand_back(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    move = await moves.get_by_operation(tx, op.params["move"])
    flavor = orjson.loads(move["old_flavor"])
    owner = Consumer(server["id"], server["project_id"], server["user_id"])
    await swap_allocations(
        tx, owner, Consumer(move["operation_id"], server["project_id"], server["user_id"], "MIGRATION")
    )
    await release(tx, move["operation_id"])
    await moves.set_outcome(tx, move["operation_id"], moves.REVERTED)
    await model.set_host(tx, server["id"], move["source_host"], move["source_node"])
    await model.set_flavor(tx, server["id"], flavor.pop("flavor_id"), flavor, await _old_disk_config(tx, move))
    await model.set_quota_usage(tx, server["id"], flavor)
    await model.settle(tx, server["id"], move["old_vm_state"], move["old_power_state"])
    await cleanup.defer_clean_up(op, tx, server["host"], slot=None if op.results.get(STOP) else op.id)
    op.host = move["source_host"]


async def _move(op: Operation) -> Row:
    return await moves.get_by_operation(op.db, op.params["move"])


async def _old_disk_config(tx: Transaction, move: Row) -> str | None:
    results = await tx.fetch_value("SELECT results FROM operations WHERE id = $1", move["operation_id"])
    found: str | None = orjson.loads(results).get(HAND_OVER, {}).get("disk_config")
    return found
