"""Tables of the operations engine: operations, their executed steps, waits and events."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint, and_, column

from kilonova.store.schema.base import document, flag, metadata, moment, number, real, reference, sequence, string

_UNFINISHED = column("finished_at").is_(None)
_UNFINISHED_OF_GUEST = and_(_UNFINISHED, column("guest_id").is_not(None))

operations = Table(
    "operations",
    metadata,
    # The order in which operations of one server run.
    sequence("seq"),
    string("id"),
    string("kind"),
    string("action"),
    string("server_id", nullable=True),
    # The guest that a deferred operation cleans up, restores or updates. Such an operation has no server.
    string("guest_id", nullable=True),
    string("project_id", nullable=True),
    string("user_id", nullable=True),
    string("request_id", nullable=True),
    string("host", nullable=True),
    document("params"),
    # Names of the steps that it began with, so that another release neither skips nor adds steps.
    document("plan"),
    document("results"),
    document("note"),
    string("state"),
    # The step to run, or to undo while undoing.
    string("step"),
    # Undo down to this step, then run forward again; null: undo all steps.
    string("undo_to", nullable=True),
    number("round"),
    # `error`: why the operation failed. `trouble`: why the last attempt of its current step failed.
    document("error", nullable=True),
    number("attempt"),
    document("trouble", nullable=True),
    number("progress", nullable=True),
    flag("cancel_requested"),
    string("lease_owner", nullable=True),
    moment("lease_until"),
    # Incremented by each lease: a worker with a lower epoch has lost its lease.
    number("epoch"),
    moment("run_at"),
    moment("created_at"),
    moment("updated_at"),
    moment("round_started_at"),
    moment("step_started_at", nullable=True),
    # Seconds since `step_started_at` in which the operation was due but not leased.
    real("step_idle", default=0),
    moment("finished_at", nullable=True),
    UniqueConstraint("id"),
    Index("ix_operations_due", "run_at", sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED),
    Index(
        "ix_operations_unfinished_of_server",
        "server_id",
        "seq",
        sqlite_where=_UNFINISHED,
        postgresql_where=_UNFINISHED,
    ),
    Index(
        "ix_operations_unfinished_of_guest",
        "guest_id",
        sqlite_where=_UNFINISHED_OF_GUEST,
        postgresql_where=_UNFINISHED_OF_GUEST,
    ),
    Index("ix_operations_server_id_seq", "server_id", "seq"),
    Index("ix_operations_request_id", "request_id"),
    sqlite_autoincrement=True,
)

# One row, written at the first start. Hosts remember it: see docs/decisions/0025-restored-databases.md.
incarnation = Table(
    "incarnation",
    metadata,
    # Raised by each restore. 0: the database was created before hosts knew incarnations.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # Counts the leases of operations, so that it grows before a worker sends commands for an operation.
    number("leases"),
)

operation_steps = Table(
    "operation_steps",
    metadata,
    reference("operation_id", "operations.id", ondelete="CASCADE"),
    number("round"),
    string("phase"),
    string("name"),
    string("outcome"),
    document("error", nullable=True),
    string("host", nullable=True),
    moment("started_at"),
    moment("finished_at"),
    PrimaryKeyConstraint("operation_id", "round", "phase", "name"),
)

operation_waits = Table(
    "operation_waits",
    metadata,
    reference("operation_id", "operations.id", ondelete="CASCADE"),
    string("name"),
    string("key"),
    moment("poll_at", nullable=True),
    moment("created_at"),
    # Set by the event.
    moment("posted_at", nullable=True),
    document("payload", nullable=True),
    PrimaryKeyConstraint("operation_id"),
    Index("ix_operation_waits_key", "key"),
)

# Events that were posted before an operation waited for them.
operation_events = Table(
    "operation_events",
    metadata,
    sequence("seq"),
    string("key"),
    document("payload"),
    moment("created_at"),
    Index("ix_operation_events_key", "key"),
    Index("ix_operation_events_created_at", "created_at"),
    sqlite_autoincrement=True,
)
