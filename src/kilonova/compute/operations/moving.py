"""What all moves share: a destination is chosen and claimed, and at the end the server is handed over to it.

During a move the server holds its share of the source, and the move itself, as a consumer of the operation's id, that
of the destination. Handing over exchanges the two.
"""

from __future__ import annotations

from typing import Any

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import choosing
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model, placing
from kilonova.operations import Cancelled, Failed, Operation
from kilonova.placement import allocations_of, exchange
from kilonova.placement.claims import Consumer, release
from kilonova.scheduler import Candidate
from kilonova.scheduler.explain import Diagnosis
from kilonova.store import Row, Transaction


class Move(Operation):
    """An operation that takes a server from its host to another; `compute.migrations.model.begin_move` begins it.

    `params` of all: `host` (a name, or null for any), `unverified` (whether that host is taken without asking the
    scheduler), `flavor` (the new one, or null), `same_host` (whether the source may be the destination).
    """

    # Losing a race for a host is a round too; how many hosts may fail to take the server is configured.
    rounds = 32

    async def failed(self, tx: Transaction, error: Failed) -> None:
        """The server is where it was, in the state it had, and says why."""
        if not isinstance(error, Cancelled):
            await model.note_fault(tx, str(self.server_id), str(error), error.fault)


def destination(op: Operation) -> str:
    """The host that the move has claimed a share of."""
    host: str = op.results[choosing.CLAIM]["host"]
    return host


async def choose(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    if op.params.get("unverified"):
        return await _copy(op, server)
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


async def exchange_shares(op: Operation, tx: Transaction) -> Row:
    """The server, which from now on holds the share of the destination and is there; the move holds the source's."""
    server = await server_of(op, tx)
    claimed = op.results[choosing.CLAIM]
    owner = Consumer(server["id"], server["project_id"], server["user_id"])
    await exchange(tx, owner, consumer(op, server))
    await model.set_host(tx, server["id"], claimed["host"], claimed["node"])
    return server


async def hand_over(op: Operation, tx: Transaction) -> Row:
    """Exchange the shares, and give that of the source back."""
    server = await exchange_shares(op, tx)
    await release(tx, op.id)
    return server


def consumer(op: Operation, server: Row) -> Consumer:
    return Consumer(op.id, server["project_id"], server["user_id"], "MIGRATION")


async def _copy(op: Operation, server: Row) -> dict[str, Any]:
    """The named host without asking the scheduler: as much of its root as the server holds of the source's.

    A share of several providers, or of a nested or sharing one, cannot be copied; nor can one to a host whose root
    does not have it all.
    """
    if op.note.get("lost"):
        raise Failed("No valid host was found: the given host has no room")
    held = (await allocations_of(op.db, [server["id"]])).get(server["id"], {})
    roots = await op.db.fetch(_ROOTS, server["host"], op.params["host"])
    root_of = {row["host"]: row for row in roots}
    source, target = root_of.get(server["host"]), root_of.get(op.params["host"])
    if target is None:
        raise Failed("No valid host was found: the given host is gone")
    share = held.get(source["uuid"], {}) if source else {}
    there = {row["resource_class"] for row in await op.db.fetch(_STOCK, target["uuid"])}
    if len(held) != 1 or not share or not share.keys() <= there:
        raise Failed("No valid host was found: the server's allocation is complex and cannot be copied by force")
    candidate = Candidate(target["uuid"], target["host"], target["hypervisor_hostname"], {target["uuid"]: share})
    asked = {"resources": share, "host": target["host"], "unverified": True}
    return choosing.proposal((candidate,), Diagnosis(hosts=1, filters=(), asked=asked))


_ROOTS = """
SELECT h.uuid, h.host, h.hypervisor_hostname FROM hypervisors h JOIN resource_providers p ON p.uuid = h.uuid
WHERE h.host IN ($1, $2)
"""
_STOCK = """
SELECT i.resource_class FROM inventories i JOIN resource_providers p ON p.id = i.provider_id WHERE p.uuid = $1
"""
