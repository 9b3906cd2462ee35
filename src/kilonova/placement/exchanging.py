"""Two consumers change places: a server and the move that holds a share of another host for it."""

from __future__ import annotations

from kilonova import clock
from kilonova.placement.changes import allocations_changed
from kilonova.placement.claims import NEW_CONSUMER, Consumer, Raced
from kilonova.placement.replacing import ALLOCATE, Wanted, lock
from kilonova.store import Row, Transaction


async def exchange(tx: Transaction, one: Consumer, other: Consumer) -> None:
    """Let each hold what the other held, perhaps nothing. No provider has more or less in use than before.

    Raises Raced.
    """
    locked = await lock(tx, [Wanted(uuid=each.uuid, allocations={}) for each in (one, other)])
    if not locked.held:
        return
    await tx.execute("DELETE FROM allocations WHERE consumer_uuid = ANY($1)", [one.uuid, other.uuid])
    for receiver, giver in ((one, other), (other, one)):
        rows = [row for row in locked.held if row["consumer_uuid"] == giver.uuid]
        await _give(tx, receiver, rows, known=receiver.uuid in locked.consumers)
    await allocations_changed(tx, sorted({row["provider_id"] for row in locked.held}))


async def _give(tx: Transaction, receiver: Consumer, rows: list[Row], *, known: bool) -> None:
    """A consumer is there exactly as long as it holds something."""
    now = clock.now()
    if not rows:
        await tx.execute("DELETE FROM consumers WHERE uuid = $1", receiver.uuid)
        return
    if known:
        await tx.execute(
            "UPDATE consumers SET generation = generation + 1, updated_at = $2 WHERE uuid = $1", receiver.uuid, now
        )
    elif not await tx.execute(NEW_CONSUMER, receiver.uuid, receiver.project_id, receiver.user_id, receiver.type, now):
        raise Raced(receiver.uuid)
    taken = [(receiver.uuid, row["provider_id"], row["resource_class"], row["used"]) for row in rows]
    await tx.execute_many(ALLOCATE, taken)
