"""Steps that all moves share: choose and claim a destination, move volumes and ports, hand the server over.

During a move the server holds the allocation on the source. The operation, as a placement consumer of type MIGRATION,
holds the allocation on the destination. Handing over swaps the two.
"""

from __future__ import annotations

import secrets
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from kilonova.compute.host_calls import READ_PROBED, HostCallFailed, read
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose, cleanup, place, port_resources, ports, volumes
from kilonova.compute.operations.steps.choose import CLAIM, Claim, Proposal
from kilonova.compute.operations.steps.server import Harmless, host_of, server_of
from kilonova.compute.servers import forced_moves, model, scheduling
from kilonova.compute.servers.server import EmbeddedFlavor, Server
from kilonova.hosts.messages.verbs import Describe
from kilonova.operations import Operation, Step, StepResult
from kilonova.operations.definition import P_co
from kilonova.placement import swap_allocations
from kilonova.placement.claims import Consumer, release
from kilonova.store import Transaction
from kilonova.store.records import Record

VOLUMES, PORTS, HAND_OVER = "move volumes", "move ports", "hand over"


class MoveParams(Struct, frozen=True, kw_only=True):
    """`host`: the destination, or None for any. `unverified`: bypass the scheduler's filters.

    `flavor`: the new one, or None. `same_host`: the source may be the destination.
    """

    host: str | None = None
    unverified: bool = False
    flavor: EmbeddedFlavor | None = None
    same_host: bool = False


class EndResizeParams(Struct, frozen=True):
    """`move`: the id of the operation that resized or migrated the server. `grace` as of Stop."""

    move: str
    grace: int | UnsetType = UNSET


class HandedOver(Struct, frozen=True):
    """The old `disk_config`, for a revert."""

    disk_config: str


HAND_OVER_COLD = StepResult(HAND_OVER, HandedOver)


class Move(Harmless[P_co]):
    """An operation that moves a server to another host. `compute.migrations.model.begin_move` begins it."""

    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32


def first_steps(task_state: str | None = None) -> tuple[Step[Operation[MoveParams]], ...]:
    return choose.first_steps(choose_host, claim, release_claim, task_state=task_state)


async def choose_host(op: Operation[MoveParams]) -> Proposal:
    server, params = await server_of(op), op.params
    if params.unverified:
        found = await forced_moves.plan(op.db, server, params.host or "", tried=choose.tried_hosts(op))
        return await choose.proposal_from_plan(op, found)
    request = await scheduling.move_request(op.db, server, params, tried=choose.tried_hosts(op))
    request = await port_resources.add(op, request, [nic.port_id for nic in server.nics])
    return await choose.propose(op, server, request)


async def claim(op: Operation, tx: Transaction) -> Claim:
    server = await server_of(op, tx)
    taken = await choose.claim_candidate(op, tx, server, migration_consumer(op, server))
    await moves.set_destination(tx, op.id, taken.host, taken.hypervisor_hostname)
    former = choose.former_allocations(server)
    return Claim(taken.host, taken.hypervisor_hostname, secrets.token_hex(32), taken.providers, former)


async def release_claim(op: Operation, tx: Transaction) -> None:
    """Undo `claim`. The migration record keeps the name of the destination."""
    await release(tx, op.id)
    op.host = (await server_of(op, tx)).host


def volume_step(task_state: str | None = None) -> Step[Operation]:
    """Connects the volumes to the destination only, before the guest is built there."""
    return Step(
        VOLUMES, place.connect_volumes, undo=return_volumes, deadline=120, task_state=task_state, cancellable=False
    )


async def return_volumes(op: Operation) -> None:
    async with cleanup.tolerate_refusals(op):
        await volumes.settle(op, await host_of(op))


async def move_ports(op: Operation) -> None:
    """Bind the ports to the claimed host. If the network service cannot, try the next one."""
    host = choose.claimed_host(op)
    try:
        await ports.move(op, host)
    except HostCallFailed as failure:
        choose.try_next_host(op, host, failure.outcome)


async def return_ports(op: Operation) -> None:
    await ports.return_to(op, await host_of(op))


async def addresses_of_host(op: Operation, host: str) -> dict[str, str]:
    """The addresses at which other hosts reach this one. Raises any outcome of the call."""
    facts = await read(op, host, Describe(), READ_PROBED)
    return facts.addresses if facts else {}


async def swap_to_destination(op: Operation, tx: Transaction) -> Server:
    """Give the server the destination's allocation and host, and the operation the source's.

    Returns the server as it was before.
    """
    server = await server_of(op, tx)
    there = op.result(CLAIM)
    owner = Consumer(server.id, server.project_id, server.user_id)
    await swap_allocations(tx, owner, migration_consumer(op, server))
    await model.set_host(tx, server.id, there.host, there.node)
    return server


async def complete_move(op: Operation, tx: Transaction) -> Server:
    """Swap the allocations and release that on the source. Returns the server as it was before."""
    server = await swap_to_destination(op, tx)
    await release(tx, op.id)
    return server


class _Resize(Record, frozen=True):
    """The operation of an unconfirmed resize."""

    table: ClassVar[str] = "operations"

    id: str
    server_id: str | None
    project_id: str | None
    user_id: str | None
    request_id: str | None
    round: int
    epoch: int


async def end_resize(tx: Transaction, server: Server, *, parked: bool) -> None:
    """Confirm the server's unconfirmed resize or migration, if it has one.

    `parked`: the source may still have the parked guest, whose removal is deferred.
    """
    move = await moves.find_unconfirmed(tx, server.id)
    if move is None:
        return
    if parked:
        row = await tx.fetch_one("SELECT * FROM operations WHERE id = $1", move.operation_id)
        assert row is not None
        await cleanup.defer_clean_up(_Resize.decode(row), tx, move.source_host, slot=move.operation_id)
    await release(tx, move.operation_id)
    await moves.set_outcome(tx, move.operation_id, moves.CONFIRMED)
    await model.set_quota_usage(tx, server.id, server.flavor)


def migration_consumer(op: Operation, server: Server) -> Consumer:
    return Consumer(op.id, server.project_id, server.user_id, "MIGRATION")
