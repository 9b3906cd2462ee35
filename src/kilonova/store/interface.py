"""The interface to a database, the same for SQLite and PostgreSQL, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = dict[str, Any]

SEARCH_TIMEOUT_SECONDS = 2.0
"""How long a search may take, and how long it may wait for others."""

MAX_SEARCHES = 2
"""How many searches run at once."""


class StoreError(Exception):
    """Base of all errors of the database."""


class Conflict(StoreError):
    """A unique or foreign key is violated. `kind` is "unique" or "foreign key"; `constraint` is its name if known."""

    def __init__(self, message: str, *, kind: str = "unique", constraint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.constraint = constraint


class Invalid(StoreError, ValueError):
    """A value that the column cannot store: wrong type, out of range, null, or NUL in text."""


class Unavailable(StoreError):
    """A transient failure (deadlock, connection lost, busy): a retry may succeed."""


class StorageFull(Unavailable):
    """The database's disk is full. Nothing was changed, and reads go on."""


class TooSlow(StoreError):
    """A search took longer than SEARCH_TIMEOUT_SECONDS."""


class SchemaError(StoreError):
    """This release can neither use nor upgrade the database's schema."""


class Reader(Protocol):
    async def fetch(self, sql: str, *args: Any) -> list[Row]: ...

    async def fetch_one(self, sql: str, *args: Any) -> Row | None: ...

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        """The first column of the first row, or None."""


class Transaction(Reader, Protocol):
    """Sees its own writes. After a failed statement it can only be left with an exception."""

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement. Returns the number of rows inserted, updated or deleted."""

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    async def lock(self, key: str) -> None:
        """Take an advisory lock until the end of the transaction."""

    def notify(self, channel: str) -> None:
        """Call the channel's listeners after commit: in all processes on PostgreSQL, in this one on SQLite."""


class Database(Reader, Protocol):
    """Statements outside a transaction see committed data, and cannot write."""

    dialect: str

    @property
    def commits(self) -> int:
        """The number of COMMITs. On SQLite, a group of transactions has one."""

    @property
    def last_full_at(self) -> float:
        """When a write failed last because the disk is full (`time.monotonic`). Minus infinity: none, or not since."""

    async def search(self, sql: str, *args: Any) -> list[Row]:
        """Run a statement with a regular expression of a user, without blocking the event loop.

        Raises TooSlow if it takes too long, and Unavailable if too many others are under way.
        """

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Commits at exit, rolls back on an exception. Changes are durable when the exit returns."""

    def listen(self, channel: str, callback: Callable[[], None]) -> None: ...

    async def close(self) -> None: ...
