"""Resize and cold migration: park the guest on its source, and build it from its disks with a new flavor or host.

The parked guest and the allocation on the source are kept until the user confirms or reverts.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType, structs

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import HostCallFailed
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose, cleanup, guest, move, place, plugged, power, volumes
from kilonova.compute.operations.steps.choose import claimed_host
from kilonova.compute.operations.steps.guest import BUILD, PARK, STOP, was_running
from kilonova.compute.operations.steps.move import HAND_OVER_COLD, PORTS, HandedOver, Move, MoveParams
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Receive
from kilonova.hosts.transport import HostNotResponding, HostRefused
from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.operations.definition import P_co
from kilonova.store import Transaction


class MigrateParams(MoveParams, frozen=True, kw_only=True):
    """Also those of Stop."""

    grace: int | UnsetType = UNSET


class ResizeParams(MoveParams, frozen=True, kw_only=True):
    """Also those of Stop, and the new `disk_config`, or None."""

    disk_config: str | None = None
    grace: int | UnsetType = UNSET


def _steps() -> tuple[Entry[Resize | Migrate], ...]:
    return (
        *move.first_steps(task_state="resize_prep"),
        Step(STOP, stop, undo=guest.start_again, deadline=power.stop_deadline, task_state="resize_migrating"),
        Step(PARK, guest.park, undo=guest.unpark, deadline=300, task_state="resize_migrating"),
        move.volume_step(task_state="resize_migrated"),
        Step(PORTS, move.move_ports, undo=move.return_ports, deadline=120, task_state="resize_migrated"),
        Step(BUILD, build, undo=destroy, deadline=3600, task_state="resize_finish"),
        plugged.wait_for(expected_ports, task_state="resize_finish"),
        place.complete_step(task_state="resize_finish"),
        transaction_step(HAND_OVER_COLD, hand_over, "allocations, host, flavor and state", task_state="resize_finish"),
    )


class _ColdMove(Move[P_co]):
    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        server = await server_of(self, tx)
        await model.set_quota_usage(tx, server.id, server.flavor)


class Resize(_ColdMove[ResizeParams]):
    kind = kinds.RESIZE
    action = "resize"
    steps = staticmethod(_steps)


class Migrate(_ColdMove[MigrateParams]):
    kind = kinds.MIGRATE
    action = "migrate"
    steps = staticmethod(_steps)


async def stop(op: Resize | Migrate) -> None:
    server = await server_of(op)
    if op.round > 1 and await cleanup.is_unrestored(op, server.host_name, slot=op.id):
        tried = ", ".join(sorted(choose.tried_hosts(op)))
        fault = f"{server.host}: could not undo '{PARK}' after it was tried on {tried}"
        raise Failed("The server's host could not undo what was begun", fault=fault)
    await power.stop(op, server, STOP)


async def build(op: Operation) -> None:
    server = await server_of(op)
    source, flavor = server.host_name, (await moves.get_by_operation(op.db, op.id)).new_flavor.embedded
    verb = Receive(
        guest=await volumes.describe_guest(op, structs.replace(server, flavor=flavor)),
        source=source,
        slot=op.id,
        start=was_running(server),
        reach=await _addresses_of_source(op, source) if claimed_host(op) != source else {},
        ticket=choose.move_ticket(op),
    )
    await choose.build_guest(op, claimed_host(op), BUILD, verb)


async def _addresses_of_source(op: Operation, source: str) -> dict[str, str]:
    try:
        return await move.addresses_of_host(op, source)
    except (HostNotResponding, HostRefused) as outcome:
        if outcome.passing:
            raise
        raise HostCallFailed("The server's host could not tell where it is reached", outcome) from outcome


async def expected_ports(op: Operation) -> plugged.Expected | None:
    server = await server_of(op)
    return plugged.Expected(claimed_host(op), server.nics) if was_running(server) else None


async def destroy(op: Operation) -> None:
    """Undo `build`. On the source itself, taking the parked guest out of its slot replaces the new one."""
    server, host = await server_of(op), claimed_host(op)
    await cleanup.clean_up(op, host, f"undo {BUILD}", defer_if_unreachable=host != server.host)


async def hand_over(op: Resize | Migrate, tx: Transaction) -> HandedOver:
    server = await move.swap_to_destination(op, tx)
    new = (await moves.get_by_operation(tx, op.id)).new_flavor
    disk_config = op.params.disk_config if isinstance(op, Resize) else None
    await model.set_flavor(tx, server.id, new.flavor_id, new.embedded, disk_config)
    await model.set_quota_usage(tx, server.id, new.embedded)
    await model.settle(tx, server.id, op.kind, states.RESIZED, server.power_state)
    return HandedOver(server.disk_config)
