"""Swaps the allocations of two consumers: a server, and the move that holds an allocation on another host for it."""

from __future__ import annotations

from kilonova import clock
from kilonova.placement.allocation_update import INSERT_ALLOCATION, ConsumerAllocations, lock
from kilonova.placement.changes import mark_allocations_changed
from kilonova.placement.claims import INSERT_CONSUMER, ConcurrentUpdate, Consumer
from kilonova.placement.model import Allocation
from kilonova.store import Transaction


async def swap_allocations(tx: Transaction, one: Consumer, other: Consumer) -> None:
    """Give each consumer the allocations of the other. Usages stay as they are. Raises ConcurrentUpdate."""
    locked = await lock(tx, [ConsumerAllocations(uuid=consumer.uuid, allocations={}) for consumer in (one, other)])
    if not locked.allocations:
        return
    await tx.execute("DELETE FROM allocations WHERE consumer_uuid = ANY($1)", [one.uuid, other.uuid])
    for receiver, source in ((one, other), (other, one)):
        given = [allocation for allocation in locked.allocations if allocation.consumer_uuid == source.uuid]
        await _give(tx, receiver, given, known=receiver.uuid in locked.consumers)
    await mark_allocations_changed(tx, sorted({allocation.provider_id for allocation in locked.allocations}))


async def _give(tx: Transaction, receiver: Consumer, given: list[Allocation], *, known: bool) -> None:
    """Write the receiver's allocations. A consumer without allocations has no row."""
    now = clock.now()
    if not given:
        await tx.execute("DELETE FROM consumers WHERE uuid = $1", receiver.uuid)
        return
    if known:
        await tx.execute(
            "UPDATE consumers SET generation = generation + 1, updated_at = $2 WHERE uuid = $1", receiver.uuid, now
        )
    else:
        values = (receiver.uuid, receiver.project_id, receiver.user_id, receiver.type, now)
        if not await tx.execute(INSERT_CONSUMER, *values):
            raise ConcurrentUpdate(receiver.uuid)
    received = [(receiver.uuid, one.provider_id, one.resource_class, one.used) for one in given]
    await tx.execute_many(INSERT_ALLOCATION, received)
