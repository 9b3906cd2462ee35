"""Claims: allocate resources for a consumer, all or nothing, and release them.

The caller runs a claim in the transaction that also writes the claim's purpose, so both are written or neither.
Usage is always the sum of allocations. See docs/decisions/0005-claims.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kilonova import clock
from kilonova.placement.allocations import USED_AMOUNT
from kilonova.placement.changes import mark_allocations_changed
from kilonova.store import Row, Transaction, Unavailable


class Consumer(msgspec.Struct, frozen=True):
    """A consumer of resources: a server, a migration, or another consumer that an API client creates."""

    uuid: str
    project_id: str
    user_id: str
    type: str | None = "INSTANCE"


class SnapshotVersion(NamedTuple):
    """The uuid of a host's root provider, and its `facts` in the snapshot that the plan is based on."""

    root: str
    facts: int


class ClaimOutcome(Enum):
    CLAIMED = "claimed"
    REFUSED = "refused"  # no capacity, no such provider, or the host changed since the plan's snapshot
    BUSY = "busy"  # another transaction holds a provider's lock, and `wait` is False


class ConcurrentUpdate(Unavailable):
    """Another transaction changed the consumers before this one got its locks. Run the transaction again."""

    def __init__(self, *consumers: str) -> None:
        super().__init__(f"another transaction changed the allocations of consumer {' or '.join(consumers)}")


class ConsumerHasAllocations(Exception):
    """The consumer already has allocations that differ from the claim."""

    def __init__(self, consumer_uuid: str, held: list[Row]) -> None:
        self.held = _by_provider(held)
        text = ", ".join(f"{row['used']} {row['resource_class']} on {row['provider_uuid']}" for row in held)
        super().__init__(f"consumer {consumer_uuid} already holds {text}")


async def claim(
    tx: Transaction, consumer: Consumer, allocations: Mapping[str, Mapping[str, int]], *, wait: bool = True
) -> bool:
    """Allocate everything in `allocations`, amounts by class by provider uuid, or nothing.

    A repeated claim changes nothing. Raises ConsumerHasAllocations if the consumer has other allocations, and
    ConcurrentUpdate if another transaction gives it some.
    """
    return await try_claim(tx, consumer, allocations, wait=wait) is ClaimOutcome.CLAIMED


async def try_claim(
    tx: Transaction,
    consumer: Consumer,
    allocations: Mapping[str, Mapping[str, int]],
    *,
    wait: bool = True,
    expected: SnapshotVersion | None = None,
) -> ClaimOutcome:
    """Like `claim`; with `wait=False` the outcome is BUSY if another claim holds a provider's lock.

    With `expected`, the outcome is REFUSED if the host's zone, aggregates, traits or service changed since the
    snapshot.
    """
    wanted = _without_zeros(allocations)
    # The locks serialize claims on a provider; the sums of allocations are read after the locks are granted.
    uuids = list(wanted) if expected is None or expected.root in wanted else [expected.root, *wanted]
    locked = await _lock(tx, uuids, wait)
    if len(locked) < len(uuids):
        return ClaimOutcome.REFUSED if wait else await _missing_or_busy(tx, uuids)
    values = [
        value
        for uuid, amounts in wanted.items()
        for name, amount in amounts.items()
        for value in (locked[uuid]["id"], name, amount)
    ]
    if expected is not None and locked[expected.root]["facts"] != expected.facts:
        return await _held_or_refused(tx, consumer, wanted)
    written = await tx.execute(_insert_allocations_sql(len(values) // 3), consumer.uuid, len(values) // 3, *values)
    if not written:
        return await _held_or_refused(tx, consumer, wanted)
    await _add_consumer(tx, consumer)
    await mark_allocations_changed(tx, [locked[uuid]["id"] for uuid in wanted])
    return ClaimOutcome.CLAIMED


async def release(tx: Transaction, consumer_uuid: str) -> None:
    """Release all allocations of the consumer, if it has any. Raises ConcurrentUpdate."""
    rows = await tx.fetch(_LOCK_PROVIDERS_OF_CONSUMER, consumer_uuid)
    if not rows:
        return
    ids = [row["id"] for row in rows]
    if await tx.execute(_DELETE_CONSUMER, consumer_uuid, ids):  # cascades to its allocations
        await mark_allocations_changed(tx, ids)
    elif await tx.fetch_value("SELECT 1 FROM consumers WHERE uuid = $1", consumer_uuid):
        # It got other allocations while this waited for locks. Locking more providers now could deadlock.
        raise ConcurrentUpdate(consumer_uuid)


def _without_zeros(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The allocations without amounts of zero: a flavor without disk requests no disk."""
    wanted: dict[str, dict[str, int]] = {}
    for uuid, resources in allocations.items():
        amounts = {name: amount for name, amount in resources.items() if amount}
        if amounts:
            wanted[uuid] = amounts
    if not wanted or min(min(amounts.values()) for amounts in wanted.values()) < 0:
        raise ValueError(f"allocations of a claim must be positive amounts, not {dict(allocations)}")
    return wanted


async def _lock(tx: Transaction, uuids: list[str], wait: bool) -> dict[str, Row]:
    """Lock the providers and return them by uuid. Locks are taken in the order of ids, so claims cannot deadlock."""
    if len(uuids) == 1:
        row = await tx.fetch_one(_LOCK if wait else _LOCK_OR_SKIP, uuids[0])
        return {} if row is None else {uuids[0]: row}
    rows = await tx.fetch(_LOCK_ALL if wait else _LOCK_ALL_OR_SKIP, uuids)
    return {row["uuid"]: row for row in rows}


async def _add_consumer(tx: Transaction, consumer: Consumer) -> None:
    now = clock.now()
    values = (consumer.uuid, consumer.project_id, consumer.user_id, consumer.type, now)
    if not await tx.execute(INSERT_CONSUMER, *values):
        # Another transaction claims for the same consumer on other providers: the later one starts again.
        raise ConcurrentUpdate(consumer.uuid)


async def _held_or_refused(tx: Transaction, consumer: Consumer, wanted: dict[str, dict[str, int]]) -> ClaimOutcome:
    held = await tx.fetch(_ALLOCATIONS, consumer.uuid)
    if not held:
        return ClaimOutcome.REFUSED
    if _by_provider(held) == wanted:
        return ClaimOutcome.CLAIMED
    raise ConsumerHasAllocations(consumer.uuid, held)


async def _missing_or_busy(tx: Transaction, uuids: list[str]) -> ClaimOutcome:
    there = await tx.fetch("SELECT id FROM resource_providers WHERE uuid = ANY($1)", uuids)
    return ClaimOutcome.REFUSED if len(there) < len(uuids) else ClaimOutcome.BUSY


def _by_provider(rows: list[Row]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["provider_uuid"], {})[row["resource_class"]] = row["used"]
    return found


@lru_cache(maxsize=64)
def _insert_allocations_sql(amounts: int) -> str:
    """SQL that writes all rows if everything fits and the consumer has no allocations, and otherwise none."""
    rows = ", ".join(
        f"(CAST(${n} AS BIGINT), CAST(${n + 1} AS TEXT), CAST(${n + 2} AS BIGINT))"
        for n in range(3, 3 + 3 * amounts, 3)
    )
    return f"""
        WITH requested (provider_id, resource_class, amount) AS (VALUES {rows}),
        fits AS (
            SELECT requested.provider_id, requested.resource_class, requested.amount
            FROM requested JOIN inventories i
                ON i.provider_id = requested.provider_id AND i.resource_class = requested.resource_class
            WHERE requested.amount BETWEEN i.min_unit AND i.max_unit
              AND requested.amount % i.step_size = 0
              AND (i.total - i.reserved) * i.allocation_ratio >= requested.amount + {USED_AMOUNT}
        )
        INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used)
        SELECT CAST($1 AS TEXT), provider_id, resource_class, amount FROM fits
        WHERE (SELECT COUNT(*) FROM fits) = $2
          AND NOT EXISTS (SELECT 1 FROM allocations WHERE consumer_uuid = $1)
    """


_LOCK = "SELECT id, facts FROM resource_providers WHERE uuid = $1 FOR UPDATE"
_LOCK_OR_SKIP = f"{_LOCK} SKIP LOCKED"
_LOCK_ALL = "SELECT id, uuid, facts FROM resource_providers WHERE uuid = ANY($1) ORDER BY id FOR UPDATE"
_LOCK_ALL_OR_SKIP = f"{_LOCK_ALL} SKIP LOCKED"
_LOCK_PROVIDERS_OF_CONSUMER = """
SELECT id FROM resource_providers
WHERE id IN (SELECT provider_id FROM allocations WHERE consumer_uuid = $1)
ORDER BY id FOR UPDATE
"""
# A transaction that changes a consumer's allocations has locked all providers of these allocations. So while this
# transaction holds those locks, no other can change them.
_DELETE_CONSUMER = """
DELETE FROM consumers WHERE uuid = $1
AND NOT EXISTS (SELECT 1 FROM allocations WHERE consumer_uuid = $1 AND NOT provider_id = ANY($2))
"""
_ALLOCATIONS = """
SELECT p.uuid AS provider_uuid, a.resource_class, a.used
FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
WHERE a.consumer_uuid = $1 ORDER BY p.id, a.resource_class
"""
INSERT_CONSUMER = """
INSERT INTO consumers (uuid, project_id, user_id, type, generation, created_at, updated_at)
VALUES ($1, $2, $3, $4, 1, $5, $5) ON CONFLICT (uuid) DO NOTHING
"""
