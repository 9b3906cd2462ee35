"""Steps that stop a guest, park it in a slot of its host, and build a new one in place: for resize and rebuild."""

from __future__ import annotations

from typing import Protocol

from kilonova.compute.host_calls import MUST_SUCCEED, UNLESS_MISSING, Policy, call
from kilonova.compute.operations.steps import choose, cleanup, interface_refresh, place, plugged, power, volumes
from kilonova.compute.operations.steps.power import WithGrace
from kilonova.compute.operations.steps.server import host_of, remove_params, server_of
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import Park, Spawn
from kilonova.operations import Operation
from kilonova.store import Transaction

STOP, PARK, BUILD = "stop guest", "park guest", "build guest"


class WithColumns(Protocol):
    """Parameters with `columns`: the changes of the server's row, as the database stores them."""

    @property
    def columns(self) -> dict[str, str | None]: ...


def was_running(server: Server) -> bool:
    """Whether the guest ran before the operation, which changes the server's row at its end only."""
    return server.power_state == states.RUNNING


async def start_again(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server.host_name, f"undo {STOP}", running=was_running(server))


async def park(op: Operation, policy: Policy = MUST_SUCCEED) -> None:
    verb = Park(guest_id=str(op.server_id), slot=op.id, ticket=choose.move_ticket(op))
    await call(op, await host_of(op), PARK, verb, policy)


async def unpark(op: Operation) -> None:
    """Take the guest out of its slot and start it in one call, so that at most one call is deferred."""
    server = await server_of(op)
    running = was_running(server) and not await model.is_being_deleted(op.db, server.id)
    await cleanup.restore(op, server.host_name, f"undo {PARK}", running=running, slot=op.id)


async def stop_existing(op: Operation[WithGrace]) -> None:
    """Stop the guest. A server without its guest can be rebuilt."""
    await power.stop(op, await server_of(op), STOP, UNLESS_MISSING)


async def park_existing(op: Operation) -> None:
    await park(op, UNLESS_MISSING)


async def rebuild(op: Operation[WithColumns]) -> None:
    server = await server_of(op)
    guest = await volumes.describe_guest(op, server.with_columns(op.params.columns))
    verb = Spawn(guest=guest, start=is_started_after_rebuild(server))
    await call(op, server.host_name, BUILD, place.with_image_source(op, verb, server.host_name))


async def expected_ports(op: Operation) -> plugged.Expected | None:
    server = await server_of(op)
    return plugged.Expected(server.host_name, server.nics) if is_started_after_rebuild(server) else None


async def destroy_rebuilt(op: Operation) -> None:
    """Undo `rebuild`. Taking the old guest out of its slot replaces what remains of the new one."""
    await cleanup.clean_up(op, await host_of(op), f"undo {BUILD}", defer_if_unreachable=False)


async def settle_rebuilt(op: Operation[WithColumns], tx: Transaction) -> None:
    server = await server_of(op, tx)
    state = (states.ACTIVE, states.RUNNING) if is_started_after_rebuild(server) else (states.STOPPED, states.SHUTDOWN)
    await model.rebuild(tx, server.id, op.params.columns, *state)
    await interface_refresh.begin_rename(tx, server, op.params.columns.get("hostname"), op.services)
    await cleanup.defer_clean_up(op, tx, server.host_name, slot=op.id)
    await remove_columns(op, tx)


async def remove_columns(op: Operation, tx: Transaction) -> None:
    """Delete the columns from the operation's row, which outlives the server. They may have user data and files."""
    await remove_params(op, tx, "columns")


def is_started_after_rebuild(server: Server) -> bool:
    """A stopped server stays stopped; any other one, also in error, is started."""
    return server.vm_state != states.STOPPED
