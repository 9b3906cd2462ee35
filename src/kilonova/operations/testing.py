"""The tests that every operation gets from its table: each step run twice, failed, and killed.

    class TestBoot(OperationTests):
        operation = Boot

        async def prepare(self, db): ...             # a world; the worker gets it as `services`
        async def begin(self, tx, world): ...        # what the API does; returns the operation's id
        async def census(self, db, world): ...       # everything that a failed operation must not leave behind
        async def outcome(self, db, world): ...      # the end to compare, free of random ids; else the census
        async def waiting(self, db, world, op): ...  # posts the event that the operation waits for

Faults are injected through the hooks of the worker, so what runs is the engine as it is.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from kilonova.operations.errors import Failed, Passing
from kilonova.operations.running import FORWARD, UNDO
from kilonova.operations.states import DONE, FAILED, WAITING
from kilonova.operations.table import Operation, Step
from kilonova.operations.worker import Worker
from kilonova.store import Database, Row, Transaction, open_database, upgrade

PATIENCE = 120.0
POINTS = ("before", "after")
INJECTED = "injected by a test"


@dataclass
class Fault:
    """Strikes once at each step that it is for: `fail`, `again` (a passing error) or `kill`."""

    act: str
    phase: str
    point: str
    steps: frozenset[str]
    struck: set[str] = field(default_factory=set)
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def at(self, point: str, phase: str, step: str) -> None:
        if (point, phase) != (self.point, self.phase) or step not in self.steps or step in self.struck:
            return
        self.struck.add(step)
        if self.act == "fail":
            raise Failed(INJECTED)
        if self.act == "again":
            raise Passing(INJECTED)
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
    row: Row
    before: Any
    after: Any
    outcome: Any


class OperationTests:
    operation: ClassVar[type[Operation]]
    _expected: ClassVar[Any] = None

    async def open(self, url: str) -> Database:
        return await open_database(url)

    async def prepare(self, db: Database) -> Any:
        return None

    async def begin(self, tx: Transaction, world: Any) -> str:
        raise NotImplementedError

    async def census(self, db: Database, world: Any) -> Any:
        raise NotImplementedError

    async def outcome(self, db: Database, world: Any) -> Any:
        return await self.census(db, world)

    async def dismantle(self, world: Any) -> None:
        """Take down what `prepare` set up beside the database."""

    async def waiting(self, db: Database, world: Any, op: str) -> None:
        raise NotImplementedError(f"{self.operation.kind} waits, and the test does not say what for")

    def test_each_step_twice(self, database_url: str) -> None:
        self._ends_well(database_url, Fault("again", FORWARD, "after", self._every_step()))

    def test_killed_at_each_step(self, database_url: str) -> None:
        """One operation: its worker dies before and after every step, and the next worker continues."""
        self._ends_well(database_url, *(Fault("kill", FORWARD, point, self._every_step()) for point in POINTS))

    def test_failures_leave_nothing(self, database_url: str) -> None:
        """One operation after the other in one world, each with its failure: the world is the same after each."""
        faults = [*self.each_step_failed(), *self.each_undo_twice(), *self.killed_at_each_undo()]
        self._leave_nothing(database_url, faults)

    def each_step_failed(self) -> list[Faults]:
        names = self.operation.table().names
        return [(Fault("fail", FORWARD, point, frozenset({name})),) for point in POINTS for name in names]

    def each_undo_twice(self) -> list[Faults]:
        return [(self._last(), Fault("again", UNDO, "after", undoable))] if (undoable := self._undoable()) else []

    def killed_at_each_undo(self) -> list[Faults]:
        if not (undoable := self._undoable()):
            return []
        return [(self._last(), *(Fault("kill", UNDO, point, undoable) for point in POINTS))]

    def _every_step(self) -> frozenset[str]:
        return frozenset(self.operation.table().names)

    @classmethod
    def _undoable(cls) -> frozenset[str]:
        return frozenset(step.name for step in cls.operation.table().steps if isinstance(step, Step) and step.undo)

    def _last(self) -> Fault:
        """Fails the last step after it did its work, so that everything there is gets undone."""
        return Fault("fail", FORWARD, "after", frozenset(self.operation.table().names[-1:]))

    def _ends_well(self, url: str, *faults: Fault) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._undisturbed())
        (result,) = asyncio.run(self._carry_out(url, [faults]))
        assert result.row["state"] == DONE, result.row
        assert result.outcome == cls._expected.outcome

    def _leave_nothing(self, url: str, faults: Sequence[Faults]) -> None:
        for injected, result in zip(faults, asyncio.run(self._carry_out(url, faults)), strict=True):
            assert result.row["state"] == FAILED, (injected, result.row)
            assert orjson.loads(result.row["error"])["message"] == INJECTED, injected
            assert result.after == result.before, (injected, result.row)

    async def _undisturbed(self) -> Result:
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite://{directory}/kilonova.db"
            await upgrade(url)
            (result,) = await self._carry_out(url, [()])
        assert result.row["state"] == DONE, result.row
        return result

    async def _carry_out(self, url: str, faults: Sequence[Faults]) -> list[Result]:
        """One operation after the other in one world, each with its faults."""
        db = await self.open(url)
        world = await self.prepare(db)
        try:
            return [await self._try(db, world, Injection(self.operation.kind, each)) for each in faults]
        finally:
            await self.dismantle(world)
            await db.close()

    async def _try(self, db: Database, world: Any, injection: Injection) -> Result:
        before = await self.census(db, world)
        async with db.transaction() as tx:
            identity = await self.begin(tx, world)
        async with asyncio.timeout(PATIENCE):
            row = await self._work(db, world, identity, injection)
        assert not await db.fetch("SELECT * FROM operation_waits WHERE operation_id = $1", identity)
        for fault in injection.faults:
            assert fault.struck == fault.steps, f"never came to {fault.steps - fault.struck}"
        return Result(row, before, await self.census(db, world), await self.outcome(db, world))

    async def _work(self, db: Database, world: Any, identity: str, injection: Injection) -> Row:
        """Workers, one after the other as they are killed, until the operation has ended."""
        answered: set[int] = set()
        while True:
            worker = Worker(db, world, sweep=0.02, faults=injection, backoff=lambda attempt: 0.0)
            task = asyncio.create_task(worker.run())
            while not task.done() and (kill := injection.kill) is None:
                row = await db.fetch_one("SELECT * FROM operations WHERE id = $1", identity)
                assert row is not None
                if row["finished_at"] is not None:
                    await worker.stop()
                    await task
                    return row
                if row["state"] == WAITING and row["epoch"] not in answered:
                    answered.add(row["epoch"])
                    await self.waiting(db, world, identity)
                await asyncio.sleep(0.002)
            if task.done():
                task.result()
            assert kill is not None
            kill.killed.clear()
            task.cancel()
            await asyncio.wait([task])
            async with db.transaction() as tx:  # all its leases run out
                await tx.execute("UPDATE operations SET lease_until = 0 WHERE lease_owner = $1", worker.owner)
