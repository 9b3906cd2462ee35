"""What the rest of the program knows of a database: one small port, and the errors it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = dict[str, Any]


class StoreError(Exception):
    """Anything the store itself has to complain about."""


class Conflict(StoreError):
    """A unique or foreign key is violated. `kind` is "unique" or "foreign key"; `constraint` its name where known."""

    def __init__(self, message: str, *, kind: str = "unique", constraint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.constraint = constraint


class Invalid(StoreError, ValueError):
    """A value that the column cannot hold: wrong type, out of range, null where none is allowed, NUL in text."""


class Unavailable(StoreError):
    """Passing trouble (deadlock, connection lost, busy, disk full): the same thing may succeed later."""


class SchemaError(StoreError):
    """The database's schema is not one that this release can use or upgrade."""


class Reader(Protocol):
    async def fetch(self, sql: str, *args: Any) -> list[Row]: ...

    async def fetch_one(self, sql: str, *args: Any) -> Row | None: ...

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        """The first column of the first row, or None."""


class Transaction(Reader, Protocol):
    """Sees its own writes. After a statement failed nothing but leaving by an exception is possible."""

    async def execute(self, sql: str, *args: Any) -> int:
        """Run a statement; the number of rows it inserted, updated or deleted."""

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    async def hold(self, key: str) -> None:
        """Transactions that hold the same key run one after the other, until commit."""

    def wake(self, channel: str) -> None:
        """Call the channel's listeners after commit: in every process on PostgreSQL, in this one on SQLite."""


class Database(Reader, Protocol):
    """Reads outside a transaction see what is committed, and cannot write."""

    dialect: str

    @property
    def commits(self) -> int:
        """How many times something was made durable; one for a whole group of transactions on SQLite."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Commits at exit, rolls back on an exception; what it did is durable when it returns."""

    def listen(self, channel: str, callback: Callable[[], None]) -> None: ...

    async def close(self) -> None: ...
