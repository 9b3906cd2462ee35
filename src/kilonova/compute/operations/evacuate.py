"""Evacuate a server: build it on another host. The old host does not count as up until the old guest is destroyed."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.operations.steps import choose, cleanup, images, move, place, plugged, volumes
from kilonova.compute.operations.steps.choose import claimed_host
from kilonova.compute.operations.steps.move import Move, MoveParams
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Spawn
from kilonova.operations import Entry, Operation, Step, transaction_step
from kilonova.store import Transaction

BUILD = "build guest"


class EvacuateParams(MoveParams, frozen=True, kw_only=True):
    """`start`: whether the server runs at its destination."""

    start: bool


class Evacuate(Move[EvacuateParams]):
    kind = kinds.EVACUATE
    action = "evacuate"
    task_state = "rebuilding"

    @staticmethod
    def steps() -> tuple[Entry[Evacuate], ...]:
        return (
            *move.first_steps(),
            move.volume_step(),
            Step(move.PORTS, move.move_ports, undo=move.return_ports, deadline=120),
            Step(BUILD, build, undo=destroy, deadline=600),
            plugged.wait_for(expected_ports),
            place.complete_step(),
            transaction_step(
                move.HAND_OVER, hand_over, "allocation, host and state; begins the cleanup of the old guest"
            ),
        )


async def build(op: Evacuate) -> None:
    server = await server_of(op)
    await images.check_not_replaced(op, server)
    guest = await volumes.describe_guest(op, server)
    verb = Spawn(guest=guest, start=op.params.start, disk_of=server.host_name)
    host = claimed_host(op)
    await choose.build_guest(op, host, BUILD, place.with_image_source(op, verb, host))


async def expected_ports(op: Evacuate) -> plugged.Expected | None:
    return plugged.Expected(claimed_host(op), (await server_of(op)).nics) if op.params.start else None


async def destroy(op: Operation) -> None:
    await cleanup.clean_up(op, claimed_host(op), f"undo {BUILD}")


async def hand_over(op: Evacuate, tx: Transaction) -> None:
    server = await move.complete_move(op, tx)
    state = (states.ACTIVE, states.RUNNING) if op.params.start else (states.STOPPED, states.SHUTDOWN)
    await model.settle(tx, server.id, "evacuate", *state)
    # The fence: the old host does not count as up until this cleanup is done.
    await cleanup.defer_clean_up(op, tx, server.host_name)
