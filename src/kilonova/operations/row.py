"""The row of an operation as a record, the changes of it that the engine saves, and the errors stored in it."""

from __future__ import annotations

from typing import ClassVar, TypedDict

from msgspec import Struct, json

from kilonova.store.records import Record


class OperationRow(Record, frozen=True):
    """The texts `params`, `plan`, `results`, `note`, `error` and `trouble` are JSON that `Operation` decodes."""

    table: ClassVar[str] = "operations"

    seq: int
    id: str
    kind: str
    action: str
    server_id: str | None
    project_id: str | None
    user_id: str | None
    request_id: str | None
    host: str | None
    params: str
    plan: str
    results: str
    note: str
    state: str
    step: str
    undo_to: str | None
    round: int
    error: str | None
    attempt: int
    trouble: str | None
    progress: int | None
    cancel_requested: bool
    lease_owner: str | None
    lease_until: float
    epoch: int
    run_at: float
    created_at: float
    updated_at: float
    round_started_at: float
    step_started_at: float | None
    step_idle: float
    finished_at: float | None


class Changes(TypedDict, total=False):
    """The columns that a worker writes."""

    state: str
    step: str
    undo_to: str | None
    round: int
    results: str
    note: str
    error: str | None
    attempt: int
    trouble: str | None
    host: str | None
    round_started_at: float
    step_started_at: float | None
    step_idle: float
    finished_at: float | None
    updated_at: float
    run_at: float


class StoredError(Struct, frozen=True, kw_only=True):
    """The JSON of `error` and `trouble`. `fault` is for administrators, `internal` for operators."""

    type: str = "Failed"
    message: str
    # Older rows may have another JSON value than a text.
    fault: object = None
    internal: str | None = None

    @property
    def fault_text(self) -> str | None:
        return self.fault if isinstance(self.fault, str) else None

    def encode(self) -> str:
        return json.encode(self).decode()


decode_error = json.Decoder(StoredError).decode
