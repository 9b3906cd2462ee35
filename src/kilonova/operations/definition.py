"""Base classes to define operations and their steps, and the registry of operation kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast, get_args, get_origin, overload

import msgspec
from typing_extensions import TypeVar

from kilonova.store import Database, Transaction

if TYPE_CHECKING:
    from kilonova.operations.errors import Failed
    from kilonova.operations.row import OperationRow
    from kilonova.services import Services

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True, default=object)
O_contra = TypeVar("O_contra", bound="Operation", contravariant=True)
R = TypeVar("R")


class InvalidDefinition(Exception):
    """The definition of an operation is invalid."""


class UnknownStep(Exception):
    """An operation of another release has a step that this release does not know."""


class StepResult(Generic[R]):
    """The name of a step that has a result, and the result's type, which is stored as JSON."""

    __slots__ = ("_decoder", "name")

    def __init__(self, name: str, type: type[R]) -> None:
        self.name = name
        self._decoder = msgspec.json.Decoder(type)

    def decode(self, text: msgspec.Raw) -> R:
        return self._decoder.decode(text)

    def __str__(self) -> str:
        return self.name


Action = Callable[[O_contra], Awaitable[R]] | Callable[[O_contra, Transaction], Awaitable[R]]
"""`async def action(op)`, or `async def action(op, tx)` if it runs in the transaction that records the step."""
Undo = Action[O_contra, None]
Deadline = float | Callable[[O_contra], float]


class Step(Generic[O_contra]):
    """An action and its undo. Both may run more than once, and must then detect what was done before.

    The name of a step with a result is a StepResult; an action that returns None has no result. The undo also runs for
    the step that failed, so it must handle an action that did nothing, part or all of its work. `why` is the reason for
    a step without undo. `deadline` is in seconds since the step's first start, excluding the time without a worker; it
    may depend on the operation, but must not change during the step. With `cancellable=False`, a cancel takes effect
    only after the action has ended.
    """

    __slots__ = (
        *("action", "cancellable", "deadline", "name", "result", "task_state", "transaction", "undo"),
        *("undo_transaction", "why"),
    )

    @overload
    def __init__(
        self,
        name: str,
        action: Action[O_contra, None],
        undo: Undo[O_contra] | None,
        deadline: Deadline[O_contra],
        transaction: bool = ...,
        undo_transaction: bool = ...,
        why: str | None = ...,
        task_state: str | None = ...,
        cancellable: bool = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: StepResult[R],
        action: Action[O_contra, R | None],
        undo: Undo[O_contra] | None,
        deadline: Deadline[O_contra],
        transaction: bool = ...,
        undo_transaction: bool = ...,
        why: str | None = ...,
        task_state: str | None = ...,
        cancellable: bool = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str | StepResult[Any],
        action: Action[O_contra, Any],
        undo: Undo[O_contra] | None,
        deadline: Deadline[O_contra],
        transaction: bool = False,
        undo_transaction: bool = False,
        why: str | None = None,
        task_state: str | None = None,
        cancellable: bool = True,
    ) -> None:
        self.name, self.result = str(name), None if isinstance(name, str) else name
        self.action = cast(Callable[..., Awaitable[object]], action)
        self.undo = cast(Callable[..., Awaitable[None]] | None, undo)
        self.deadline = deadline
        self.transaction = transaction
        self.undo_transaction = undo_transaction
        self.why = why
        self.task_state = task_state
        self.cancellable = cancellable


@overload
def transaction_step(
    name: str,
    action: Callable[[O_contra, Transaction], Awaitable[None]],
    writes: str,
    *,
    task_state: str | None = ...,
) -> Step[O_contra]: ...


@overload
def transaction_step(
    name: StepResult[R],
    action: Callable[[O_contra, Transaction], Awaitable[R]],
    writes: str,
    *,
    task_state: str | None = ...,
) -> Step[O_contra]: ...


def transaction_step(
    name: str | StepResult[Any],
    action: Callable[[O_contra, Transaction], Awaitable[Any]],
    writes: str,
    *,
    task_state: str | None = None,
) -> Step[O_contra]:
    """A step that is one transaction, and so needs no undo. `writes` names what it writes."""
    why = f"one transaction: {writes}"
    # mypy matches no overload for a name that is a union.
    return Step(cast(str, name), action, undo=None, why=why, deadline=30, transaction=True, task_state=task_state)


class Wait(Generic[O_contra]):
    """Wait for an event without occupying a worker. A wait with a result has the payload, by `convert_payload`.

    `deadline` may depend on the operation, but must not change while it waits.
    `poll` is called every `poll_every` seconds in case the event was lost; a value other than None ends the wait, and
    is its result. With `poll_first`, it is also called before waiting. With `is_hint`, an event does not end the wait
    but makes it poll: for events that may come more than once, or for one of several things to wait for.
    `expire` is called at the deadline, after a last poll. It may end the wait like `poll`, or raise a better error.
    """

    __slots__ = (
        *("convert_payload", "deadline", "expire", "is_hint", "key", "name", "poll", "poll_every", "poll_first"),
        *("result", "task_state"),
    )

    def __init__(
        self,
        name: str | StepResult[R],
        key: Callable[[O_contra], str],
        deadline: Deadline[O_contra],
        poll: Callable[[O_contra], Awaitable[R | None]] | None = None,
        poll_every: float = 30.0,
        poll_first: bool = False,
        convert_payload: Callable[[O_contra, object], R] | None = None,
        task_state: str | None = None,
        is_hint: bool = False,
        expire: Callable[[O_contra], Awaitable[R | None]] | None = None,
    ) -> None:
        if is_hint and not (poll and poll_first):
            raise InvalidDefinition(f"the wait {str(name)!r} needs a poll that comes first, to see what its hints mean")
        self.name, self.result = str(name), None if isinstance(name, str) else name
        self.key = key
        self.deadline = deadline
        self.poll = poll
        self.poll_every = poll_every
        self.poll_first = poll_first
        self.convert_payload = convert_payload
        self.is_hint = is_hint
        self.expire = expire
        self.task_state = task_state


Entry = Step[O_contra] | Wait[O_contra]
AnyEntry = Entry[Any]


def deadline_seconds(entry: Entry[O_contra], op: O_contra) -> float:
    """The deadline of the step for this operation."""
    return entry.deadline(op) if callable(entry.deadline) else entry.deadline


Steps = tuple[AnyEntry, ...] | Callable[[], tuple[AnyEntry, ...]]


class StepTable:
    """The steps of one kind of operation."""

    __slots__ = ("_by_name", "_plans", "names", "steps", "text")

    def __init__(self, owner: str, steps: tuple[AnyEntry, ...], retired: tuple[AnyEntry, ...]) -> None:
        self.steps = steps
        self.names = [step.name for step in steps]
        self.text = _plan_text(self.names)
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
            found = self._plans[names] = _plan_text(remaining), remaining[0]
        return found

    def plan(self, text: str, step: str) -> tuple[AnyEntry, ...]:
        """The steps of a stored plan, perhaps of another release. Raises UnknownStep."""
        if text == self.text and step in self.names:
            return self.steps
        names = msgspec.json.decode(text, type=list[str])
        unknown = [name for name in names if name not in self._by_name] + [step] * (step not in names)
        if unknown:
            raise UnknownStep(f"This release does not know the step '{unknown[0]}'")
        return tuple(self._by_name[name] for name in names)

    def find(self, name: str) -> AnyEntry | None:
        return self._by_name.get(name)

    def decode_results(self, text: str) -> dict[str, object]:
        """The results by step. Steps of a former release may have stored results that no step reads any more."""
        if text == "{}":
            return {}
        found = _decode_raw(text)
        steps = {name: self._by_name[name] for name in found if name in self._by_name}
        return {name: step.result.decode(found[name]) for name, step in steps.items() if step.result is not None}


_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_note = msgspec.json.Decoder(dict[str, object]).decode


def _plan_text(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()


class NoParams(msgspec.Struct, frozen=True):
    """The parameters of an operation that has none."""


@cache
def _params_decoder(kind: type[P]) -> msgspec.json.Decoder[P]:
    return msgspec.json.Decoder(kind)


class Operation(Generic[P_co]):
    """A subclass defines a kind of operation; an instance is one operation, passed to its steps.

    The type argument is the struct of its parameters, which the database stores as JSON. `Operation` without it has no
    parameters; as the type of a step's argument, it is an operation of any kind.
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
    retired: ClassVar[tuple[AnyEntry, ...]] = ()
    params_type: ClassVar[type] = NoParams
    _table: ClassVar[StepTable | None] = None

    def __init_subclass__(cls, *, register: bool = True) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, arguments = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, Operation) and isinstance(arguments[0], type):
                cls.params_type = arguments[0]
        if "kind" not in cls.__dict__ or not register:
            return
        if cls.kind in _kinds:
            raise InvalidDefinition(f"two operations have the kind {cls.kind!r}")
        _kinds[cls.kind] = cls

    def __init__(self, row: OperationRow, *, services: Services, db: Database) -> None:
        self.services = services
        self.db = db
        self.seq = row.seq
        self.id = row.id
        self.server_id = row.server_id
        self.project_id = row.project_id
        self.user_id = row.user_id
        self.request_id = row.request_id
        self.params: P_co = _params_decoder(self.params_type).decode(row.params)
        self.host: str | None = None
        # The host that the current step has called; the step's record has this host instead of `host`.
        self.called_host: str | None = None
        self.owner = row.lease_owner
        self.epoch = row.epoch
        self.round = row.round
        self.attempt = row.attempt
        self.cancelled = row.cancel_requested
        self.created_at = row.created_at
        self.results: dict[str, object] = {}
        self.note: dict[str, object] = {}
        self.restore(row)

    @property
    def is_first_try(self) -> bool:
        """Whether the present step has certainly not run before."""
        return (self.epoch, self.round, self.attempt) == (1, 1, 0)

    def restore(self, row: OperationRow) -> None:
        """Drop the changes that an action made in memory."""
        self.results = self.table().decode_results(row.results)
        self.note = _decode_note(row.note)
        self.host = row.host

    def result(self, step: StepResult[R]) -> R:
        """The result of a step that has been done."""
        return cast(R, self.results[step.name])

    def find_result(self, step: StepResult[R]) -> R | None:
        """The result of a step; None before the step is done."""
        return cast(R | None, self.results.get(step.name))

    def drop_result(self, step: StepResult[R]) -> None:
        """Remove a result that no later step reads."""
        del self.results[step.name]

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


def get_kind(kind: str, params: type[P]) -> type[Operation[P]]:
    """The operation of a kind that must exist, for a module that begins it without importing its file."""
    found = _kinds[kind]
    if found.params_type is not params:
        raise InvalidDefinition(f"the operation {kind!r} has the parameters {found.params_type.__name__}")
    return cast("type[Operation[P]]", found)
