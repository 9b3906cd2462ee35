"""Runs one leased operation: its steps and waits, retries, and undo.

`row` is the content of the database and changes only after a commit. After a failure, changes that the action made in
memory are dropped, so that a retry starts from the same state as a retry after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from msgspec import json
from msgspec.structs import replace

from kilonova import clock
from kilonova.operations import audit, errors, events, store
from kilonova.operations.definition import AnyEntry, Operation, Step, Wait, deadline_seconds
from kilonova.operations.errors import Cancelled, Failed, GoBack, LostLease, TimedOut
from kilonova.operations.row import Changes, OperationRow, decode_error
from kilonova.operations.states import CANCELLED, DONE, FAILED, QUEUED, RUNNING, UNDOING, WAITING
from kilonova.store import Transaction, Unavailable
from kilonova.telemetry import context
from kilonova.telemetry.context import operation_id

if TYPE_CHECKING:
    from kilonova.operations.worker import Worker

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
R = TypeVar("R")

FORWARD, UNDO = "forward", "undo"
MAX_SLEEP_SECONDS = 2.0
"""The worker sleeps for delays up to this; for longer ones it releases the lease."""


class WorkerStopped(Exception):
    """The worker is stopping, and the step did not end within the grace period."""


class Execution:
    def __init__(
        self, worker: Worker, op: Operation, row: OperationRow, plan: tuple[AnyEntry, ...], leased_at: float
    ) -> None:
        self.worker = worker
        self.op = op
        self.row = row
        self.plan = plan
        self.leased_at = leased_at
        self.released = False
        self._names = [step.name for step in plan]
        self._scope: asyncio.Timeout | None = None
        self._cancellable = False
        self._stop_reason: type[Exception] | None = None

    @property
    def index(self) -> int:
        return self._names.index(self.row.step)

    async def run(self) -> None:
        operation_id.set(self.op.id)
        context.request_id.set(self.op.request_id)
        failures = 0
        while not self.released and not self.worker.stopping:
            try:
                self._check_interruption(False)
                if self.row.state == UNDOING:
                    await self._undo()
                elif self.op.cancelled:
                    await self._begin_undo(_cancel_error())
                else:
                    await self._forward()
                failures = 0
            except (LostLease, WorkerStopped) as end:
                logger.info("stopped running the operation: %s", type(end).__name__)
                return
            except Unavailable as error:
                failures += 1
                logger.warning("the result of a step cannot be recorded: %s", error)
                await asyncio.sleep(min(self.worker.backoff(failures), MAX_SLEEP_SECONDS))

    # Called by the worker

    def cancel(self) -> None:
        self.op.cancelled = True
        if self._cancellable:
            self._interrupt()

    def stop(self, reason: type[Exception]) -> None:
        """Stop running the operation, because the lease is lost or will be released."""
        self._stop_reason = reason
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt an action or a delay. A transaction is never interrupted."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _check_interruption(self, cancellable: bool) -> None:
        if not self.worker.has_lease(self):
            raise LostLease(self.op.id)
        if self._stop_reason is not None:
            raise self._stop_reason(self.op.id)
        if cancellable and self.op.cancelled:
            raise _cancel_error()

    async def _interruptible(
        self,
        seconds: float,
        cancellable: bool,
        action: Callable[Arguments, Awaitable[R]],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> R:
        """Run an action outside a transaction until it ends, times out or is interrupted."""
        self._check_interruption(cancellable)
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                self._scope, self._cancellable = scope, cancellable
                return await action(*args, **options)
        except Exception as error:
            # The interrupted code may raise any error, so the reason is determined here.
            if not scope.expired():
                raise
            self._check_interruption(cancellable)
            raise self._timeout_error() from error
        finally:
            self._scope, self._cancellable = None, False

    def _timeout_error(self) -> TimedOut:
        step = self.plan[self.index]
        message = f"'{step.name}' did not end within {deadline_seconds(step, self.op):g} s"
        if self.row.trouble is None:
            return TimedOut(message)
        trouble = decode_error(self.row.trouble)
        return TimedOut(f"{message}: {trouble.message}", fault=trouble.fault_text)

    # Steps and waits

    async def _forward(self) -> None:
        step = self.plan[self.index]
        assert self.row.step_started_at is not None
        deadline = self.row.step_started_at + self.row.step_idle + deadline_seconds(step, self.op)
        self.op.called_host = None
        try:
            if isinstance(step, Wait):
                await self._wait(step, deadline)
            else:
                await self._step(step, deadline)
        except (LostLease, WorkerStopped):
            raise
        except GoBack as back:
            await self._go_back(back)
        except Exception as error:
            if errors.is_transient(error):
                await self._retry(error, deadline)
            else:
                await self._begin_undo(error)

    async def _step(self, step: Step[Operation], deadline: float) -> None:
        left = deadline - clock.now()
        if left <= 0:
            raise self._timeout_error()
        await self._inject_fault("before", FORWARD, step)
        if step.transaction:
            async with self.op.db.transaction() as tx:
                result = await step.action(self.op, tx)
                await self._inject_fault("after", FORWARD, step)
                after = await self._record_done(tx, step, result)
        else:
            result = await self._interruptible(left, step.cancellable, step.action, self.op)
            await self._inject_fault("after", FORWARD, step)
            async with self.op.db.transaction() as tx:
                after = await self._record_done(tx, step, result)
        self._step_finished(step, FORWARD, DONE, after)

    async def _record_done(self, tx: Transaction, step: AnyEntry, result: object) -> OperationRow:
        """The fenced update is the last statement, so that locks are taken in the same order as in API requests."""
        now = clock.now()
        await store.record_step(tx, self.row, step.name, FORWARD, DONE, now, error=None, host=self._recorded_host())
        if step.result is None and result is not None and isinstance(step, Step):
            raise TypeError(f"the step {step.name!r} declares no result")
        if step.result is not None and result is not None:
            self.op.results[step.name] = result
        changes: Changes = {
            "updated_at": now,
            "results": _json(self.op.results),
            "note": _json(self.op.note),
            "host": self.op.host,
            "attempt": 0,
            "trouble": None,
        }
        following = self.index + 1
        if following == len(self.plan):
            return await store.save(tx, self.row, {**changes, "state": DONE, "finished_at": now}, release=True)
        return await store.save(tx, self.row, {**changes, "step": self._names[following], **_step_start(now)})

    async def _wait(self, wait: Wait[Operation], deadline: float, polled: bool = False) -> None:
        await self._inject_fault("before", FORWARD, wait)
        key = wait.key(self.op)
        async with self.op.db.transaction() as tx:
            check = await events.check_event(tx, self.row, wait, key, polled=polled)
            now = clock.now()
            poll_due = check.poll_at is not None and check.poll_at <= now
            if check.arrived:
                result = wait.convert_payload(self.op, check.payload) if wait.convert_payload else check.payload
                await self._inject_fault("after", FORWARD, wait)
                after = await self._finish_wait(tx, wait, result)
            elif now < deadline and not poll_due:
                run_at = deadline if check.poll_at is None else min(deadline, check.poll_at)
                changes: Changes = {"state": WAITING, "run_at": run_at, "updated_at": now}
                after = await store.save(tx, self.row, changes, release=True)
            else:
                after = self.row
        if after.state == WAITING:
            self._apply(after)
        elif after is not self.row:
            self._step_finished(wait, FORWARD, DONE, after)
        else:
            await self._poll(wait, deadline)

    async def _poll(self, wait: Wait[Operation], deadline: float) -> None:
        """Poll in case the event was lost, also at the deadline."""
        result = None
        if wait.poll is not None:
            left = max(deadline - clock.now(), wait.poll_every)
            result = await self._interruptible(left, True, wait.poll, self.op)
        expired = clock.now() >= deadline
        if result is None and expired and wait.expire is not None:
            result = await self._interruptible(wait.poll_every, True, wait.expire, self.op)
        if result is not None:
            await self._inject_fault("after", FORWARD, wait)
            async with self.op.db.transaction() as tx:
                after = await self._finish_wait(tx, wait, result)
            self._step_finished(wait, FORWARD, DONE, after)
            return
        if expired:
            raise self._timeout_error()
        await self._wait(wait, deadline, polled=True)

    async def _finish_wait(self, tx: Transaction, wait: Wait[Operation], result: object) -> OperationRow:
        await events.delete_wait(tx, self.op.id)
        return await self._record_done(tx, wait, result)

    # Undo

    async def _go_back(self, back: GoBack) -> None:
        if back.step not in self._names[: self.index + 1]:
            await self._begin_undo(Failed(f"{back.reason} (cannot go back to '{back.step}')", fault=back.fault))
        elif self.row.round >= self.op.rounds:
            await self._begin_undo(Failed(back.reason, fault=back.fault))
        else:
            await self._begin_undo(back, to=back.step, note=back.note)

    async def _begin_undo(self, error: Exception, to: str | None = None, note: dict[str, object] | None = None) -> None:
        """Record the failure of the step, and begin to undo it and the steps before it, down to `to`."""
        self.op.restore(self.row)
        step = self.plan[self.index]
        outcome = CANCELLED if isinstance(error, Cancelled) else "went back" if to else FAILED
        self._log_error(step.name, error)
        if self.op.cancelled:
            to = None
        now = clock.now()
        text = errors.describe_error(error, step.name).encode()
        first = self._next_undo(self.index, self._names.index(to) if to else 0)
        changes: Changes = {
            "state": UNDOING,
            "step": step.name if first is None else first.name,
            "undo_to": to,
            "error": errors.describe_error(_cancel_error(), step.name).encode() if self.op.cancelled else text,
            "note": _json({**self.op.note, **note}) if note else self.row.note,
            "attempt": 0,
            "trouble": None,
            "updated_at": now,
            **_step_start(now),
        }
        async with self.op.db.transaction() as tx:
            if isinstance(step, Wait):
                await events.delete_wait(tx, self.op.id)
            await store.record_step(
                tx, self.row, step.name, FORWARD, outcome, now, error=text, host=self._recorded_host()
            )
            after = await store.save(tx, self.row, changes)
        self._step_finished(step, FORWARD, outcome, after)
        self.op.restore(self.row)

    def _next_undo(self, index: int, floor: int) -> Step[Operation] | None:
        """The last step with an undo between `floor` and `index`."""
        for step in reversed(self.plan[floor : index + 1]):
            if isinstance(step, Step) and step.undo is not None:
                return step
        return None

    async def _undo(self) -> None:
        floor = self._names.index(self.row.undo_to) if self.row.undo_to else 0
        step = self._next_undo(self.index, floor)
        try:
            if step is None:
                async with self.op.db.transaction() as tx:
                    after = await self._finish_undo(tx, {})
                self._apply(after)
            else:
                await self._undo_step(step, floor)
        except (LostLease, WorkerStopped):
            raise
        except Exception as error:
            self._log_error(f"undo {self.row.step}", error)
            await self._retry(error, None)

    async def _undo_step(self, step: Step[Operation], floor: int) -> None:
        assert step.undo is not None
        self.op.called_host = None
        await self._inject_fault("before", UNDO, step)
        if step.undo_transaction:
            async with self.op.db.transaction() as tx:
                await step.undo(self.op, tx)
                await self._inject_fault("after", UNDO, step)
                after = await self._record_undone(tx, step, floor)
        else:
            await self._interruptible(deadline_seconds(step, self.op), False, step.undo, self.op)
            await self._inject_fault("after", UNDO, step)
            async with self.op.db.transaction() as tx:
                after = await self._record_undone(tx, step, floor)
        self._step_finished(step, UNDO, DONE, after)

    async def _record_undone(self, tx: Transaction, step: Step[Operation], floor: int) -> OperationRow:
        now = clock.now()
        await store.record_step(tx, self.row, step.name, UNDO, DONE, now, error=None, host=self._recorded_host())
        self.op.results.pop(step.name, None)
        changes: Changes = {
            "results": _json(self.op.results),
            "host": self.op.host,
            "attempt": 0,
            "trouble": None,
            "updated_at": now,
        }
        following = self._next_undo(self._names.index(step.name) - 1, floor)
        if following is None:
            return await self._finish_undo(tx, changes)
        return await store.save(tx, self.row, {**changes, "step": following.name, **_step_start(now)})

    async def _finish_undo(self, tx: Transaction, changes: Changes) -> OperationRow:
        """All steps are undone: run forward again in a new round, or end the operation."""
        now = clock.now()
        if (to := self.row.undo_to) is not None:
            again: Changes = {"state": RUNNING, "step": to, "undo_to": None, "error": None, "round": self.row.round + 1}
            times: Changes = {"round_started_at": now, "updated_at": now, **_step_start(now)}
            return await store.save(tx, self.row, {**changes, **again, **times})
        assert self.row.error is not None
        error = errors.restore_error(decode_error(self.row.error))
        await self.op.failed(tx, error)
        state = CANCELLED if isinstance(error, Cancelled) else FAILED
        changes = {**changes, "state": state, "finished_at": now, "updated_at": now}
        return await store.save(tx, self.row, changes, release=True)

    # Retries

    async def _retry(self, error: Exception, deadline: float | None) -> None:
        """Retry the step after a delay. An action is retried until its deadline, an undo without limit."""
        self.op.restore(self.row)
        undoing = self.row.state == UNDOING
        attempt = self.row.attempt + 1
        delay = self.worker.backoff(attempt)
        text = errors.describe_error(error, self.row.step).encode()
        now = clock.now()
        if deadline is not None:
            if deadline <= now:
                self.row = replace(self.row, trouble=text)
                return await self._begin_undo(self._timeout_error())
            delay = min(delay, deadline - now)
        release = delay > MAX_SLEEP_SECONDS or self.op.background
        logger.info("'%s' is retried in %.1f s: %s", self.row.step, delay, error)
        state = UNDOING if undoing else QUEUED if release else RUNNING
        changes: Changes = {
            "state": state,
            "attempt": attempt,
            "trouble": text,
            "run_at": now + delay,
            "updated_at": now,
        }
        async with self.op.db.transaction() as tx:
            after = await store.save(tx, self.row, changes, release=release)
        self._apply(after, released=release)
        if not release:
            await self._sleep(delay, cancellable=not undoing)
        return None

    async def _sleep(self, seconds: float, cancellable: bool) -> None:
        try:
            await self._interruptible(seconds + 1, cancellable, asyncio.sleep, seconds)
        except Cancelled:
            pass  # checked again before the next step

    def _log_error(self, step: str, error: Exception) -> None:
        if isinstance(error, Failed | GoBack) or errors.is_transient(error):
            logger.warning("'%s': %s", step, error)
        else:
            logger.error("'%s' raised %s", step, type(error).__name__, exc_info=error)

    # State in memory

    def _apply(self, after: OperationRow, released: bool = False) -> None:
        self.row = after
        self.op.round, self.op.attempt = after.round, after.attempt
        self.op.cancelled = self.op.cancelled or after.cancel_requested
        self.released = released or after.state == WAITING or after.finished_at is not None
        if after.finished_at is not None:
            if self.worker.observer is not None:
                self.worker.observer.operation_finished(self.op.kind, after.state)
            if self.worker.audit is not None and self.worker.audit.enabled:
                audit.record(self.worker.audit, self.op, after)
        elif self.released:
            self.worker.wake_at(after.run_at)

    def _step_finished(self, step: AnyEntry, phase: str, outcome: str, after: OperationRow) -> None:
        if self.worker.observer is not None:
            seconds = after.updated_at - (self.row.step_started_at or after.updated_at)
            self.worker.observer.step_finished(self.op.kind, step.name, phase, outcome, seconds)
        self._apply(after)

    def _recorded_host(self) -> str | None:
        """The host in a step's record."""
        return self.op.called_host or self.op.host

    async def _inject_fault(self, point: str, phase: str, step: AnyEntry) -> None:
        if self.worker.faults is not None:
            await self.worker.faults.at(point, phase, step.name, self.op)


def _cancel_error() -> Cancelled:
    return Cancelled("Cancelled by request")


def _step_start(now: float) -> Changes:
    """Columns for the start of a step."""
    return {"step_started_at": now, "step_idle": 0.0}


def _json(document: dict[str, object]) -> str:
    return json.encode(document).decode() if document else "{}"
