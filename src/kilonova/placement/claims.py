"""Claims: take room on providers for a consumer if, and only if, all of it is there; and give it back.

Called inside the transaction that also writes whatever the claim is for, so both happen or neither.
Usage is the sum of allocations and stands nowhere else. See docs/decisions/0005-claims.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kilonova import clock
from kilonova.placement.changes import allocations_changed
from kilonova.store import Row, Transaction, Unavailable


class Consumer(msgspec.Struct, frozen=True):
    """Who uses resources: a server, a migration, or whatever a client of the API names."""

    uuid: str
    project_id: str
    user_id: str
    type: str | None = "INSTANCE"


class Seen(NamedTuple):
    """The root provider of a host and its `facts` as a plan knew them."""

    root: str
    facts: int


class Outcome(Enum):
    CLAIMED = "claimed"
    REFUSED = "refused"  # no room, no such provider, or a host that is no longer what the plan knew
    BUSY = "busy"  # another transaction has a provider's row, and waiting was not wanted


class Raced(Unavailable):
    """Another transaction changed what this one looked at before its locks were granted: begin again, later."""

    def __init__(self, *consumers: str) -> None:
        super().__init__(f"another transaction changed what is held by consumer {' or '.join(consumers)}")


class HoldsOther(Exception):
    """The consumer already holds something else than the claim asks for."""

    def __init__(self, consumer_uuid: str, held: list[Row]) -> None:
        self.held = _by_provider(held)
        text = ", ".join(f"{row['used']} {row['resource_class']} on {row['provider_uuid']}" for row in held)
        super().__init__(f"consumer {consumer_uuid} already holds {text}")


async def claim(
    tx: Transaction, consumer: Consumer, allocations: Mapping[str, Mapping[str, int]], *, wait: bool = True
) -> bool:
    """Take everything in `allocations`, amounts by class by provider uuid, or nothing.

    Repeating a claim that is held changes nothing. Raises HoldsOther if the consumer has other allocations, Raced if
    it is being given some.
    """
    return await try_claim(tx, consumer, allocations, wait=wait) is Outcome.CLAIMED


async def try_claim(
    tx: Transaction,
    consumer: Consumer,
    allocations: Mapping[str, Mapping[str, int]],
    *,
    wait: bool = True,
    seen: Seen | None = None,
) -> Outcome:
    """Like `claim`; with `wait=False` a provider that somebody else is claiming from right now is BUSY.

    With `seen`, a host whose zone, aggregates, traits or service changed since is REFUSED, whatever room it has.
    """
    wanted = _wanted(allocations)
    # The lock makes claims on one provider run one after the other; the sums below are read after it is granted.
    uuids = list(wanted) if seen is None or seen.root in wanted else [seen.root, *wanted]
    locked = await _lock(tx, uuids, wait)
    if len(locked) < len(uuids):
        return Outcome.REFUSED if wait else await _missing_or_busy(tx, uuids)
    asked = [
        value
        for uuid, amounts in wanted.items()
        for name, amount in amounts.items()
        for value in (locked[uuid]["id"], name, amount)
    ]
    if seen is not None and locked[seen.root]["facts"] != seen.facts:
        return await _held_or_refused(tx, consumer, wanted)
    taken = await tx.execute(_take(len(asked) // 3), consumer.uuid, len(asked) // 3, *asked)
    if not taken:
        return await _held_or_refused(tx, consumer, wanted)
    await _add_consumer(tx, consumer)
    await allocations_changed(tx, [locked[uuid]["id"] for uuid in wanted])
    return Outcome.CLAIMED


async def release(tx: Transaction, consumer_uuid: str) -> None:
    """Give back everything the consumer holds; nothing if it holds nothing. Raises Raced."""
    rows = await tx.fetch(_LOCK_HELD, consumer_uuid)
    if not rows:
        return
    ids = [row["id"] for row in rows]
    if await tx.execute(_DELETE_CONSUMER, consumer_uuid, ids):  # its allocations go with it
        await allocations_changed(tx, ids)
    elif await tx.fetch_value("SELECT 1 FROM consumers WHERE uuid = $1", consumer_uuid):
        # It was given something else while this waited. To lock more now could end in a circle: start again.
        raise Raced(consumer_uuid)


def _wanted(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """What is really asked for: a flavor without disk asks for no disk."""
    wanted: dict[str, dict[str, int]] = {}
    for uuid, resources in allocations.items():
        amounts = {name: amount for name, amount in resources.items() if amount}
        if amounts:
            wanted[uuid] = amounts
    if not wanted or min(min(amounts.values()) for amounts in wanted.values()) < 0:
        raise ValueError(f"a claim needs positive amounts, not {dict(allocations)}")
    return wanted


async def _lock(tx: Transaction, uuids: list[str], wait: bool) -> dict[str, Row]:
    """The providers, by uuid, that are now ours; taken in the order of ids, so that claims cannot deadlock."""
    if len(uuids) == 1:
        row = await tx.fetch_one(_LOCK if wait else _LOCK_OR_SKIP, uuids[0])
        return {} if row is None else {uuids[0]: row}
    rows = await tx.fetch(_LOCK_ALL if wait else _LOCK_ALL_OR_SKIP, uuids)
    return {row["uuid"]: row for row in rows}


async def _add_consumer(tx: Transaction, consumer: Consumer) -> None:
    now = clock.now()
    values = (consumer.uuid, consumer.project_id, consumer.user_id, consumer.type, now)
    if not await tx.execute(NEW_CONSUMER, *values):
        # Two transactions claim for one consumer on different providers at once: the later one starts again.
        raise Raced(consumer.uuid)


async def _held_or_refused(tx: Transaction, consumer: Consumer, wanted: dict[str, dict[str, int]]) -> Outcome:
    held = await tx.fetch(_HELD, consumer.uuid)
    if not held:
        return Outcome.REFUSED
    if _by_provider(held) == wanted:
        return Outcome.CLAIMED
    raise HoldsOther(consumer.uuid, held)


async def _missing_or_busy(tx: Transaction, uuids: list[str]) -> Outcome:
    there = await tx.fetch("SELECT id FROM resource_providers WHERE uuid = ANY($1)", uuids)
    return Outcome.REFUSED if len(there) < len(uuids) else Outcome.BUSY


def _by_provider(rows: list[Row]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["provider_uuid"], {})[row["resource_class"]] = row["used"]
    return found


@lru_cache(maxsize=64)
def _take(amounts: int) -> str:
    """The deciding statement: everything fits and the consumer holds nothing yet, or no row is written."""
    asked = ", ".join(
        f"(CAST(${n} AS BIGINT), CAST(${n + 1} AS TEXT), CAST(${n + 2} AS BIGINT))"
        for n in range(3, 3 + 3 * amounts, 3)
    )
    return f"""
        WITH asked (provider_id, resource_class, amount) AS (VALUES {asked}),
        fits AS (
            SELECT asked.provider_id, asked.resource_class, asked.amount
            FROM asked JOIN inventories i
                ON i.provider_id = asked.provider_id AND i.resource_class = asked.resource_class
            WHERE asked.amount BETWEEN i.min_unit AND i.max_unit
              AND asked.amount % i.step_size = 0
              AND (i.total - i.reserved) * i.allocation_ratio >= asked.amount + COALESCE((
                    SELECT CAST(SUM(used) AS BIGINT) FROM allocations
                    WHERE provider_id = i.provider_id AND resource_class = i.resource_class), 0)
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
_LOCK_HELD = """
SELECT id FROM resource_providers
WHERE id IN (SELECT provider_id FROM allocations WHERE consumer_uuid = $1)
ORDER BY id FOR UPDATE
"""
# Whoever changes what a consumer holds has locked the providers it holds from. So if all of those are ours, and it
# holds something, nobody else is at it.
_DELETE_CONSUMER = """
DELETE FROM consumers WHERE uuid = $1
AND NOT EXISTS (SELECT 1 FROM allocations WHERE consumer_uuid = $1 AND NOT provider_id = ANY($2))
"""
_HELD = """
SELECT p.uuid AS provider_uuid, a.resource_class, a.used
FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
WHERE a.consumer_uuid = $1 ORDER BY p.id, a.resource_class
"""
NEW_CONSUMER = """
INSERT INTO consumers (uuid, project_id, user_id, type, generation, created_at, updated_at)
VALUES ($1, $2, $3, $4, 1, $5, $5) ON CONFLICT (uuid) DO NOTHING
"""
