"""A table with a column of each type, for tests of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kilonova.store import Database
from tests.support.databases import opened

CREATE_THINGS = """
CREATE TABLE things (
    id TEXT NOT NULL, ok BOOLEAN, n BIGINT, at DOUBLE PRECISION, doc TEXT, owner TEXT,
    CONSTRAINT pk_things PRIMARY KEY (id),
    CONSTRAINT uq_things_n_doc UNIQUE (n, doc),
    CONSTRAINT fk_things_owner FOREIGN KEY (owner) REFERENCES things (id)
)
"""


@asynccontextmanager
async def database_with_things(url: str) -> AsyncIterator[Database]:
    """The database with an empty table `things`."""
    async with opened(url) as db:
        async with db.transaction() as tx:
            await tx.execute(CREATE_THINGS)
            await tx.execute("CREATE UNIQUE INDEX things_at ON things (at) WHERE ok")
        yield db


async def add_things(db: Database, *idents: str) -> None:
    async with db.transaction() as tx:
        for ident in idents:
            await tx.execute("INSERT INTO things (id) VALUES ($1)", ident)


async def thing_ids(db: Database) -> set[str]:
    return {row["id"] for row in await db.fetch("SELECT id FROM things")}
