"""The durable engine: operations are rows, carried out step by step or undone, whatever dies in between."""

from __future__ import annotations

from kilonova.operations.errors import Cancelled, Failed, GoBack, LostLease, Passing, TimedOut, Unexpected
from kilonova.operations.events import post_event
from kilonova.operations.requests import begin, request_cancel
from kilonova.operations.table import Operation, Step, Wait
from kilonova.operations.worker import Worker

__all__ = [
    "Cancelled",
    "Failed",
    "GoBack",
    "LostLease",
    "Operation",
    "Passing",
    "Step",
    "TimedOut",
    "Unexpected",
    "Wait",
    "Worker",
    "begin",
    "post_event",
    "request_cancel",
]
