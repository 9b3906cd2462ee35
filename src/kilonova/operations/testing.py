"""Generated tests for operations: each step is run twice, fails, and is killed.

    class TestBoot(OperationTests):
        operation = Boot

        async def prepare(self, db): ...                        # returns the world: the worker's `services`
        async def begin(self, tx, world): ...                   # as the API does; returns the operation's id
        async def list_resources(self, db, world): ...          # must be the same after a failed operation
        async def outcome(self, db, world): ...                 # the result without random ids; else the resources
        async def post_awaited_event(self, db, world, op): ...  # if the operation waits for an event

Faults are injected through the worker's hooks, so the tests run the real engine.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kilonova.operations.definition import Operation, Step
from kilonova.operations.errors import Failed, TransientError
from kilonova.operations.execution import FORWARD, UNDO
from kilonova.operations.row import OperationRow, decode_error
from kilonova.operations.states import DONE, FAILED, WAITING
from kilonova.operations.worker import Worker
from kilonova.store import Database, Transaction, open_database, upgrade

if TYPE_CHECKING:
    from kilonova.services import Services

TIMEOUT_SECONDS = 120.0
POINTS = ("before", "after")
INJECTED_MESSAGE = "injected by a test"


@dataclass
class Fault:
    """Injected once at each of its steps: `fail`, `again` (a transient error) or `kill`."""

    act: str
    phase: str
    point: str
    steps: frozenset[str]
    triggered: set[str] = field(default_factory=set)
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def at(self, point: str, phase: str, step: str) -> None:
        if (point, phase) != (self.point, self.phase) or step not in self.steps or step in self.triggered:
            return
        self.triggered.add(step)
        if self.act == "fail":
            raise Failed(INJECTED_MESSAGE)
        if self.act == "again":
            raise TransientError(INJECTED_MESSAGE)
        self.killed.set()
        await asyncio.Event().wait()


Faults = tuple[Fault, ...]
"""The faults of one operation."""


class Injection:
    """The faults of one test, for operations of one kind."""

    def __init__(self, kind: str, faults: Iterable[Fault]) -> None:
        self.kind = kind
        self.faults = tuple(faults)

    async def at(self, point: str, phase: str, step: str, op: Operation) -> None:
        if op.kind == self.kind:
            for fault in self.faults:
                await fault.at(point, phase, step)

    @property
    def kill(self) -> Fault | None:
        return next((fault for fault in self.faults if fault.killed.is_set()), None)


@dataclass
class Result:
    row: OperationRow
    before: object
    after: object
    outcome: object


class OperationTests:
    operation: ClassVar[type[Operation]]
    _expected: ClassVar[Result | None] = None

    async def open(self, url: str) -> Database:
        return await open_database(url)

    async def prepare(self, db: Database) -> Services:
        """The parts of the process that the operation uses."""
        raise NotImplementedError

    async def begin(self, tx: Transaction, world: Services) -> str:
        raise NotImplementedError

    async def list_resources(self, db: Database, world: Services) -> object:
        raise NotImplementedError

    async def outcome(self, db: Database, world: Services) -> object:
        return await self.list_resources(db, world)

    async def tear_down(self, world: Services) -> None:
        """Remove what `prepare` created outside the database."""

    async def post_awaited_event(self, db: Database, world: Services, op: str) -> None:
        raise NotImplementedError(
            f"{self.operation.kind} waits for an event, so the test must define post_awaited_event"
        )

    def test_each_step_twice(self, database_url: str) -> None:
        self._expect_success(database_url, Fault("again", FORWARD, "after", self._all_steps()))

    def test_killed_at_each_step(self, database_url: str) -> None:
        """The worker dies before and after every step, and the next worker continues the operation."""
        self._expect_success(database_url, *(Fault("kill", FORWARD, point, self._all_steps()) for point in POINTS))

    def test_failures_leave_nothing(self, database_url: str) -> None:
        """Failed operations, one after the other in one world, change nothing."""
        faults = [*self.each_step_failed(), *self.each_undo_twice(), *self.killed_at_each_undo()]
        self._expect_clean_failure(database_url, faults)

    def each_step_failed(self) -> list[Faults]:
        names = self.operation.table().names
        return [(Fault("fail", FORWARD, point, frozenset({name})),) for point in POINTS for name in names]

    def each_undo_twice(self) -> list[Faults]:
        return (
            [(self._last_step_fault(), Fault("again", UNDO, "after", undoable))]
            if (undoable := self._steps_with_undo())
            else []
        )

    def killed_at_each_undo(self) -> list[Faults]:
        if not (undoable := self._steps_with_undo()):
            return []
        return [(self._last_step_fault(), *(Fault("kill", UNDO, point, undoable) for point in POINTS))]

    def _all_steps(self) -> frozenset[str]:
        return frozenset(self.operation.table().names)

    @classmethod
    def _steps_with_undo(cls) -> frozenset[str]:
        return frozenset(step.name for step in cls.operation.table().steps if isinstance(step, Step) and step.undo)

    def _last_step_fault(self) -> Fault:
        """A failure after the last step's action, so that all steps are undone."""
        return Fault("fail", FORWARD, "after", frozenset(self.operation.table().names[-1:]))

    def _expect_success(self, url: str, *faults: Fault) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._run_without_faults())
        (result,) = asyncio.run(self._run_operations(url, [faults]))
        assert result.row.state == DONE, result.row
        assert result.outcome == cls._expected.outcome

    def _expect_clean_failure(self, url: str, faults: Sequence[Faults]) -> None:
        for injected, result in zip(faults, asyncio.run(self._run_operations(url, faults)), strict=True):
            assert result.row.state == FAILED, (injected, result.row)
            assert decode_error(str(result.row.error)).message == INJECTED_MESSAGE, injected
            assert result.after == result.before, (injected, result.row)

    async def _run_without_faults(self) -> Result:
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite://{directory}/kilonova.db"
            await upgrade(url)
            (result,) = await self._run_operations(url, [()])
        assert result.row.state == DONE, result.row
        return result

    async def _run_operations(self, url: str, faults: Sequence[Faults]) -> list[Result]:
        """Run one operation per element of `faults`, one after the other in one world."""
        db = await self.open(url)
        world = await self.prepare(db)
        try:
            return [await self._run_operation(db, world, Injection(self.operation.kind, each)) for each in faults]
        finally:
            await self.tear_down(world)
            await db.close()

    async def _run_operation(self, db: Database, world: Services, injection: Injection) -> Result:
        before = await self.list_resources(db, world)
        async with db.transaction() as tx:
            operation_id = await self.begin(tx, world)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            row = await self._run_workers(db, world, operation_id, injection)
        assert not await db.fetch("SELECT * FROM operation_waits WHERE operation_id = $1", operation_id)
        for fault in injection.faults:
            assert fault.triggered == fault.steps, f"not reached: {fault.steps - fault.triggered}"
        return Result(row, before, await self.list_resources(db, world), await self.outcome(db, world))

    async def _run_workers(
        self, db: Database, world: Services, operation_id: str, injection: Injection
    ) -> OperationRow:
        """Run workers, a new one after each kill, until the operation has ended."""
        answered: set[int] = set()
        while True:
            worker = Worker(db, world, sweep=0.02, faults=injection, backoff=lambda attempt: 0.0)
            task = asyncio.create_task(worker.run())
            while not task.done() and (kill := injection.kill) is None:
                found = await db.fetch_one("SELECT * FROM operations WHERE id = $1", operation_id)
                assert found is not None
                row = OperationRow.decode(found)
                if row.finished_at is not None:
                    await worker.stop()
                    await task
                    return row
                if row.state == WAITING and row.epoch not in answered:
                    answered.add(row.epoch)
                    await self.post_awaited_event(db, world, operation_id)
                await asyncio.sleep(0.002)
            if task.done():
                task.result()
            assert kill is not None
            kill.killed.clear()
            task.cancel()
            await asyncio.wait([task])
            async with db.transaction() as tx:  # its leases expire
                await tx.execute("UPDATE operations SET lease_until = 0 WHERE lease_owner = $1", worker.owner)
