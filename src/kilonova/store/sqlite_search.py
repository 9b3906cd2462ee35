"""Runs statements with regular expressions of users on SQLite: in threads, and with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apsw

from kilonova.store.interface import MAX_SEARCHES, SEARCH_TIMEOUT_SECONDS, Row, TooSlow, Unavailable
from kilonova.store.sqlite_statements import Statements

# SQLite looks at the deadline after so many of its virtual machine's instructions. A row takes about ten.
_INSTRUCTIONS_BETWEEN_CHECKS = 100


class Search:
    """`connect` opens a connection for reading. Each thread has one, which is opened at first use."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._threads = ThreadPoolExecutor(MAX_SEARCHES, thread_name_prefix="sqlite-search")
        self._idle: list[apsw.Connection] = []
        self._closed = False

    async def fetch(self, sql: str, args: Sequence[Any]) -> list[Row]:
        if self._closed:
            raise Unavailable("the database is closed")
        latest_start = time.monotonic() + SEARCH_TIMEOUT_SECONDS
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, sql, args, latest_start)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(cancel_futures=True)
        for connection in self._idle:
            connection.close()

    def _run(self, sql: str, args: Sequence[Any], latest_start: float) -> list[Row]:
        started = time.monotonic()
        if started > latest_start:
            raise Unavailable("too many searches are under way")
        connection = self._idle.pop() if self._idle else self._connect()
        deadline = started + SEARCH_TIMEOUT_SECONDS

        def is_over() -> bool:
            return self._closed or time.monotonic() > deadline

        connection.set_progress_handler(is_over, _INSTRUCTIONS_BETWEEN_CHECKS)
        try:
            return Statements(connection).fetch(sql, args)
        except Unavailable as error:
            if isinstance(error.__cause__, apsw.InterruptError) and not self._closed:
                raise TooSlow(f"the search took longer than {SEARCH_TIMEOUT_SECONDS:g} seconds") from error
            raise
        finally:
            self._idle.append(connection)
