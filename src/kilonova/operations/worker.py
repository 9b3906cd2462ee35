"""A worker: leases operations, runs each as a task, renews the leases, and gives them back when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import orjson

from kilonova import clock
from kilonova.operations import store, table
from kilonova.operations.errors import LostLease
from kilonova.operations.requests import CANCELS, channel
from kilonova.operations.running import Running, Stopped
from kilonova.operations.states import QUEUED, UNDOING
from kilonova.operations.table import Operation
from kilonova.store import Database, Row, StoreError

logger = logging.getLogger(__name__)

LEASE = 15.0
SLOTS = 64
SWEEP = 2.0
GRACE = 10.0
PARKED = 30.0
"""Seconds after which an operation with an unknown step is looked at again."""
TIDY = 60.0


class Observer(Protocol):
    """Told of every end, for metrics."""

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None: ...

    def operation_finished(self, kind: str, state: str) -> None: ...


class Faults(Protocol):
    """Called `before` and `after` each action and undo; what it raises, or its never returning, is the fault."""

    async def at(self, point: str, phase: str, step: str, op: Operation) -> None: ...


def backoff(attempt: int) -> float:
    """0.1 s, doubled each time up to a minute, spread so that a crowd does not come back together."""
    return min(60.0, 0.1 * 2.0 ** min(attempt - 1, 10)) * random.uniform(0.75, 1.25)


class Worker:
    def __init__(
        self,
        db: Database,
        services: Any = None,
        *,
        owner: str | None = None,
        lease: float = LEASE,
        slots: int = SLOTS,
        sweep: float = SWEEP,
        kinds: Iterable[type[Operation]] | None = None,
        lane: str | None = None,
        observer: Observer | None = None,
        faults: Faults | None = None,
        backoff: Callable[[int], float] = backoff,
    ) -> None:
        self.db = db
        self.services = services
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.lease = lease
        self.slots = slots
        self.sweep = sweep
        self.observer = observer
        self.faults = faults
        self.backoff = backoff
        self.stopping = False
        known = table.kinds() if kinds is None else kinds
        self._kinds = {kind.kind: kind for kind in known if lane in (None, kind.lane)}
        self._held: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._cancels = False
        self._full = False
        self._grace = GRACE
        self._tidied = 0.0
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Work until `stop`. If cancelled instead it leaves everything as it stands, like a process that died."""
        for kind in self._kinds.values():
            kind.table()
        self._ended.clear()
        for woken in {channel(kind.lane) for kind in self._kinds.values()}:
            self.db.listen(woken, self._wake.set)
        self.db.listen(CANCELS, self._cancel_wanted)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew_for_ever())
                while not self.stopping:
                    self._wake.clear()
                    await self._once(group)
                    await self._sleep()
                await self._drain()
                renewing.cancel()
        finally:
            self._ended.set()

    async def stop(self, grace: float = GRACE) -> None:
        """Take nothing new, let running steps end for `grace` seconds, and give the leases back."""
        self._grace = grace
        self.stopping = True
        self._wake.set()
        await self._ended.wait()

    def holds(self, running: Running) -> bool:
        """Whether the lease can still be ours. A process that stood still finds out here, before it does any harm."""
        return time.monotonic() - running.leased_at < self.lease

    def due(self, at: float) -> None:
        """Look again then. Another worker may be first; if this process dies, the sweep of any other finds it."""
        if (pause := at - clock.now()) <= TIDY:
            asyncio.get_running_loop().call_later(max(pause, 0) + 0.001, self._wake.set)

    # Taking

    async def _once(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._take(group)
            if self._cancels and self._held:
                self._cancels = False
                for found in await store.cancels(self.db, list(self._held)):
                    self._cancel(found)
            if time.monotonic() - self._tidied > TIDY:
                self._tidied = time.monotonic()
                await store.tidy(self.db, {*self._kinds, *(kind.kind for kind in table.kinds())})
        except StoreError as error:
            logger.warning("the worker cannot reach the database: %s", error)

    async def _take(self, group: asyncio.TaskGroup) -> None:
        free = self.slots - len(self._held)
        self._full = free <= 0
        if self._full:
            return
        leased_at = time.monotonic()
        rows = await store.lease(self.db, self.owner, self.lease, list(self._kinds), free)
        self._full = len(rows) == free
        for row in rows:
            if (running := await self._prepare(row, leased_at)) is not None:
                task = group.create_task(self._carry_out(running))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _prepare(self, row: Row, leased_at: float) -> Running | None:
        kind = self._kinds[row["kind"]]
        try:
            plan = kind.table().plan(row["plan"], row["step"])
            op = kind(row, services=self.services, db=self.db)
        except Exception as error:
            known = isinstance(error, table.UnknownStep)
            await self._park(row, str(error) if known else f"The row cannot be read: {error!r}")
            return None
        if (stale := self._held.get(op.id)) is not None:
            stale.end(LostLease)
        running = self._held[op.id] = Running(self, op, row, plan, leased_at)
        return running

    async def _park(self, row: Row, reason: str) -> None:
        """Leave it to a worker of another release, and say why."""
        logger.warning("operation %s is left alone: %s", row["id"], reason)
        changes = {
            "state": UNDOING if row["state"] == UNDOING else QUEUED,
            "trouble": orjson.dumps({"type": "Unknown", "message": reason}).decode(),
            "attempt": 0,
            "run_at": clock.now() + PARKED,
        }
        try:
            async with self.db.transaction() as tx:
                await store.save(tx, row, changes, release=True)
        except (StoreError, LostLease):
            pass  # the lease runs out by itself

    async def _carry_out(self, running: Running) -> None:
        try:
            await running.run()
        except Exception:
            # Its lease runs out and it is tried again; the other operations must not suffer.
            logger.exception("the engine failed on operation %s", running.op.id)
        finally:
            if not self.stopping and self._held.get(running.op.id) is running:
                del self._held[running.op.id]
            if self._full:
                self._wake.set()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self.sweep):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Keeping

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.lease * store.RENEWAL)
            if not self._held:
                continue
            held = dict(self._held)
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(self.lease * store.RENEWAL):
                    found = await store.renew(self.db, self.owner, self.lease, list(held))
            except (StoreError, TimeoutError) as error:
                logger.warning("leases could not be renewed: %s", error)
                for running in held.values():
                    if not self.holds(running):
                        running.end(LostLease)
                continue
            for identity, running in held.items():
                if identity not in found:
                    running.end(LostLease)
                    continue
                running.leased_at = asked_at
                if found[identity]:
                    self._cancel(identity)

    def _cancel_wanted(self) -> None:
        self._cancels = True
        self._wake.set()

    def _cancel(self, identity: str) -> None:
        if (running := self._held.get(identity)) is not None:
            running.cancel()

    # Giving back

    async def _drain(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for running in self._held.values():
            running.end(Stopped)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for task in self._tasks:
            task.cancel()
        if self._held:
            try:
                await store.release(self.db, self.owner, list(self._held))
            except StoreError as error:
                logger.warning("leases run out by themselves, they could not be given back: %s", error)
