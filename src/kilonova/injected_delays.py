"""Random delays before and after every SQL statement, host command and HTTP call of a process.

A cloud with `[delays]` behaves like one on a slow machine, so that rare races become common. `make soak` runs the tests
with delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from kilonova.config import DelaysConfig
    from kilonova.hosts.messages import Command
    from kilonova.hosts.messages.verbs import Answer, Verb
    from kilonova.hosts.transport import Transport
    from kilonova.http.client import Caller, ClientResponse, StreamResponse
    from kilonova.store import Database, Row, Transaction

T = TypeVar("T")
P = ParamSpec("P")
# Exponent of the random factor: most delays are short, a few are long.
_SKEW = 4


class Delays:
    """Wraps the parts of one process. The seed fixes the sequence of delays, not which task gets which delay."""

    def __init__(self, config: DelaysConfig) -> None:
        self._seconds = config.milliseconds / 1000
        self._random = random.Random(config.seed)

    async def pause(self) -> None:
        await asyncio.sleep(self._seconds * self._random.random() ** _SKEW)

    async def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, with a pause before it and one after it."""
        await self.pause()
        result = await function(*args, **kwargs)
        await self.pause()
        return result

    def database(self, db: Database) -> Database:
        return _Database(db, self) if self._seconds else db

    def transport(self, hosts: Transport) -> Transport:
        return _Transport(hosts, self) if self._seconds else hosts

    def caller(self, caller: Caller) -> Caller:
        return _Caller(caller, self) if self._seconds else caller


class _Reader:
    def __init__(self, inner: Any, delays: Delays) -> None:
        self._inner = inner
        self._delays = delays

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        return cast("list[Row]", await self._delays.call(self._inner.fetch, sql, *args))

    async def fetch_one(self, sql: str, *args: Any) -> Row | None:
        return cast("Row | None", await self._delays.call(self._inner.fetch_one, sql, *args))

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        return await self._delays.call(self._inner.fetch_value, sql, *args)


class _Transaction(_Reader):
    async def execute(self, sql: str, *args: Any) -> int:
        return cast("int", await self._delays.call(self._inner.execute, sql, *args))

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._delays.call(self._inner.execute_many, sql, rows)

    async def lock(self, key: str) -> None:
        await self._delays.call(self._inner.lock, key)

    def notify(self, channel: str) -> None:
        self._inner.notify(channel)


class _Database(_Reader):
    def __init__(self, inner: Database, delays: Delays) -> None:
        super().__init__(inner, delays)
        self.dialect = inner.dialect

    @property
    def commits(self) -> int:
        return cast("int", self._inner.commits)

    @property
    def last_full_at(self) -> float:
        return cast("float", self._inner.last_full_at)

    async def search(self, sql: str, *args: Any) -> list[Row]:
        await self._delays.pause()
        return cast("list[Row]", await self._inner.search(sql, *args))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        await self._delays.pause()
        async with self._inner.transaction() as tx:
            yield _Transaction(tx, self._delays)
            await self._delays.pause()
        await self._delays.pause()

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        self._inner.listen(channel, callback)

    async def close(self) -> None:
        await self._inner.close()


class _Transport:
    def __init__(self, inner: Transport, delays: Delays) -> None:
        self._inner = inner
        self._delays = delays

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        return await self._delays.call(self._inner.call, host, command, timeout=timeout)


class _Caller:
    def __init__(self, inner: Caller, delays: Delays) -> None:
        self._inner = inner
        self._delays = delays

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        return await self._delays.call(self._inner.request, method, path, **options)

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncIterator[StreamResponse]:
        await self._delays.pause()
        async with self._inner.stream(method, path, **options) as answer:
            yield answer
