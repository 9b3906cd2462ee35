"""The worker: leases operations, runs each in a task, renews the leases, and releases them when it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kilonova import clock
from kilonova.operations import definition, store
from kilonova.operations.control import CANCEL_CHANNEL, lane_channel
from kilonova.operations.definition import Operation
from kilonova.operations.errors import LostLease
from kilonova.operations.execution import Execution, WorkerStopped
from kilonova.operations.row import Changes, OperationRow, StoredError
from kilonova.operations.states import QUEUED, UNDOING
from kilonova.store import Database, StoreError

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.telemetry.audit import AuditLog

logger = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
DEFAULT_SLOTS = 64
SWEEP_SECONDS = 2.0
STOP_GRACE_SECONDS = 10.0
UNKNOWN_STEP_RETRY_SECONDS = 30.0
"""An operation with an unknown step is checked again after this time."""
CLEANUP_SECONDS = 60.0


class Observer(Protocol):
    """Called at the end of every step and operation, for metrics."""

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None: ...

    def operation_finished(self, kind: str, state: str) -> None: ...


class FaultInjector(Protocol):
    """Called `before` and `after` each action and undo. It injects a fault by raising, or by not returning."""

    async def at(self, point: str, phase: str, step: str, op: Operation) -> None: ...


def backoff(attempt: int) -> float:
    """The delay before a retry: 0.1 s, doubled each time up to a minute, with random jitter."""
    return min(60.0, 0.1 * 2.0 ** min(attempt - 1, 10)) * random.uniform(0.75, 1.25)


class Worker:
    def __init__(
        self,
        db: Database,
        services: Services,
        *,
        owner: str | None = None,
        lease: float = LEASE_SECONDS,
        slots: int = DEFAULT_SLOTS,
        sweep: float = SWEEP_SECONDS,
        kinds: Iterable[type[Operation]] | None = None,
        lane: str | None = None,
        observer: Observer | None = None,
        audit: AuditLog | None = None,
        on_lease: Callable[[int], None] = lambda number: None,
        faults: FaultInjector | None = None,
        backoff: Callable[[int], float] = backoff,
    ) -> None:
        self.db = db
        self.services = services
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.lease = lease
        self.slots = slots
        self.sweep = sweep
        self.observer = observer
        self.audit = audit
        self._on_lease = on_lease
        self.faults = faults
        self.backoff = backoff
        self.stopping = False
        known = definition.all_kinds() if kinds is None else kinds
        self._kinds = {kind.kind: kind for kind in known if lane in (None, kind.lane)}
        self._executions: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._cancel_requested = False
        self._full = False
        self._grace = STOP_GRACE_SECONDS
        self._cleaned_up_at = 0.0
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Work until `stop`. If the task is cancelled instead, operations are left like by a process that died."""
        for kind in self._kinds.values():
            kind.table()
        self._ended.clear()
        for name in {lane_channel(kind.lane) for kind in self._kinds.values()}:
            self.db.listen(name, self._wake.set)
        self.db.listen(CANCEL_CHANNEL, self._on_cancel_request)
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew_leases())
                while not self.stopping:
                    self._wake.clear()
                    await self._run_once(group)
                    await self._sleep()
                await self._stop_executions()
                renewing.cancel()
        finally:
            self._ended.set()

    async def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Lease no more operations, let running steps end for `grace` seconds, and release the leases."""
        self._grace = grace
        self.stopping = True
        self._wake.set()
        await self._ended.wait()

    def has_lease(self, execution: Execution) -> bool:
        """Whether the lease may still be valid. This detects a process that was suspended for too long."""
        return time.monotonic() - execution.leased_at < self.lease

    def wake_at(self, at: float) -> None:
        """Check for due operations at this time. Other workers find them with their sweeps if this process dies."""
        if (pause := at - clock.now()) <= CLEANUP_SECONDS:
            asyncio.get_running_loop().call_later(max(pause, 0) + 0.001, self._wake.set)

    # Leasing operations

    async def _run_once(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._lease_operations(group)
            if self._cancel_requested and self._executions:
                self._cancel_requested = False
                for found in await store.find_cancel_requests(self.db, list(self._executions)):
                    self._cancel(found)
            if time.monotonic() - self._cleaned_up_at > CLEANUP_SECONDS:
                self._cleaned_up_at = time.monotonic()
                await store.clean_up(self.db, {*self._kinds, *(kind.kind for kind in definition.all_kinds())})
        except StoreError as error:
            logger.warning("the worker cannot reach the database: %s", error)

    async def _lease_operations(self, group: asyncio.TaskGroup) -> None:
        free = self.slots - len(self._executions)
        self._full = free <= 0
        if self._full:
            return
        leased_at = time.monotonic()
        rows, number = await store.lease(self.db, self.owner, self.lease, list(self._kinds), free)
        self._on_lease(number)
        self._full = len(rows) == free
        for row in rows:
            if (execution := await self._prepare(row, leased_at)) is not None:
                task = group.create_task(self._run_execution(execution))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _prepare(self, row: OperationRow, leased_at: float) -> Execution | None:
        kind = self._kinds[row.kind]
        try:
            plan = kind.table().plan(row.plan, row.step)
            op = kind(row, services=self.services, db=self.db)
        except Exception as error:
            known = isinstance(error, definition.UnknownStep)
            await self._postpone(row, str(error) if known else f"The row cannot be read: {error!r}")
            return None
        if (stale := self._executions.get(op.id)) is not None:
            stale.stop(LostLease)
        execution = self._executions[op.id] = Execution(self, op, row, plan, leased_at)
        return execution

    async def _postpone(self, row: OperationRow, reason: str) -> None:
        """Release an operation that only a worker of another release can run, and record why."""
        logger.warning("operation %s cannot be run by this release: %s", row.id, reason)
        changes: Changes = {
            "state": UNDOING if row.state == UNDOING else QUEUED,
            "trouble": StoredError(type="Unknown", message=reason).encode(),
            "attempt": 0,
            "run_at": clock.now() + UNKNOWN_STEP_RETRY_SECONDS,
        }
        try:
            async with self.db.transaction() as tx:
                await store.save(tx, row, changes, release=True)
        except (StoreError, LostLease):
            pass  # the lease expires

    async def _run_execution(self, execution: Execution) -> None:
        try:
            await execution.run()
        except Exception:
            # The lease expires and the operation is retried. Other operations must not be affected.
            logger.exception("the engine failed on operation %s", execution.op.id)
        finally:
            if not self.stopping and self._executions.get(execution.op.id) is execution:
                del self._executions[execution.op.id]
            if self._full:
                self._wake.set()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self.sweep):
                await self._wake.wait()
        except TimeoutError:
            pass

    # Renewing leases

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self.lease * store.RENEWAL_FRACTION)
            if not self._executions:
                continue
            leased = dict(self._executions)
            renewed_at = time.monotonic()
            try:
                async with asyncio.timeout(self.lease * store.RENEWAL_FRACTION):
                    found = await store.renew(self.db, self.owner, self.lease, list(leased))
            except (StoreError, TimeoutError) as error:
                logger.warning("leases could not be renewed: %s", error)
                for execution in leased.values():
                    if not self.has_lease(execution):
                        execution.stop(LostLease)
                continue
            for operation_id, execution in leased.items():
                if operation_id not in found:
                    execution.stop(LostLease)
                    continue
                execution.leased_at = renewed_at
                if found[operation_id]:
                    self._cancel(operation_id)

    def _on_cancel_request(self) -> None:
        self._cancel_requested = True
        self._wake.set()

    def _cancel(self, operation_id: str) -> None:
        if (execution := self._executions.get(operation_id)) is not None:
            execution.cancel()

    # Stopping

    async def _stop_executions(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for execution in self._executions.values():
            execution.stop(WorkerStopped)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for task in self._tasks:
            task.cancel()
        if self._executions:
            try:
                await store.release(self.db, self.owner, list(self._executions))
            except StoreError as error:
                logger.warning("the leases could not be released and will expire: %s", error)
