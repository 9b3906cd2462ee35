"""The incarnation of the database: a number that each restore raises, and the number of leases since.

Every command to a host carries both, and the host remembers the highest. So a host notices commands of a database that
was replaced, and the control plane notices that its database is older than its hosts.
docs/decisions/0025-restored-databases.md gives the reasons.
"""

from __future__ import annotations

from typing import NamedTuple

from kilonova import clock
from kilonova.store import Database, Transaction, open_database

_INSERT = """
INSERT INTO incarnation (number, leases) SELECT CAST($1 AS BIGINT), 0 WHERE NOT EXISTS (SELECT 1 FROM incarnation)
"""
_READ = "SELECT number, leases FROM incarnation"
_RAISE = "UPDATE incarnation SET number = GREATEST(number + 1, $1), leases = 0"


class Mark(NamedTuple):
    """A point in the history of a database. Later points are greater."""

    incarnation: int = 0
    leases: int = 0


async def set_up(db: Database) -> Mark:
    """Return the mark of the database. A new database gets a number above those of all earlier databases."""
    if (row := await db.fetch_one(_READ)) is None:
        async with db.transaction() as tx:
            await tx.lock("incarnation")
            await tx.execute(_INSERT, _time_number())
        row = await db.fetch_one(_READ)
    assert row is not None
    return Mark(row["number"], row["leases"])


async def read(db: Database) -> Mark:
    row = await db.fetch_one(_READ)
    return Mark(row["number"], row["leases"]) if row is not None else Mark()


async def begin_new(tx: Transaction) -> None:
    """Begin a new incarnation: hosts then accept the database, whatever they have seen of an earlier one."""
    await tx.execute(_INSERT, 0)
    await tx.execute(_RAISE, _time_number())


async def renew(url: str) -> None:
    """Begin a new incarnation of a database that no process uses."""
    db = await open_database(url)
    try:
        async with db.transaction() as tx:
            await begin_new(tx)
    finally:
        await db.close()


def _time_number() -> int:
    """Milliseconds since the epoch: greater than the numbers of other copies of the same database."""
    return int(clock.now() * 1000)
