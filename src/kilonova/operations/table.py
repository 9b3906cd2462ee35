"""How an operation is declared: its table of steps, and the register of kinds."""

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
"""`async def action(op)`, or `async def action(op, tx)` for one that runs in the recording transaction."""


class WrongTable(Exception):
    """An operation's declaration makes no sense."""


class UnknownStep(Exception):
    """An operation of another release has a step that this one does not know."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and how to take it back. Both may run twice and must then find their own work.

    The undo also runs for the very step that failed, so it must cope with nothing, half or all having been done.
    `deadline` is counted from the step's first start, whatever dies in between, without the time in which no worker was
    there to go on; it may depend on the operation, but not change while the step goes on. `cancellable=False` lets the
    action run to its end when somebody cancels; the cancel is honoured after it.
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


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event without holding anything. Its payload, passed through `arrived`, is the result.

    `deadline` may depend on the operation, but not change while it waits.
    `poll` is asked every `poll_every` seconds in case the event got lost; what it returns, if not None, is the result.
    With `polls_first` it is also asked before there is any waiting.
    """

    name: str
    key: Callable[[Any], str]
    deadline: float | Callable[[Any], float]
    poll: Action | None = None
    poll_every: float = 30.0
    polls_first: bool = False
    arrived: Callable[[Any, Any], Any] | None = None
    task_state: str | None = None


Entry = Step | Wait


def deadline_of(entry: Entry, op: Any) -> float:
    """How many seconds the operation has for the step."""
    return entry.deadline(op) if callable(entry.deadline) else entry.deadline


Steps = tuple[Entry, ...] | Callable[[], tuple[Entry, ...]]


class Table:
    """The compiled steps of one kind."""

    __slots__ = ("_by_name", "_plans", "names", "steps", "text")

    def __init__(self, owner: str, steps: tuple[Entry, ...], retired: tuple[Entry, ...]) -> None:
        self.steps = steps
        self.names = [step.name for step in steps]
        self.text = orjson.dumps(self.names).decode()
        self._by_name = {step.name: step for step in (*retired, *steps)}
        self._plans: dict[frozenset[str], tuple[str, str]] = {}
        if not steps:
            raise WrongTable(f"{owner} has no steps")
        if len(self._by_name) != len(steps) + len(retired):
            raise WrongTable(f"{owner} has two steps of the same name")
        for step in self._by_name.values():
            if isinstance(step, Step) and step.undo is None and not step.why:
                raise WrongTable(f"{owner}: step {step.name!r} has no undo and does not say why")
            if not callable(step.deadline) and step.deadline <= 0:
                raise WrongTable(f"{owner}: step {step.name!r} has no deadline")

    def without(self, names: frozenset[str]) -> tuple[str, str]:
        """The plan of an operation that has no need of these steps, as it is written, and its first step."""
        if (found := self._plans.get(names)) is None:
            if unknown := names.difference(self.names):
                raise WrongTable(f"there is no step {min(unknown)!r} to leave out")
            left = [name for name in self.names if name not in names]
            found = self._plans[names] = orjson.dumps(left).decode(), left[0]
        return found

    def plan(self, text: str, step: str) -> tuple[Entry, ...]:
        """The steps that an operation began with, perhaps in another release. Raises UnknownStep."""
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
    """Subclass to declare a kind; an instance is one operation as its steps see it.

    `steps` is a tuple of Step and Wait, or a function that returns it so that the table may stand above the functions
    it names. `action` is its name in the history of its server; one of no server has none. An operation keeps the plan
    it began with: steps that a release takes out of the table stay in `retired` for as long as operations of older
    releases may be under way. Nobody waits for one in the `background`: it takes no worker's slot while it pauses.
    One that goes `beside` others does not make its server busy: what else is asked for comes after it.
    Operations of a `lane` have a worker of their own, so that those of others need not wait for their slots.
    """

    kind: ClassVar[str]
    action: ClassVar[str]
    task_state: ClassVar[str | None] = None
    rounds: ClassVar[int] = 3
    background: ClassVar[bool] = False
    beside: ClassVar[bool] = False
    lane: ClassVar[str] = ""
    steps: ClassVar[Steps]
    retired: ClassVar[tuple[Entry, ...]] = ()
    _table: ClassVar[Table | None] = None

    def __init_subclass__(cls, *, register: bool = True) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__ or not register:
            return
        if cls.kind in _kinds:
            raise WrongTable(f"two operations of kind {cls.kind!r}")
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
        # The host that the step under way has asked; its record names this one rather than `host`.
        self.asked: str | None = None
        self.owner: str = row["lease_owner"]
        self.epoch: int = row["epoch"]
        self.round: int = row["round"]
        self.attempt: int = row["attempt"]
        self.cancelled: bool = row["cancel_requested"]
        self.created_at: float = row["created_at"]

    async def report(self, progress: int) -> None:
        """Show how far the operation is, in percent; for steps that take long. Raises LostLease."""
        from kilonova.operations import store

        await store.report(self.db, self, progress)

    async def failed(self, tx: Transaction, error: Failed) -> None:
        """Runs in the transaction that records the end, after all is undone: failed, or cancelled."""

    @classmethod
    def table(cls) -> Table:
        if (found := cls.__dict__.get("_table")) is None:
            declared = getattr_static(cls, "steps")
            found = cls._table = Table(cls.__name__, declared() if callable(declared) else declared, cls.retired)
        return found


_kinds: dict[str, type[Operation]] = {}


def kinds() -> Iterator[type[Operation]]:
    return iter(_kinds.values())


def find(kind: str) -> type[Operation] | None:
    return _kinds.get(kind)
