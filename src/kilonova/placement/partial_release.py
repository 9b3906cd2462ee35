"""Releases some of a consumer's resources: those of a port that leaves its server."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.placement.allocation_update import ConsumerAllocations, lock
from kilonova.placement.changes import mark_allocations_changed
from kilonova.store import Transaction

_REDUCE = "UPDATE allocations SET used = $4 WHERE consumer_uuid = $1 AND provider_id = $2 AND resource_class = $3"
_REMOVE = "DELETE FROM allocations WHERE consumer_uuid = $1 AND provider_id = $2 AND resource_class = $3"


async def release_part(tx: Transaction, consumer_uuid: str, amounts: Mapping[str, Mapping[str, int]]) -> None:
    """Reduce the consumer's allocations by these amounts, by provider uuid and class. Raises ConcurrentUpdate.

    The consumer keeps at least one allocation.
    """
    locked = await lock(tx, [ConsumerAllocations(uuid=consumer_uuid, allocations={})])
    uuids = {provider.id: uuid for uuid, provider in locked.providers.items()}
    changed = set()
    for held in locked.allocations:
        amount = amounts.get(uuids[held.provider_id], {}).get(held.resource_class, 0)
        if not amount:
            continue
        changed.add(held.provider_id)
        key = (consumer_uuid, held.provider_id, held.resource_class)
        if held.used > amount:
            await tx.execute(_REDUCE, *key, held.used - amount)
        else:
            await tx.execute(_REMOVE, *key)
    if changed:
        await mark_allocations_changed(tx, sorted(changed))
