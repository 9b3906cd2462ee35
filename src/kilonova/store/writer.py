"""SQLite's single writer with group commit: transactions run one after the other, and one COMMIT ends many of them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import apsw

from kilonova.store.interface import StorageFull, Unavailable

MAX_GROUP_TRANSACTIONS = 128
"""The maximum of transactions in one COMMIT, so that a stream of transactions cannot delay it forever."""

LOCK_TIMEOUT_SECONDS = 10.0
"""How long to wait for another process that writes to the same file."""


class Group:
    """The transactions that one COMMIT makes durable.

    `transactions` counts those that have ended, `members` those of them that were not rolled back.
    """

    __slots__ = (
        "channels",
        "failure",
        "is_finished",
        "is_lost",
        "members",
        "transactions",
        "unchanged_total",
        "waiters",
    )

    def __init__(self, total_changes: int) -> None:
        self.unchanged_total = total_changes
        self.transactions = 0
        self.members = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.channels: set[str] = set()
        self.is_finished = False
        self.is_lost = False
        self.failure: Unavailable | None = None


class Writer:
    """A FIFO lock on the connection for writing, which commits when no other transaction is waiting.

    The connection is busy while a transaction or the committing thread uses it. All statements but COMMIT run on the
    event loop's thread. COMMIT belongs to the writer and not to a task, so cancelling a task cannot interrupt it.
    """

    def __init__(self, connection: apsw.Connection, call_listeners: Callable[[Iterable[str]], None]) -> None:
        self.commits = 0
        self.last_full_at = -math.inf
        self._connection = connection
        self._call_listeners = call_listeners
        self._loop = asyncio.get_running_loop()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._busy = False
        self._holder: asyncio.Task[Any] | None = None
        self._group: Group | None = None
        self._closing: asyncio.Future[None] | None = None
        self._jobs: SimpleQueue[Group | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._commit_in_thread, name="sqlite-commit", daemon=True)
        self._thread.start()

    async def enter(self) -> Group:
        """Wait for the connection and begin. Every call that returns must be followed by `leave`."""
        task = asyncio.current_task()
        if task is not None and task is self._holder:
            raise RuntimeError("a nested transaction would wait for the outer one")
        if self._closing is not None:
            raise Unavailable("the database is closed")
        if self._busy:
            await self._wait_in_queue()
        self._busy = True
        self._holder = task
        try:
            group = self._group or await self._begin()
            self._connection.execute("SAVEPOINT member")
        except BaseException:
            self._pass_on()
            raise
        return group

    def leave(self, group: Group, keep: bool, channels: set[str] | None) -> bool:
        """End a transaction and keep its changes or not. False if a deferred foreign key does not allow to keep them.

        If ending fails, the whole group is lost.
        """
        try:
            if not group.is_lost:
                # COMMIT would check deferred foreign keys too, but fail for the whole group.
                keep = keep and not self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]
                group.transactions += 1
                if not keep:
                    self._connection.execute("ROLLBACK TO member")
                self._connection.execute("RELEASE member")
                if keep:
                    group.members += 1
                    if channels:
                        group.channels |= channels
        except apsw.Error as error:
            self.abandon(group, error)
        finally:
            self._pass_on()
        return keep

    async def wait_until_durable(self, group: Group) -> None:
        """Return when the group is committed. Raises Unavailable if the commit fails."""
        if group.is_lost:
            raise group.failure or Unavailable("the database rolled the transaction back")
        if group.is_finished:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        group.waiters.append(waiter)
        await waiter

    def is_rolled_back(self) -> bool:
        """Whether an error made SQLite roll back everything, including the group's earlier members."""
        return not self._connection.in_transaction

    def note_failure(self, error: BaseException) -> None:
        if isinstance(error, (StorageFull, apsw.FullError)):
            self.last_full_at = time.monotonic()

    def abandon(self, group: Group, error: BaseException) -> None:
        """Roll the whole group back; all its members fail."""
        if not group.is_finished:
            self._roll_back()
            self._finish_group(group, error)

    async def close(self) -> None:
        """Wait for the running transaction and the commit. Transactions in the queue fail."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            while self._queue:
                waiter = self._queue.popleft()
                if not waiter.done():
                    waiter.set_exception(Unavailable("the database is closed"))
            if not self._busy:
                self._pass_on()
        await asyncio.shield(self._closing)

    async def _wait_in_queue(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on()  # the connection had just been handed to this task
            raise

    async def _begin(self) -> Group:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        pause = 0.001
        self._roll_back()
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except apsw.BusyError as error:
                if time.monotonic() > deadline:
                    raise Unavailable("another process keeps the database locked") from error
            except apsw.Error as error:
                self.note_failure(error)
                raise _failure(error) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        self._group = Group(self._connection.total_changes())
        return self._group

    def _pass_on(self) -> None:
        """Hand the connection to the next waiting transaction; if there is none, commit when the loop is idle."""
        self._holder = None
        group = self._group
        if group is not None and group.transactions >= MAX_GROUP_TRANSACTIONS:
            self._commit(group)
            return
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy = False
        if group is not None:
            # Ready tasks run before this callback, and may join the group.
            self._loop.call_soon(self._commit_if_idle, group)
        elif self._closing is not None and not self._closing.done():
            self._jobs.put(None)
            self._thread.join()
            self._closing.set_result(None)

    def _commit_if_idle(self, group: Group) -> None:
        if self._group is group and not self._busy:
            self._commit(group)

    def _commit(self, group: Group) -> None:
        self._busy = True
        if group.members == 0:
            self._roll_back()
            self._finish(group, None)
        elif self._connection.total_changes() == group.unchanged_total:
            self._finish(group, self._try_commit())  # without changes COMMIT does not sync
        else:
            self._jobs.put(group)

    def _commit_in_thread(self) -> None:
        while (group := self._jobs.get()) is not None:
            error = self._try_commit()
            if error is None:
                self.last_full_at = -math.inf
            try:
                self._loop.call_soon_threadsafe(self._finish, group, error)
            except RuntimeError:
                return  # the loop is closed, so nothing waits for the result

    def _try_commit(self) -> BaseException | None:
        try:
            self._connection.execute("COMMIT")
        except BaseException as error:
            return error
        self.commits += 1
        return None

    def _finish(self, group: Group, error: BaseException | None) -> None:
        if error is not None:
            self._roll_back()
        self._finish_group(group, error)
        self._pass_on()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # repeated before the next BEGIN

    def _finish_group(self, group: Group, error: BaseException | None) -> None:
        self._group = None
        group.is_finished = True
        group.is_lost = error is not None
        if error is not None:
            self.note_failure(error)
            group.failure = _failure(error)
            group.failure.__cause__ = error
        for waiter in group.waiters:
            if waiter.done():
                continue
            if group.failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(group.failure)
        if error is None and group.channels:
            self._call_listeners(group.channels)


def _failure(error: BaseException) -> Unavailable:
    """The error of a group that was not committed."""
    if isinstance(error, (StorageFull, apsw.FullError)):
        return StorageFull("the disk of the database is full")
    return Unavailable(f"the transaction could not be committed: {error}")
