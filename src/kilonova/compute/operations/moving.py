"""What all moves share: a destination is chosen and claimed, and at the end the server is handed over to it.

During a move the server holds its share of the source, and the move itself, as a consumer of the operation's id, that
of the destination. Handing over exchanges the two.
"""

from __future__ import annotations

import time
from typing import Any

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import choosing, landing, leftovers, ports, silence, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import copying, model, placing
from kilonova.hosts.transport import HostUnreachable, describe
from kilonova.operations import Operation, Step
from kilonova.placement import exchange
from kilonova.placement.claims import Consumer, release
from kilonova.store import Row, Transaction

VOLUMES, PORTS, HAND_OVER = "move volumes", "move ports", "hand over"


class Move(Harmless):
    """An operation that takes a server from its host to another; `compute.migrations.model.begin_move` begins it.

    `params` of all: `host` (a name, or null for any), `unverified` (whether that host is taken without asking the
    scheduler), `flavor` (the new one, or null), `same_host` (whether the source may be the destination).
    """

    # Losing a race for a host is a round too; how many hosts may fail to take the server is configured.
    rounds = 32


def first_steps(task_state: str | None = None) -> tuple[Step, ...]:
    return choosing.first_steps(choose, take, give_back, task_state=task_state)


async def choose(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    if op.params.get("unverified"):
        found = await copying.plan(op.db, server, op.params["host"], tried=choosing.tried(op))
        return await choosing.proposal(op, found)
    request = await placing.move_request(op.db, server, op.params, tried=choosing.tried(op))
    return await choosing.plan(op, server, request)


async def take(op: Operation, tx: Transaction) -> dict[str, str]:
    server = await server_of(op, tx)
    taken = await choosing.take(op, tx, server, consumer(op, server))
    await moves.set_destination(tx, op.id, taken.host, taken.hypervisor_hostname)
    return {"host": taken.host, "node": taken.hypervisor_hostname}


async def give_back(op: Operation, tx: Transaction) -> None:
    """The migration keeps the name of the destination that it did not come to."""
    await release(tx, op.id)
    op.host = (await server_of(op, tx))["host"]


def volume_step(task_state: str | None = None) -> Step:
    """Before the guest is built at its destination: from then on only that host reaches the server's volumes."""
    return Step(VOLUMES, landing.connect, undo=return_volumes, deadline=120, task_state=task_state, cancellable=False)


async def return_volumes(op: Operation) -> None:
    async with leftovers.forgoing(op):
        await volumes.settle(op, (await server_of(op))["host"])


async def move_ports(op: Operation) -> None:
    await ports.move(op, choosing.claimed(op))


async def return_ports(op: Operation) -> None:
    await ports.move(op, (await server_of(op))["host"])


async def reach(op: Operation, host: str) -> dict[str, str]:
    """Where other hosts reach this one, as it says itself. Raises HostSilent, HostFailed, or HostUnreachable."""
    since = time.monotonic()
    try:
        return (await describe(op.services.hosts, host, timeout=silence.PING)).addresses
    except HostUnreachable as error:
        if not await silence.is_silent(op, host, since):
            raise
        raise silence.HostSilent(host, op.services.config.operations.host_seconds) from error


async def exchange_shares(op: Operation, tx: Transaction) -> Row:
    """The server, which from now on holds the share of the destination and is there; the move holds the source's."""
    server = await server_of(op, tx)
    there = op.results[choosing.CLAIM]
    owner = Consumer(server["id"], server["project_id"], server["user_id"])
    await exchange(tx, owner, consumer(op, server))
    await model.set_host(tx, server["id"], there["host"], there["node"])
    return server


async def hand_over(op: Operation, tx: Transaction) -> Row:
    """Exchange the shares, and give that of the source back."""
    server = await exchange_shares(op, tx)
    await release(tx, op.id)
    return server


def consumer(op: Operation, server: Row) -> Consumer:
    return Consumer(op.id, server["project_id"], server["user_id"], "MIGRATION")
