"""What a step may raise, what the engine raises, and how a failure is written on the row."""

from __future__ import annotations

import traceback
from typing import Any

import orjson

from kilonova.store import Unavailable


class Failed(Exception):
    """The step cannot succeed: undo all. The message is for users; `fault` is kept with it as it is."""

    def __init__(self, message: str, *, fault: Any = None) -> None:
        super().__init__(message)
        self.fault = fault


class TimedOut(Failed):
    """A step or a wait did not end within its deadline."""


class Cancelled(Failed):
    """Somebody asked for the operation to be cancelled."""


class Unexpected(Failed):
    """A step raised something that is not meant for users; `internal` is for operators."""

    internal: str | None = None


class Passing(Exception):
    """Trouble that may be over soon: the step is tried again within its deadline."""


class GoBack(Exception):
    """Undo down to and including `step`, then go forward again in a new round with `note` added to the notes.

    Should there be no way back, users read the reason, and `fault` is kept with it.
    """

    def __init__(self, step: str, *, note: dict[str, Any] | None = None, reason: str, fault: Any = None) -> None:
        super().__init__(reason)
        self.step = step
        self.note = note or {}
        self.reason = reason
        self.fault = fault


class LostLease(Exception):
    """Another worker has the operation, or will soon: this one must not touch it any more."""


_KINDS: dict[str, type[Failed]] = {kind.__name__: kind for kind in (Failed, TimedOut, Cancelled, Unexpected)}


def is_passing(error: BaseException) -> bool:
    """Errors of other parts say it by an attribute, so that they need not know the engine."""
    return isinstance(error, Passing | Unavailable) or getattr(error, "passing", False) is True


def describe(error: BaseException, step: str) -> dict[str, Any]:
    """The JSON form. Only messages written for users are shown to them; an error may have such a one as `public`."""
    if isinstance(error, Failed):
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS)
        return {"type": kind, "message": str(error), "fault": _plain(error.fault)}
    if isinstance(error, Unavailable):
        return {"type": "Failed", "message": "The database was not available", "fault": None}
    if isinstance(error, GoBack):
        return {"type": "Failed", "message": error.reason, "fault": _plain(error.fault)}
    if is_passing(error):
        public = getattr(error, "public", None)
        return {"type": "Failed", "message": public or str(error), "fault": str(error) if public else None}
    return {
        "type": "Unexpected",
        "message": f"Unexpected {type(error).__name__} in step '{step}'",
        "fault": None,
        "internal": "".join(traceback.format_exception(error, limit=-12)),
    }


def _plain(fault: Any) -> Any:
    """A fault that cannot be written down must not keep the failure itself from being recorded."""
    return orjson.loads(orjson.dumps(fault, default=str, option=orjson.OPT_NON_STR_KEYS))


def restore(document: dict[str, Any]) -> Failed:
    """The error of a row, as the operation's `failed` hook gets it."""
    error = _KINDS.get(document["type"], Failed)(document["message"], fault=document.get("fault"))
    if isinstance(error, Unexpected):
        error.internal = document.get("internal")
    return error
