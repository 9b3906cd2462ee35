"""Errors of steps and of the engine, and their JSON form in the database."""

from __future__ import annotations

import traceback

from kilonova.operations.definition import R, StepResult
from kilonova.operations.row import StoredError
from kilonova.store import Unavailable


class Failed(Exception):
    """The step cannot succeed, so the operation is undone. The message is for users; `fault` is stored with it."""

    def __init__(self, message: str, *, fault: str | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class TimedOut(Failed):
    """A step or a wait exceeded its deadline."""


class Cancelled(Failed):
    """The operation was cancelled by request."""


class Unexpected(Failed):
    """A step raised another exception. `internal` has its traceback for operators."""

    internal: str | None = None


class TransientError(Exception):
    """A transient failure: the step is retried until its deadline.

    Errors of other packages have an attribute `passing` instead, so that they need not import the engine.
    """


class GoBack(Exception):
    """Undo down to and including `step`, then run forward again in a new round, with `note` merged into `op.note`.

    If that is impossible, the operation fails with the reason and `fault`.
    """

    def __init__(
        self,
        step: str | StepResult[R],
        *,
        note: dict[str, object] | None = None,
        reason: str,
        fault: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.step = str(step)
        self.note = note or {}
        self.reason = reason
        self.fault = fault


class LostLease(Exception):
    """Another worker has leased the operation, or will soon. This worker must not touch it any more."""


_KINDS: dict[str, type[Failed]] = {kind.__name__: kind for kind in (Failed, TimedOut, Cancelled, Unexpected)}


def is_transient(error: BaseException) -> bool:
    return isinstance(error, TransientError | Unavailable) or getattr(error, "passing", False) is True


def describe_error(error: BaseException, step: str) -> StoredError:
    """The stored form. A transient error may have a message for users as `public`; others are not shown to them."""
    if isinstance(error, Failed):
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS)
        return StoredError(type=kind, message=str(error), fault=None if error.fault is None else str(error.fault))
    if isinstance(error, Unavailable):
        return StoredError(message="The database was not available")
    if isinstance(error, GoBack):
        return StoredError(message=error.reason, fault=error.fault)
    if is_transient(error):
        public = getattr(error, "public", None)
        return StoredError(message=public or str(error), fault=str(error) if public else None)
    return StoredError(
        type=Unexpected.__name__,
        message=f"Unexpected {type(error).__name__} in step '{step}'",
        internal="".join(traceback.format_exception(error, limit=-12)),
    )


def restore_error(stored: StoredError) -> Failed:
    """The error of a row, for the operation's `failed` hook."""
    error = _KINDS.get(stored.type, Failed)(stored.message, fault=stored.fault_text)
    if isinstance(error, Unexpected):
        error.internal = stored.internal
    return error
