"""Credentials that users store, encrypted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "credentials",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=True),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("encrypted_blob", TEXT, nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_credentials_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_credentials_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
    )
    op.create_index(op.f("ix_credentials_project_id"), "credentials", ["project_id"], unique=False)
    op.create_index(op.f("ix_credentials_user_id"), "credentials", ["user_id"], unique=False)
