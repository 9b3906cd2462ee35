"""Steps that stop a guest, park it in a slot of its host, and build a new one in place: for resize and rebuild."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.operations.steps import cleanup, hosts, place, power, volumes
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Change, Park, Spawn
from kilonova.hosts.transport import HostFailed
from kilonova.operations import Failed, Operation
from kilonova.store import Row, Transaction

STOP, PARK, BUILD = "stop guest", "park guest", "build guest"


def was_running(server: Row) -> bool:
    """Whether the guest ran before the operation, which changes the server's row at its end only."""
    return bool(server["power_state"] == states.RUNNING)


async def start_again(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server["host"], f"undo {STOP}", running=was_running(server))


async def park(op: Operation) -> None:
    server = await server_of(op)
    await hosts.call_or_fail(op, server["host"], PARK, Park(guest_id=server["id"], slot=op.id))


async def unpark(op: Operation) -> None:
    """Take the guest out of its slot and start it in one call, so that at most one call is deferred."""
    server = await server_of(op)
    running = was_running(server) and not await model.is_being_deleted(op.db, server["id"])
    await cleanup.restore(op, server["host"], f"undo {PARK}", running=running, slot=op.id)


async def stop_existing(op: Operation) -> None:
    server = await server_of(op)
    await _call_unless_missing(
        op, server, STOP, power.power_off_verb(op, server["id"]), takes=power.shutdown_seconds(op)
    )


async def park_existing(op: Operation) -> None:
    server = await server_of(op)
    await _call_unless_missing(op, server, PARK, Park(guest_id=server["id"], slot=op.id))


async def rebuild(op: Operation) -> None:
    server = await server_of(op)
    guest = await volumes.describe_guest(op, {**server, **op.params["columns"]})
    verb = await place.with_image_source(op.services, Spawn(guest=guest, start=is_started_after_rebuild(server)))
    await hosts.call_or_fail(op, server["host"], BUILD, verb)


async def destroy_rebuilt(op: Operation) -> None:
    """Undo `rebuild`. Taking the old guest out of its slot replaces what remains of the new one."""
    server = await server_of(op)
    await cleanup.clean_up(op, server["host"], f"undo {BUILD}", defer_if_unreachable=False)


async def settle_rebuilt(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    columns: dict[str, Any] = {**op.params["columns"], "launched_at": clock.now()}
    changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
    await tx.execute(f"UPDATE servers SET {changes} WHERE id = $1", server["id"], *columns.values())
    state = (states.ACTIVE, states.RUNNING) if is_started_after_rebuild(server) else (states.STOPPED, states.SHUTDOWN)
    await model.settle(tx, server["id"], *state)
    await cleanup.defer_clean_up(op, tx, server["host"], slot=op.id)


def is_started_after_rebuild(server: Row) -> bool:
    """A stopped server stays stopped; any other one, also in error, is started."""
    return bool(server["vm_state"] != states.STOPPED)


async def _call_unless_missing(op: Operation, server: Row, step: str, verb: Change, *, takes: float = 0.0) -> None:
    """Call the host, and accept that the guest is missing: such a server can be rebuilt."""
    try:
        await hosts.call_or_fail(op, server["host"], step, verb, takes=takes)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in cleanup.MISSING):
            raise
