"""Which request the running code belongs to: logs name it, and calls to other services pass it on."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
# The id that a caller gave to a chain of requests over several services.
global_request_id: ContextVar[str | None] = ContextVar("global_request_id", default=None)


def passed_on() -> str | None:
    """What a further service is told: the chain's id, else that of the request which begins the chain here."""
    return global_request_id.get() or request_id.get()
