"""Claims: take room on a provider for a consumer if, and only if, all of it is there; and give it back.

Called inside the transaction that also writes whatever the claim is for, so both happen or neither.
Usage is the sum of allocations and stands nowhere else. See docs/decisions/0005-claims.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache

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


class Outcome(Enum):
    CLAIMED = "claimed"
    REFUSED = "refused"  # no room, or no such provider
    BUSY = "busy"  # another transaction has the provider's row, and waiting was not wanted


class HoldsOther(Exception):
    """The consumer already holds something else than the claim asks for."""

    def __init__(self, consumer_uuid: str, held: list[Row]) -> None:
        self.held = held
        text = ", ".join(f"{row['used']} {row['resource_class']} on {row['provider_uuid']}" for row in held)
        super().__init__(f"consumer {consumer_uuid} already holds {text}")


async def claim(tx: Transaction, consumer: Consumer, provider_uuid: str, resources: Mapping[str, int]) -> bool:
    """Take all of `resources` from one provider, or nothing. Repeating a claim that is held changes nothing.

    Raises HoldsOther if the consumer has other allocations.
    """
    return await try_claim(tx, consumer, provider_uuid, resources) is Outcome.CLAIMED


async def try_claim(
    tx: Transaction, consumer: Consumer, provider_uuid: str, resources: Mapping[str, int], *, wait: bool = True
) -> Outcome:
    """Like `claim`; with `wait=False` a provider that somebody else is claiming from right now is BUSY."""
    wanted = _wanted(resources)
    # The lock makes claims on one provider run one after the other; the sums below are read after it is granted.
    provider_id = await tx.fetch_value(_LOCK if wait else _LOCK_OR_SKIP, provider_uuid)
    if provider_id is None:
        return Outcome.REFUSED if wait else await _missing_or_busy(tx, provider_uuid)
    arguments = [value for pair in wanted.items() for value in pair]
    taken = await tx.execute(_take(len(wanted)), consumer.uuid, provider_id, len(wanted), *arguments)
    if not taken:
        return await _held_or_refused(tx, consumer, provider_uuid, wanted)
    await _add_consumer(tx, consumer)
    await allocations_changed(tx, [provider_id])
    return Outcome.CLAIMED


async def release(tx: Transaction, consumer_uuid: str) -> None:
    """Give back everything the consumer holds; nothing if it holds nothing."""
    rows = await tx.fetch(_LOCK_HELD, consumer_uuid)
    if not rows:
        return
    await tx.execute("DELETE FROM consumers WHERE uuid = $1", consumer_uuid)  # its allocations go with it
    await allocations_changed(tx, [row["id"] for row in rows])


def _wanted(resources: Mapping[str, int]) -> dict[str, int]:
    """What is really asked for: a flavor without disk asks for no disk."""
    wanted = {name: amount for name, amount in resources.items() if amount}
    if not wanted or min(wanted.values()) < 0:
        raise ValueError(f"a claim needs positive amounts, not {dict(resources)}")
    return wanted


async def _add_consumer(tx: Transaction, consumer: Consumer) -> None:
    now = clock.now()
    values = (consumer.uuid, consumer.project_id, consumer.user_id, consumer.type, now)
    if not await tx.execute(_NEW_CONSUMER, *values):
        # Two transactions claim for one consumer on different providers at once: the later one starts again.
        raise Unavailable(f"consumer {consumer.uuid} is being written by another transaction")


async def _held_or_refused(tx: Transaction, consumer: Consumer, provider_uuid: str, wanted: dict[str, int]) -> Outcome:
    held = await tx.fetch(_HELD, consumer.uuid)
    if not held:
        return Outcome.REFUSED
    here = {row["resource_class"]: row["used"] for row in held if row["provider_uuid"] == provider_uuid}
    if here == wanted and len(held) == len(here):
        return Outcome.CLAIMED
    raise HoldsOther(consumer.uuid, held)


async def _missing_or_busy(tx: Transaction, provider_uuid: str) -> Outcome:
    there = await tx.fetch_value("SELECT id FROM resource_providers WHERE uuid = $1", provider_uuid)
    return Outcome.REFUSED if there is None else Outcome.BUSY


@lru_cache(maxsize=64)
def _take(classes: int) -> str:
    """The deciding statement: every class fits and the consumer holds nothing yet, or no row is written."""
    asked = ", ".join(f"(CAST(${4 + 2 * n} AS TEXT), CAST(${5 + 2 * n} AS BIGINT))" for n in range(classes))
    return f"""
        WITH asked (resource_class, amount) AS (VALUES {asked}),
        fits AS (
            SELECT asked.resource_class, asked.amount
            FROM asked JOIN inventories i ON i.provider_id = $2 AND i.resource_class = asked.resource_class
            WHERE asked.amount BETWEEN i.min_unit AND i.max_unit
              AND asked.amount % i.step_size = 0
              AND (i.total - i.reserved) * i.allocation_ratio >= asked.amount + COALESCE((
                    SELECT CAST(SUM(used) AS BIGINT) FROM allocations
                    WHERE provider_id = i.provider_id AND resource_class = i.resource_class), 0)
        )
        INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used)
        SELECT CAST($1 AS TEXT), CAST($2 AS BIGINT), resource_class, amount FROM fits
        WHERE (SELECT COUNT(*) FROM fits) = $3
          AND NOT EXISTS (SELECT 1 FROM allocations WHERE consumer_uuid = $1)
    """


_LOCK = "SELECT id FROM resource_providers WHERE uuid = $1 FOR UPDATE"
_LOCK_OR_SKIP = f"{_LOCK} SKIP LOCKED"
_LOCK_HELD = """
SELECT id FROM resource_providers
WHERE id IN (SELECT provider_id FROM allocations WHERE consumer_uuid = $1)
ORDER BY id FOR UPDATE
"""
_HELD = """
SELECT p.uuid AS provider_uuid, a.resource_class, a.used
FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
WHERE a.consumer_uuid = $1 ORDER BY p.id, a.resource_class
"""
_NEW_CONSUMER = """
INSERT INTO consumers (uuid, project_id, user_id, type, generation, created_at, updated_at)
VALUES ($1, $2, $3, $4, 1, $5, $5) ON CONFLICT (uuid) DO NOTHING
"""
