"""Base classes to define operations and their steps, and the registry of operation kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

if TYPE_CHECKING:
    from kilonova.operations.errors import Failed
    from kilonova.store import Database, Row, Transaction

Action = Callable[..., Awaitable[Any]]
"""`async def action(op)`, or `async def action(op, tx)` if it runs in the transaction that records the step."""


class InvalidDefinition(Exception):
    """The definition of an operation is invalid."""


class UnknownStep(Exception):
    """An operation of another release has a step that this release does not know."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action and its undo. Both may run more than once, and must then detect what was done before.

    The undo also runs for the step that failed, so it must handle an action that did nothing, part or all of its work.
    `why` is the reason for a step without undo. `deadline` is in seconds since the step's first start, excluding the
    time without a worker; it may depend on the operation, but must not change during the step. With
    `cancellable=False`, a cancel takes effect only after the action has ended.
    """

    name: str
    action: Action
    undo: Action | None
    deadline: float | Callable[[Any], float]
    transaction: bool = False
    undo_transaction: bool = False
    why: str | None = None
    task_state: str | None = None
    cancellable: bool = True


def transaction_step(name: str, action: Action, writes: str, *, task_state: str | None = None) -> Step:
    """A step that is one transaction, and so needs no undo. `writes` names what it writes."""
    why = f"one transaction: {writes}"
    return Step(name, action, undo=None, why=why, deadline=30, transaction=True, task_state=task_state)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event without occupying a worker. The result is the payload, converted by `convert_payload`.

    `deadline` may depend on the operation, but must not change while it waits.
    `poll` is called every `poll_every` seconds in case the event was lost; a value other than None is the result.
    With `poll_first`, it is also called before waiting.
    """

    name: str
    key: Callable[[Any], str]
    deadline: float | Callable[[Any], float]
    poll: Action | None = None
    poll_every: float = 30.0
    poll_first: bool = False
    convert_payload: Callable[[Any, Any], Any] | None = None
    task_state: str | None = None


Entry = Step | Wait


def deadline_seconds(entry: Entry, op: Any) -> float:
    """The deadline of the step for this operation."""
    return entry.deadline(op) if callable(entry.deadline) else entry.deadline


Steps = tuple[Entry, ...] | Callable[[], tuple[Entry, ...]]


class StepTable:
    """The steps of one kind of operation."""

    __slots__ = ("_by_name", "_plans", "names", "steps", "text")

    def __init__(self, owner: str, steps: tuple[Entry, ...], retired: tuple[Entry, ...]) -> None:
        self.steps = steps
        self.names = [step.name for step in steps]
        self.text = orjson.dumps(self.names).decode()
        self._by_name = {step.name: step for step in (*retired, *steps)}
        self._plans: dict[frozenset[str], tuple[str, str]] = {}
        if not steps:
            raise InvalidDefinition(f"{owner} has no steps")
        if len(self._by_name) != len(steps) + len(retired):
            raise InvalidDefinition(f"{owner} has two steps with the same name")
        for step in self._by_name.values():
            if isinstance(step, Step) and step.undo is None and not step.why:
                raise InvalidDefinition(f"{owner}: step {step.name!r} has no undo, so it needs a reason (why)")
            if not callable(step.deadline) and step.deadline <= 0:
                raise InvalidDefinition(f"{owner}: step {step.name!r} needs a positive deadline")

    def without(self, names: frozenset[str]) -> tuple[str, str]:
        """The plan without these steps as JSON, and its first step."""
        if (found := self._plans.get(names)) is None:
            if unknown := names.difference(self.names):
                raise InvalidDefinition(f"there is no step {min(unknown)!r}")
            remaining = [name for name in self.names if name not in names]
            found = self._plans[names] = orjson.dumps(remaining).decode(), remaining[0]
        return found

    def plan(self, text: str, step: str) -> tuple[Entry, ...]:
        """The steps of a stored plan, perhaps of another release. Raises UnknownStep."""
        if text == self.text and step in self.names:
            return self.steps
        names = orjson.loads(text)
        unknown = [name for name in names if name not in self._by_name] + [step] * (step not in names)
        if unknown:
            raise UnknownStep(f"This release does not know the step '{unknown[0]}'")
        return tuple(self._by_name[name] for name in names)

    def find(self, name: str) -> Entry | None:
        return self._by_name.get(name)


class Operation:
    """A subclass defines a kind of operation; an instance is one operation, passed to its steps.

    `steps` is a tuple of Step and Wait, or a function that returns it, so that it can precede the functions it refers
    to. `action` is the name in the server's instance actions; empty for an operation without a server. An operation
    keeps the plan that it began with: steps removed from `steps` stay in `retired` while operations of older releases
    may be running. A `background` operation releases its worker's slot during every delay.
    Without `blocks_requests`, its server accepts further requests, which run after it.
    Operations of a `lane` have a separate worker, so that other operations need not wait for its slots.
    """

    kind: ClassVar[str]
    action: ClassVar[str]
    task_state: ClassVar[str | None] = None
    rounds: ClassVar[int] = 3
    background: ClassVar[bool] = False
    blocks_requests: ClassVar[bool] = True
    lane: ClassVar[str] = ""
    steps: ClassVar[Steps]
    retired: ClassVar[tuple[Entry, ...]] = ()
    _table: ClassVar[StepTable | None] = None

    def __init_subclass__(cls, *, register: bool = True) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__ or not register:
            return
        if cls.kind in _kinds:
            raise InvalidDefinition(f"two operations have the kind {cls.kind!r}")
        _kinds[cls.kind] = cls

    def __init__(self, row: Row, *, services: Any, db: Database) -> None:
        self.services = services
        self.db = db
        self.seq: int = row["seq"]
        self.id: str = row["id"]
        self.server_id: str | None = row["server_id"]
        self.project_id: str | None = row["project_id"]
        self.user_id: str | None = row["user_id"]
        self.request_id: str | None = row["request_id"]
        self.params: dict[str, Any] = orjson.loads(row["params"])
        self.results: dict[str, Any] = orjson.loads(row["results"])
        self.note: dict[str, Any] = orjson.loads(row["note"])
        self.host: str | None = row["host"]
        # The host that the current step has called; the step's record has this host instead of `host`.
        self.called_host: str | None = None
        self.owner: str = row["lease_owner"]
        self.epoch: int = row["epoch"]
        self.round: int = row["round"]
        self.attempt: int = row["attempt"]
        self.cancelled: bool = row["cancel_requested"]
        self.created_at: float = row["created_at"]

    async def report(self, progress: int) -> None:
        """Report the progress of a long step, in percent. Raises LostLease."""
        from kilonova.operations import store

        await store.report_progress(self.db, self, progress)

    async def failed(self, tx: Transaction, error: Failed) -> None:
        """Hook in the transaction that records the end of a failed or cancelled operation, after its undo."""

    @classmethod
    def table(cls) -> StepTable:
        if (found := cls.__dict__.get("_table")) is None:
            declared = getattr_static(cls, "steps")
            found = cls._table = StepTable(cls.__name__, declared() if callable(declared) else declared, cls.retired)
        return found


_kinds: dict[str, type[Operation]] = {}


def all_kinds() -> Iterator[type[Operation]]:
    return iter(_kinds.values())


def find_kind(kind: str) -> type[Operation] | None:
    return _kinds.get(kind)


def get_kind(kind: str) -> type[Operation]:
    """The operation of a kind that must exist, for a module that begins it without importing its file."""
    return _kinds[kind]
