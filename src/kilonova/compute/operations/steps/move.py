"""Steps that all moves share: choose and claim a destination, move volumes and ports, hand the server over.

During a move the server holds the allocation on the source. The operation, as a placement consumer of type MIGRATION,
holds the allocation on the destination. Handing over swaps the two.
"""

from __future__ import annotations

import time
from typing import Any

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose, cleanup, hosts, place, ports, volumes
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import forced_moves, model, scheduling
from kilonova.hosts.transport import HostUnreachable, describe
from kilonova.operations import Operation, Step
from kilonova.placement import swap_allocations
from kilonova.placement.claims import Consumer, release
from kilonova.store import Row, Transaction

VOLUMES, PORTS, HAND_OVER = "move volumes", "move ports", "hand over"


class Move(Harmless):
    """An operation that moves a server to another host. `compute.migrations.model.begin_move` begins it.

    `params` of all moves: `host` (the destination, or null for any), `unverified` (bypass the scheduler's filters),
    `flavor` (the new one, or null), `same_host` (the source may be the destination).
    """

    # A lost race for a host is a round too. `operations.max_build_attempts` limits failing hosts.
    rounds = 32


def first_steps(task_state: str | None = None) -> tuple[Step, ...]:
    return choose.first_steps(choose_host, claim, release_claim, task_state=task_state)


async def choose_host(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    if op.params.get("unverified"):
        found = await forced_moves.plan(op.db, server, op.params["host"], tried=choose.tried_hosts(op))
        return await choose.proposal_from_plan(op, found)
    request = await scheduling.move_request(op.db, server, op.params, tried=choose.tried_hosts(op))
    return await choose.propose(op, server, request)


async def claim(op: Operation, tx: Transaction) -> dict[str, str]:
    server = await server_of(op, tx)
    taken = await choose.claim_candidate(op, tx, server, migration_consumer(op, server))
    await moves.set_destination(tx, op.id, taken.host, taken.hypervisor_hostname)
    return {"host": taken.host, "node": taken.hypervisor_hostname}


async def release_claim(op: Operation, tx: Transaction) -> None:
    """Undo `claim`. The migration record keeps the name of the destination."""
    await release(tx, op.id)
    op.host = (await server_of(op, tx))["host"]


def volume_step(task_state: str | None = None) -> Step:
    """Connects the volumes to the destination only, before the guest is built there."""
    return Step(
        VOLUMES, place.connect_volumes, undo=return_volumes, deadline=120, task_state=task_state, cancellable=False
    )


async def return_volumes(op: Operation) -> None:
    async with cleanup.tolerate_refusals(op):
        await volumes.settle(op, (await server_of(op))["host"])


async def move_ports(op: Operation) -> None:
    await ports.move(op, choose.claimed_host(op))


async def return_ports(op: Operation) -> None:
    await ports.move(op, (await server_of(op))["host"])


async def addresses_of_host(op: Operation, host: str) -> dict[str, str]:
    """The addresses at which other hosts reach this one. Raises HostNotResponding, HostFailed or HostUnreachable."""
    since = time.monotonic()
    try:
        return (await describe(op.services.hosts, host, timeout=hosts.PROBE_TIMEOUT_SECONDS)).addresses
    except HostUnreachable as error:
        if not await hosts.is_unresponsive(op, host, since):
            raise
        raise hosts.HostNotResponding(host, op.services.config.operations.host_timeout_seconds) from error


async def swap_to_destination(op: Operation, tx: Transaction) -> Row:
    """Give the server the destination's allocation and host, and the operation the source's. Returns the old row."""
    server = await server_of(op, tx)
    there = op.results[choose.CLAIM]
    owner = Consumer(server["id"], server["project_id"], server["user_id"])
    await swap_allocations(tx, owner, migration_consumer(op, server))
    await model.set_host(tx, server["id"], there["host"], there["node"])
    return server


async def complete_move(op: Operation, tx: Transaction) -> Row:
    """Swap the allocations and release that on the source. Returns the server's old row."""
    server = await swap_to_destination(op, tx)
    await release(tx, op.id)
    return server


def migration_consumer(op: Operation, server: Row) -> Consumer:
    return Consumer(op.id, server["project_id"], server["user_id"], "MIGRATION")
