"""Identifiers of the request and operation that the running code belongs to, for logs and outgoing requests."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
# The id that a caller gave to a chain of requests over several services.
global_request_id: ContextVar[str | None] = ContextVar("global_request_id", default=None)
operation_id: ContextVar[str | None] = ContextVar("operation_id", default=None)


def outgoing_request_id() -> str | None:
    """Return the global request id to send to another service: this request's id where its caller sent none."""
    return global_request_id.get() or request_id.get()
