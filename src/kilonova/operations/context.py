"""Which operation the running code belongs to; the log formatter asks here."""

from __future__ import annotations

from contextvars import ContextVar

operation_id: ContextVar[str | None] = ContextVar("operation_id", default=None)
