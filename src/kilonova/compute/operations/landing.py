"""What boot and unshelve share: a server that no host has comes to one, and has its share of it from then on."""

from __future__ import annotations

from msgspec import structs

from kilonova.compute.operations import choosing, leftovers, volumes
from kilonova.compute.operations.common import server_of, transfer_of
from kilonova.compute.servers import model
from kilonova.hosts.messages import Spawn
from kilonova.hosts.transport import HostTrouble
from kilonova.operations import Failed, Operation, Step
from kilonova.placement.claims import Consumer, release
from kilonova.services import Services
from kilonova.store import Transaction

CONNECT, SPAWN, COMPLETE = "connect volumes", "spawn", "complete volumes"


def connect_step(task_state: str | None = None) -> Step:
    """Before the guest is built: its volumes are reserved for it, and now its host may reach them."""
    return Step(CONNECT, connect, undo=disconnect, deadline=120, task_state=task_state, cancellable=False)


def complete_step(task_state: str | None = None) -> Step:
    why = "what is completed was connected before, and goes with that"
    return Step(COMPLETE, volumes.complete, undo=None, why=why, deadline=120, task_state=task_state)


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


async def connect(op: Operation) -> None:
    """A host that cannot have them is left for the next."""
    host = choosing.claimed(op)
    try:
        await volumes.move(op, host)
    except Failed as error:
        if isinstance(error.__cause__, HostTrouble):
            choosing.next_host(op, host, error.__cause__)
        raise


async def disconnect(op: Operation) -> None:
    async with leftovers.forgoing(op):
        await volumes.move(op, "")


async def spawn(op: Operation, verb: Spawn) -> None:
    verb = await with_data(op.services, verb)
    await choosing.build(op, choosing.claimed(op), SPAWN, verb)


async def with_data(services: Services, verb: Spawn) -> Spawn:
    """The same, with the way to the data of the guest's image."""
    image = verb.guest.image
    if verb.data is not None or image is None:
        return verb
    return structs.replace(verb, data=await transfer_of(services, image.id))


async def destroy(op: Operation) -> None:
    await leftovers.clear(op, choosing.claimed(op), f"undo {SPAWN}")
