"""Ids of deleted images, and the hashes of servers' images."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "deleted_images",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deleted_images"),
    )
    # Unknown for existing servers: their images may have been replaced since they booted.
    op.add_column("servers", sa.Column("image_hash", TEXT, nullable=True))
    op.add_column("servers", sa.Column("shelved_image_hash", TEXT, nullable=True))
