"""SQLite's one writer: transactions take turns, and one COMMIT makes many of them durable."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import apsw

from kilonova.store.port import Unavailable

TURNS = 128
"""How many transactions may share a COMMIT, so that a stream of them cannot put it off for ever."""

PATIENCE = 10.0
"""Seconds to wait for another process that is writing to the same file."""


class Group:
    """Transactions that one COMMIT makes durable together."""

    __slots__ = ("before", "channels", "lost", "members", "settled", "turns", "waiters")

    def __init__(self, before: int) -> None:
        self.before = before
        self.turns = 0
        self.members = 0
        self.waiters: list[asyncio.Future[None]] = []
        self.channels: set[str] = set()
        self.settled = False
        self.lost = False


class Writer:
    """A FIFO lock on the writing connection, which commits when nobody else wants a turn.

    The connection is in one of three hands: that of the transaction whose turn it is, that of the committing thread,
    or nobody's. Only the first two count as busy. Everything but COMMIT runs on the event loop's thread, and COMMIT
    belongs to the writer rather than to any task, so cancelling a task cannot cut it off.
    """

    def __init__(self, connection: apsw.Connection, committed: Callable[[Iterable[str]], None]) -> None:
        self.commits = 0
        self._connection = connection
        self._committed = committed
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
        """Wait for a turn and begin; every call that returns must be followed by `leave`."""
        task = asyncio.current_task()
        if task is not None and task is self._holder:
            raise RuntimeError("a transaction inside a transaction would wait for itself")
        if self._closing is not None:
            raise Unavailable("the database is closed")
        if self._busy:
            await self._turn()
        self._busy = True
        self._holder = task
        try:
            group = self._group or await self._begin()
            self._connection.execute("SAVEPOINT turn")
        except BaseException:
            self._next()
            raise
        return group

    def leave(self, group: Group, keep: bool, channels: set[str] | None) -> bool:
        """End the turn, with its changes or without them: False if a deferred foreign key forbids to keep them.

        A turn that fails to end takes the whole group with it.
        """
        try:
            if not group.lost:
                # COMMIT would look at these too late: it would fail for all.
                keep = keep and not self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]
                group.turns += 1
                if not keep:
                    self._connection.execute("ROLLBACK TO turn")
                self._connection.execute("RELEASE turn")
                if keep:
                    group.members += 1
                    if channels:
                        group.channels |= channels
        except apsw.Error as error:
            self.lose(group, error)
        finally:
            self._next()
        return keep

    async def durable(self, group: Group) -> None:
        """Return when the group is committed. Raises Unavailable if it could not be."""
        if group.lost:
            raise Unavailable("the database rolled the transaction back")
        if group.settled:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        group.waiters.append(waiter)
        await waiter

    def rolled_back(self) -> bool:
        """Whether an error made SQLite roll back everything, the group's earlier members included."""
        return not self._connection.in_transaction

    def lose(self, group: Group, error: BaseException) -> None:
        """Give up the group: nothing of it is in the database, and its members are told."""
        if not group.settled:
            self._roll_back()
            self._settle(group, error)

    async def close(self) -> None:
        """Let the running transaction and the commit end; those still waiting for a turn are refused."""
        if self._closing is None:
            self._closing = self._loop.create_future()
            while self._queue:
                turn = self._queue.popleft()
                if not turn.done():
                    turn.set_exception(Unavailable("the database is closed"))
            if not self._busy:
                self._next()
        await asyncio.shield(self._closing)

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._next()  # the turn had just come
            raise

    async def _begin(self) -> Group:
        give_up = time.monotonic() + PATIENCE
        pause = 0.001
        self._roll_back()
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except apsw.BusyError as error:
                if time.monotonic() > give_up:
                    raise Unavailable("another process keeps the database locked") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        self._group = Group(self._connection.total_changes())
        return self._group

    def _next(self) -> None:
        """Hand the connection to whoever comes next; without anybody, commit as soon as the loop has nothing else."""
        self._holder = None
        group = self._group
        if group is not None and group.turns >= TURNS:
            self._commit(group)
            return
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
        if group is not None:
            # Tasks that are ready to run may want to join; they come before this callback.
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
        elif self._connection.total_changes() == group.before:
            self._finish(group, self._try_commit())  # nothing to write, nothing to wait for
        else:
            self._jobs.put(group)

    def _commit_in_thread(self) -> None:
        while (group := self._jobs.get()) is not None:
            error = self._try_commit()
            try:
                self._loop.call_soon_threadsafe(self._finish, group, error)
            except RuntimeError:
                return  # the loop is gone, and with it everyone who waited

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
        self._settle(group, error)
        self._next()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # tried again before the next BEGIN

    def _settle(self, group: Group, error: BaseException | None) -> None:
        self._group = None
        group.settled = True
        group.lost = error is not None
        for waiter in group.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                refusal = Unavailable(f"the transaction could not be committed: {error}")
                refusal.__cause__ = error
                waiter.set_exception(refusal)
        if error is None and group.channels:
            self._committed(group.channels)
