"""The operations engine: operations are rows that workers run step by step, or undo, even if processes die."""

from __future__ import annotations

from kilonova.operations.control import begin, request_cancel
from kilonova.operations.definition import Entry, Operation, Step, StepResult, Wait, get_kind, transaction_step
from kilonova.operations.errors import Cancelled, Failed, GoBack, LostLease, TimedOut, TransientError, Unexpected
from kilonova.operations.events import post_event
from kilonova.operations.worker import Worker

__all__ = [
    "Cancelled",
    "Entry",
    "Failed",
    "GoBack",
    "LostLease",
    "Operation",
    "Step",
    "StepResult",
    "TimedOut",
    "TransientError",
    "Unexpected",
    "Wait",
    "Worker",
    "begin",
    "get_kind",
    "post_event",
    "request_cancel",
    "transaction_step",
]
