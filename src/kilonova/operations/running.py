"""One leased operation being carried out: forward, waiting, back, and undone.

`row` is what the database is known to hold and changes only after a commit. Whatever an action left in memory before
it failed is dropped, so that a retry here and a retry after a crash start from the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson

from kilonova import clock
from kilonova.operations import errors, events, store
from kilonova.operations.context import operation_id
from kilonova.operations.errors import Cancelled, Failed, GoBack, LostLease, TimedOut
from kilonova.operations.states import CANCELLED, DONE, FAILED, QUEUED, RUNNING, UNDOING, WAITING
from kilonova.operations.table import Entry, Operation, Step, Wait, deadline_of
from kilonova.store import Row, Transaction, Unavailable
from kilonova.telemetry import context

if TYPE_CHECKING:
    from kilonova.operations.worker import Worker

logger = logging.getLogger(__name__)

FORWARD, UNDO = "forward", "undo"
IN_MEMORY = 2.0
"""Pauses up to this many seconds are slept; longer ones give the lease back."""


class Stopped(Exception):
    """The worker is stopping and the step took longer than the grace it had."""


class Running:
    def __init__(self, worker: Worker, op: Operation, row: Row, plan: tuple[Entry, ...], leased_at: float) -> None:
        self.worker = worker
        self.op = op
        self.row = row
        self.plan = plan
        self.leased_at = leased_at
        self.released = False
        self._names = [step.name for step in plan]
        self._scope: asyncio.Timeout | None = None
        self._cancellable = False
        self._end: type[Exception] | None = None

    @property
    def index(self) -> int:
        return self._names.index(self.row["step"])

    async def run(self) -> None:
        operation_id.set(self.op.id)
        context.request_id.set(self.op.request_id)
        trouble = 0
        while not self.released and not self.worker.stopping:
            try:
                self._check(False)
                if self.row["state"] == UNDOING:
                    await self._undo()
                elif self.op.cancelled:
                    await self._turn_back(_cancelled())
                else:
                    await self._forward()
                trouble = 0
            except (LostLease, Stopped) as end:
                logger.info("operation left: %s", type(end).__name__)
                return
            except Unavailable as error:
                trouble += 1
                logger.warning("cannot record: %s", error)
                await asyncio.sleep(min(self.worker.backoff(trouble), IN_MEMORY))

    # What the worker tells it

    def cancel(self) -> None:
        self.op.cancelled = True
        if self._cancellable:
            self._interrupt()

    def end(self, why: type[Exception]) -> None:
        """Leave the operation as it stands: the lease is lost or to be given back."""
        self._end = why
        self._interrupt()

    def _interrupt(self) -> None:
        """Only an action or a pause can be interrupted; a transaction always comes to its end."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _check(self, cancellable: bool) -> None:
        if not self.worker.holds(self):
            raise LostLease(self.op.id)
        if self._end is not None:
            raise self._end(self.op.id)
        if cancellable and self.op.cancelled:
            raise _cancelled()

    async def _guard(self, seconds: float, cancellable: bool, action: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Run something outside a transaction, until it ends, `seconds` are over or somebody interrupts."""
        self._check(cancellable)
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                self._scope, self._cancellable = scope, cancellable
                return await action(*args)
        except Exception as error:
            # Whatever the interrupted code made of it, the reason is ours.
            if not scope.expired():
                raise
            self._check(cancellable)
            raise self._overdue() from error
        finally:
            self._scope, self._cancellable = None, False

    def _overdue(self) -> TimedOut:
        step = self.plan[self.index]
        text = f"'{step.name}' did not end within {deadline_of(step, self.op):g} s"
        if self.row["trouble"] is None:
            return TimedOut(text)
        trouble = orjson.loads(self.row["trouble"])
        return TimedOut(f"{text}: {trouble['message']}", fault=trouble.get("fault"))

    # Forward

    async def _forward(self) -> None:
        step = self.plan[self.index]
        until = self.row["step_started_at"] + self.row["step_idle"] + deadline_of(step, self.op)
        self.op.asked = None
        try:
            if isinstance(step, Wait):
                await self._wait(step, until)
            else:
                await self._step(step, until)
        except (LostLease, Stopped):
            raise
        except GoBack as back:
            await self._go_back(back)
        except Exception as error:
            if errors.is_passing(error):
                await self._retry(error, until)
            else:
                await self._turn_back(error)

    async def _step(self, step: Step, until: float) -> None:
        left = until - clock.now()
        if left <= 0:
            raise self._overdue()
        await self._fault("before", FORWARD, step)
        if step.transaction:
            async with self.op.db.transaction() as tx:
                result = await step.action(self.op, tx)
                await self._fault("after", FORWARD, step)
                after = await self._record_done(tx, step, result)
        else:
            result = await self._guard(left, step.cancellable, step.action, self.op)
            await self._fault("after", FORWARD, step)
            async with self.op.db.transaction() as tx:
                after = await self._record_done(tx, step, result)
        self._done(step, FORWARD, DONE, after)

    async def _record_done(self, tx: Transaction, step: Entry, result: Any) -> Row:
        """The fence is the last statement, so that locks are taken in the same order as by the API's transactions."""
        now = clock.now()
        await store.record_step(tx, self.row, step.name, FORWARD, DONE, now, error=None, host=self._where())
        results = self.op.results if result is None else {**self.op.results, step.name: result}
        known = {
            "updated_at": now,
            "results": _text(results),
            "note": _text(self.op.note),
            "host": self.op.host,
            "attempt": 0,
            "trouble": None,
        }
        following = self.index + 1
        if following == len(self.plan):
            return await store.save(tx, self.row, {**known, "state": DONE, "finished_at": now}, release=True)
        return await store.save(tx, self.row, {**known, "step": self._names[following], **_begun(now)})

    async def _wait(self, wait: Wait, until: float, polled: bool = False) -> None:
        await self._fault("before", FORWARD, wait)
        key = wait.key(self.op)
        async with self.op.db.transaction() as tx:
            seen = await events.look(tx, self.row, wait, key, polled=polled)
            now = clock.now()
            poll_due = seen.poll_at is not None and seen.poll_at <= now
            if seen.arrived:
                result = wait.arrived(self.op, seen.payload) if wait.arrived else seen.payload
                await self._fault("after", FORWARD, wait)
                after = await self._end_wait(tx, wait, result)
            elif now < until and not poll_due:
                run_at = until if seen.poll_at is None else min(until, seen.poll_at)
                changes = {"state": WAITING, "run_at": run_at, "updated_at": now}
                after = await store.save(tx, self.row, changes, release=True)
            else:
                after = self.row
        if after["state"] == WAITING:
            self._apply(after)
        elif after is not self.row:
            self._done(wait, FORWARD, DONE, after)
        else:
            await self._poll(wait, until)

    async def _poll(self, wait: Wait, until: float) -> None:
        """Ask whether the event got lost; also once more at the deadline before giving up."""
        if wait.poll is not None:
            left = max(until - clock.now(), wait.poll_every)
            result = await self._guard(left, True, wait.poll, self.op)
            if result is not None:
                await self._fault("after", FORWARD, wait)
                async with self.op.db.transaction() as tx:
                    after = await self._end_wait(tx, wait, result)
                self._done(wait, FORWARD, DONE, after)
                return
        if clock.now() >= until:
            raise self._overdue()
        await self._wait(wait, until, polled=True)

    async def _end_wait(self, tx: Transaction, wait: Wait, result: Any) -> Row:
        await events.stop_waiting(tx, self.op.id)
        return await self._record_done(tx, wait, result)

    # Back

    async def _go_back(self, back: GoBack) -> None:
        if back.step not in self._names[: self.index + 1]:
            await self._turn_back(Failed(f"{back.reason} (cannot go back to '{back.step}')", fault=back.fault))
        elif self.row["round"] >= self.op.rounds:
            await self._turn_back(Failed(back.reason, fault=back.fault))
        else:
            await self._turn_back(back, to=back.step, note=back.note)

    async def _turn_back(self, error: Exception, to: str | None = None, note: dict[str, Any] | None = None) -> None:
        """Record why the step did not succeed, and from here on undo: it, and those before it down to `to`."""
        self._forget()
        step = self.plan[self.index]
        outcome = CANCELLED if isinstance(error, Cancelled) else "went back" if to else FAILED
        self._complain(step.name, error)
        if self.op.cancelled:
            to = None
        now = clock.now()
        text = _text(errors.describe(error, step.name))
        first = self._undoable(self.index, self._names.index(to) if to else 0)
        changes = {
            "state": UNDOING,
            "step": step.name if first is None else first.name,
            "undo_to": to,
            "error": _text(errors.describe(_cancelled(), step.name)) if self.op.cancelled else text,
            "note": _text({**self.op.note, **note}) if note else self.row["note"],
            "attempt": 0,
            "trouble": None,
            "updated_at": now,
            **_begun(now),
        }
        async with self.op.db.transaction() as tx:
            if isinstance(step, Wait):
                await events.stop_waiting(tx, self.op.id)
            await store.record_step(tx, self.row, step.name, FORWARD, outcome, now, error=text, host=self._where())
            after = await store.save(tx, self.row, changes)
        self._done(step, FORWARD, outcome, after)
        self._forget()

    def _undoable(self, index: int, floor: int) -> Step | None:
        """The step to undo next, looking down from `index`."""
        for step in reversed(self.plan[floor : index + 1]):
            if isinstance(step, Step) and step.undo is not None:
                return step
        return None

    async def _undo(self) -> None:
        floor = self._names.index(self.row["undo_to"]) if self.row["undo_to"] else 0
        step = self._undoable(self.index, floor)
        try:
            if step is None:
                async with self.op.db.transaction() as tx:
                    after = await self._undone(tx, {})
                self._apply(after)
            else:
                await self._undo_step(step, floor)
        except (LostLease, Stopped):
            raise
        except Exception as error:
            self._complain(f"undo {self.row['step']}", error)
            await self._retry(error, None)

    async def _undo_step(self, step: Step, floor: int) -> None:
        assert step.undo is not None
        self.op.asked = None
        await self._fault("before", UNDO, step)
        if step.undo_transaction:
            async with self.op.db.transaction() as tx:
                await step.undo(self.op, tx)
                await self._fault("after", UNDO, step)
                after = await self._record_undone(tx, step, floor)
        else:
            await self._guard(deadline_of(step, self.op), False, step.undo, self.op)
            await self._fault("after", UNDO, step)
            async with self.op.db.transaction() as tx:
                after = await self._record_undone(tx, step, floor)
        self._done(step, UNDO, DONE, after)

    async def _record_undone(self, tx: Transaction, step: Step, floor: int) -> Row:
        now = clock.now()
        await store.record_step(tx, self.row, step.name, UNDO, DONE, now, error=None, host=self._where())
        self.op.results.pop(step.name, None)
        known = {
            "results": _text(self.op.results),
            "host": self.op.host,
            "attempt": 0,
            "trouble": None,
            "updated_at": now,
        }
        following = self._undoable(self._names.index(step.name) - 1, floor)
        if following is None:
            return await self._undone(tx, known)
        return await store.save(tx, self.row, {**known, "step": following.name, **_begun(now)})

    async def _undone(self, tx: Transaction, known: Row) -> Row:
        """All is undone: go forward again in a new round, or end."""
        now = clock.now()
        if (to := self.row["undo_to"]) is not None:
            again = {"state": RUNNING, "step": to, "undo_to": None, "error": None, "round": self.row["round"] + 1}
            times = {"round_started_at": now, "updated_at": now, **_begun(now)}
            return await store.save(tx, self.row, {**known, **again, **times})
        error = errors.restore(orjson.loads(self.row["error"]))
        await self.op.failed(tx, error)
        state = CANCELLED if isinstance(error, Cancelled) else FAILED
        changes = {**known, "state": state, "finished_at": now, "updated_at": now}
        return await store.save(tx, self.row, changes, release=True)

    # Again

    async def _retry(self, error: Exception, until: float | None) -> None:
        """Try the step again after a pause; an undo for ever, an action until its deadline."""
        self._forget()
        undoing = self.row["state"] == UNDOING
        attempt = self.row["attempt"] + 1
        pause = self.worker.backoff(attempt)
        text = _text(errors.describe(error, self.row["step"]))
        now = clock.now()
        if until is not None:
            if until <= now:
                self.row = {**self.row, "trouble": text}
                return await self._turn_back(self._overdue())
            pause = min(pause, until - now)
        release = pause > IN_MEMORY or self.op.background
        logger.info("'%s' is tried again in %.1f s: %s", self.row["step"], pause, error)
        state = UNDOING if undoing else QUEUED if release else RUNNING
        changes = {"state": state, "attempt": attempt, "trouble": text, "run_at": now + pause, "updated_at": now}
        async with self.op.db.transaction() as tx:
            after = await store.save(tx, self.row, changes, release=release)
        self._apply(after, released=release)
        if not release:
            await self._pause(pause, cancellable=not undoing)
        return None

    async def _pause(self, seconds: float, cancellable: bool) -> None:
        try:
            await self._guard(seconds + 1, cancellable, asyncio.sleep, seconds)
        except Cancelled:
            pass  # seen again before the next step

    def _complain(self, step: str, error: Exception) -> None:
        if isinstance(error, Failed | GoBack) or errors.is_passing(error):
            logger.warning("'%s': %s", step, error)
        else:
            logger.error("'%s' raised %s", step, type(error).__name__, exc_info=error)

    # Memory follows the database

    def _apply(self, after: Row, released: bool = False) -> None:
        self.row = after
        self.op.round, self.op.attempt = after["round"], after["attempt"]
        self.op.cancelled = self.op.cancelled or after["cancel_requested"]
        self.released = released or after["state"] == WAITING or after["finished_at"] is not None
        if after["finished_at"] is not None:
            if self.worker.observer is not None:
                self.worker.observer.operation_finished(self.op.kind, after["state"])
        elif self.released:
            self.worker.due(after["run_at"])

    def _done(self, step: Entry, phase: str, outcome: str, after: Row) -> None:
        if self.worker.observer is not None:
            seconds = after["updated_at"] - self.row["step_started_at"]
            self.worker.observer.step_finished(self.op.kind, step.name, phase, outcome, seconds)
        if after["results"] != self.row["results"]:
            self.op.results = orjson.loads(after["results"])
        self._apply(after)

    def _forget(self) -> None:
        self.op.results = orjson.loads(self.row["results"])
        self.op.note = orjson.loads(self.row["note"])
        self.op.host = self.row["host"]

    def _where(self) -> str | None:
        """The host that a step's record names."""
        return self.op.asked or self.op.host

    async def _fault(self, point: str, phase: str, step: Entry) -> None:
        if self.worker.faults is not None:
            await self.worker.faults.at(point, phase, step.name, self.op)


def _cancelled() -> Cancelled:
    return Cancelled("Cancelled by request")


def _begun(now: float) -> Row:
    """Of the step that it comes to."""
    return {"step_started_at": now, "step_idle": 0.0}


def _text(document: dict[str, Any]) -> str:
    return orjson.dumps(document).decode() if document else "{}"
