"""What boot and unshelve share: a server that no host has comes to one, and has its share of it from then on."""

from __future__ import annotations

from kilonova.compute.operations import choosing, leftovers
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages import Spawn
from kilonova.operations import Operation
from kilonova.placement.claims import Consumer, release
from kilonova.store import Transaction

SPAWN = "spawn"


async def take(op: Operation, tx: Transaction) -> dict[str, str]:
    server = await server_of(op, tx)
    consumer = Consumer(server["id"], server["project_id"], server["user_id"])
    taken = await choosing.take(op, tx, server, consumer)
    await model.set_host(tx, server["id"], taken.host, taken.hypervisor_hostname)
    return {"host": taken.host}


async def give_back(op: Operation, tx: Transaction) -> None:
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    op.host = None


async def spawn(op: Operation, verb: Spawn) -> None:
    await choosing.build(op, choosing.claimed(op), SPAWN, verb)


async def destroy(op: Operation) -> None:
    await leftovers.clear(op, choosing.claimed(op), f"undo {SPAWN}")
