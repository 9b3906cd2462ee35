"""Trusts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "trusts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("trustor_user_id", TEXT, nullable=False),
        sa.Column("trustee_user_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=True),
        sa.Column("impersonation", sa.Boolean(), nullable=False),
        sa.Column("role_ids", TEXT, nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("remaining_uses", sa.BigInteger(), nullable=True),
        sa.Column("redelegation_count", sa.BigInteger(), nullable=False),
        sa.Column("redelegated_trust_id", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_trusts_project_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["redelegated_trust_id"], ["trusts.id"], name=op.f("fk_trusts_redelegated_trust_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trustee_user_id"], ["users.id"], name=op.f("fk_trusts_trustee_user_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trustor_user_id"], ["users.id"], name=op.f("fk_trusts_trustor_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trusts")),
    )
    op.create_index(op.f("ix_trusts_project_id"), "trusts", ["project_id"], unique=False)
    op.create_index(op.f("ix_trusts_redelegated_trust_id"), "trusts", ["redelegated_trust_id"], unique=False)
    op.create_index(op.f("ix_trusts_trustee_user_id"), "trusts", ["trustee_user_id"], unique=False)
    op.create_index(op.f("ix_trusts_trustor_user_id"), "trusts", ["trustor_user_id"], unique=False)
