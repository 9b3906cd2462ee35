"""Revert a resize or migration: bring the server back to its source, with its former flavor.

The resized guest is parked until the former one runs.
"""

from __future__ import annotations

from msgspec import Struct, field, json

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import HostCallFailed, call, is_down, is_forced_down_or_removed
from kilonova.compute.migrations import model as moves
from kilonova.compute.migrations.model import Migration
from kilonova.compute.operations.steps import (
    cleanup,
    guest,
    move,
    place,
    plugged,
    port_attributes,
    ports,
    power,
    volumes,
)
from kilonova.compute.operations.steps.choose import CLAIM, Claim
from kilonova.compute.operations.steps.cleanup import LeftOn
from kilonova.compute.operations.steps.guest import PARK, was_running
from kilonova.compute.operations.steps.move import HAND_OVER, PORTS, VOLUMES, EndResizeParams, HandedOver
from kilonova.compute.operations.steps.server import Harmless, host_of, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Unpark
from kilonova.hosts.transport import HostNotResponding
from kilonova.operations import Entry, Failed, Step, StepResult, transaction_step
from kilonova.placement import swap_allocations
from kilonova.placement.claims import Consumer, release
from kilonova.store import Reader, Transaction

STOP = StepResult(guest.STOP, LeftOn)
UNPARK = "unpark guest"


class RevertResize(Harmless[EndResizeParams]):
    kind = kinds.REVERT_RESIZE
    action = "revertResize"
    task_state = "resize_reverting"

    @staticmethod
    def steps() -> tuple[Entry[RevertResize], ...]:
        return (
            Step(STOP, stop, undo=guest.start_again, deadline=power.stop_deadline),
            Step(PARK, park, undo=unpark_again, deadline=300),
            Step(VOLUMES, move_volumes, undo=move.return_volumes, deadline=120, cancellable=False),
            Step(PORTS, move_ports, undo=return_ports, deadline=120),
            Step(UNPARK, unpark, undo=park_again, deadline=300),
            plugged.wait_for(expected_ports),
            place.complete_step(),
            transaction_step(
                "hand back", hand_back, "allocations, host, flavor and state; begins the cleanup of the parked guest"
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        server = await server_of(self, tx)
        await model.set_quota_usage(tx, server.id, server.flavor)


async def stop(op: RevertResize) -> LeftOn | None:
    """Stop the resized guest. Skip this on a host that is forced down or removed: its guest is cleaned up later.

    Fails if the source is down, so that the server keeps running here.
    """
    server, move = await server_of(op), await _move(op)
    host = server.host_name
    if move.source_host != host and await is_down(op.services, op.db, move.source_host):
        raise Failed(f"The host could not {UNPARK}: it is down", fault=f"{move.source_host}: down")
    try:
        await power.stop(op, server, guest.STOP)
    except HostCallFailed as failure:
        if isinstance(failure.outcome, HostNotResponding) and await is_forced_down_or_removed(op, host):
            return LeftOn(host)
        raise
    return None


async def park(op: RevertResize) -> None:
    if op.find_result(STOP) is None:
        await guest.park(op)


async def unpark_again(op: RevertResize) -> None:
    """Undo `park`. If source and destination are the same host, the former guest goes back to its slot first."""
    if op.find_result(STOP) is not None:
        return
    server, move = await server_of(op), await _move(op)
    await cleanup.restore(
        op,
        server.host_name,
        f"undo {PARK}",
        running=was_running(server) and not await model.is_being_deleted(op.db, server.id),
        slot=op.id,
        aside=move.operation_id if move.source_host == server.host else None,
    )


async def move_volumes(op: RevertResize) -> None:
    await volumes.move(op, (await _move(op)).source_host)


async def move_ports(op: RevertResize) -> None:
    claim = await _claim(op)
    await ports.move(op, (await _move(op)).source_host, port_attributes.former_providers(claim))


async def return_ports(op: RevertResize) -> None:
    claim = await _claim(op)
    await ports.return_to(op, await host_of(op), port_attributes.claimed_providers(claim))


async def expected_ports(op: RevertResize) -> plugged.Expected | None:
    move = await _move(op)
    is_running = move.old_power_state == states.RUNNING
    return plugged.Expected(move.source_host, (await server_of(op)).nics) if is_running else None


async def unpark(op: RevertResize) -> None:
    move = await _move(op)
    running = move.old_power_state == states.RUNNING
    disks = await volumes.disks(op)
    verb = Unpark(guest_id=move.server_id, slot=move.operation_id, start=running, disks=disks)
    await call(op, move.source_host, UNPARK, verb)


async def park_again(op: RevertResize) -> None:
    server, move = await server_of(op), await _move(op)
    if move.source_host != server.host:
        await cleanup.park(op, move.source_host, f"undo {UNPARK}", slot=move.operation_id)


async def hand_back(op: RevertResize, tx: Transaction) -> None:
    server = await server_of(op, tx)
    move = await moves.get_by_operation(tx, op.params.move)
    flavor = move.old_flavor.embedded
    owner = Consumer(server.id, server.project_id, server.user_id)
    await swap_allocations(tx, owner, Consumer(move.operation_id, server.project_id, server.user_id, "MIGRATION"))
    await release(tx, move.operation_id)
    await moves.set_outcome(tx, move.operation_id, moves.REVERTED)
    await model.set_host(tx, server.id, move.source_host, move.source_node)
    await model.set_flavor(tx, server.id, move.old_flavor.flavor_id, flavor, await _old_disk_config(tx, move))
    await model.set_quota_usage(tx, server.id, flavor)
    await model.settle(tx, server.id, "revertResize", move.old_vm_state, move.old_power_state)
    slot = op.id if op.find_result(STOP) is None else None
    await cleanup.defer_clean_up(op, tx, server.host_name, slot=slot)
    op.host = move.source_host


async def _move(op: RevertResize) -> Migration:
    return await moves.get_by_operation(op.db, op.params.move)


class _MoveResults(Struct, frozen=True):
    claim: Claim | None = field(name=CLAIM.name, default=None)
    hand_over: HandedOver | None = field(name=HAND_OVER, default=None)


async def _old_disk_config(tx: Transaction, move: Migration) -> str | None:
    found = (await _results(tx, move.operation_id)).hand_over
    return found.disk_config if found else None


async def _claim(op: RevertResize) -> Claim:
    """The claim of the resize."""
    found = (await _results(op.db, op.params.move)).claim
    return found or Claim((await server_of(op)).host_name)


async def _results(reader: Reader, operation_id: str) -> _MoveResults:
    text = await reader.fetch_value("SELECT results FROM operations WHERE id = $1", operation_id)
    return json.decode(text, type=_MoveResults)
