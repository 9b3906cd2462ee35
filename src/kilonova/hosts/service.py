"""The service of a host or of a worker process, as a record."""

from __future__ import annotations

from typing import ClassVar

from kilonova.store.records import Record


class Service(Record, frozen=True):
    """`program` is the API's `binary`. `last_seen_at` is the time of the last heartbeat."""

    table: ClassVar[str] = "services"

    id: int
    uuid: str
    host: str
    program: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    last_seen_at: float
    report_count: int
    version: int
    created_at: float
    updated_at: float | None
