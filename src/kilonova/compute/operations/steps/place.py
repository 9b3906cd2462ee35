"""Steps that place a server on a host: claim, connect volumes, spawn the guest. For boot and unshelve."""

from __future__ import annotations

from msgspec import structs

from kilonova.compute.host_calls import HostCallFailed
from kilonova.compute.operations.steps import choose, cleanup, volumes
from kilonova.compute.operations.steps.choose import Claim
from kilonova.compute.operations.steps.server import image_transfer, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import Spawn
from kilonova.operations import Operation, Step
from kilonova.placement.claims import Consumer, release
from kilonova.store import Transaction

CONNECT, SPAWN, COMPLETE = "connect volumes", "spawn", "complete volumes"


def connect_step(task_state: str | None = None) -> Step[Operation]:
    """Connects the reserved volumes to the host, before the guest is built."""
    return Step(
        CONNECT, connect_volumes, undo=disconnect_volumes, deadline=120, task_state=task_state, cancellable=False
    )


def complete_step(task_state: str | None = None) -> Step[Operation]:
    why = f"undoing '{CONNECT}' removes completed attachments too"
    return Step(COMPLETE, volumes.complete, undo=None, why=why, deadline=120, task_state=task_state)


async def claim(op: Operation, tx: Transaction) -> Claim:
    server = await server_of(op, tx)
    consumer = Consumer(server.id, server.project_id, server.user_id)
    taken = await choose.claim_candidate(op, tx, server, consumer)
    await model.set_host(tx, server.id, taken.host, taken.hypervisor_hostname)
    return Claim(taken.host, providers=taken.providers, former=choose.former_allocations(server))


async def release_claim(op: Operation, tx: Transaction) -> None:
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    op.host = None


async def connect_volumes(op: Operation) -> None:
    """Connect the volumes to the claimed host. If the host fails, try the next one."""
    host = choose.claimed_host(op)
    try:
        await volumes.move(op, host)
    except HostCallFailed as failure:
        choose.try_next_host(op, host, failure.outcome)


async def disconnect_volumes(op: Operation) -> None:
    async with cleanup.tolerate_refusals(op):
        await volumes.move(op, "")


async def spawn(op: Operation, verb: Spawn) -> None:
    host = choose.claimed_host(op)
    await choose.build_guest(op, host, SPAWN, with_image_source(op, verb, host))


def with_image_source(op: Operation, verb: Spawn, host: str) -> Spawn:
    """Add URL and ticket of the image's data, for a guest that the host builds from an image."""
    image = verb.guest.image
    if verb.data is not None or image is None:
        return verb
    return structs.replace(verb, data=image_transfer(op, image.id, host))


async def destroy(op: Operation) -> None:
    await cleanup.clean_up(op, choose.claimed_host(op), f"undo {SPAWN}")
