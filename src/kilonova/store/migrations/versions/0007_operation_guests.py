"""The guest of a deferred operation as a column, so that a query finds it by an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0007"
down_revision = "0006"

KINDS = (
    "clean_up_guest",
    "clean_up_slot",
    "deferred_update_metadata",
    "park_guest",
    "restore_disk",
    "restore_guest",
    "restore_interface",
)
_GUEST_ID = {"sqlite": "json_extract(params, '$.guest_id')", "postgresql": "CAST(params AS JSON) ->> 'guest_id'"}
_UNFINISHED = sa.text("finished_at IS NULL AND guest_id IS NOT NULL")


def upgrade() -> None:
    op.add_column("operations", sa.Column("guest_id", TEXT, nullable=True))
    guest_id = _GUEST_ID[op.get_context().dialect.name]
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    op.execute(f"UPDATE operations SET guest_id = {guest_id} WHERE kind IN ({kinds})")
    op.create_index(
        "ix_operations_unfinished_of_guest",
        "operations",
        ["guest_id"],
        sqlite_where=_UNFINISHED,
        postgresql_where=_UNFINISHED,
    )
