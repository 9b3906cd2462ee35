"""Shares with their access rules and locks, and the shares of servers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "share_locks",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("context", TEXT, nullable=False),
        sa.Column("resource_type", TEXT, nullable=False),
        sa.Column("resource_id", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_share_locks")),
    )
    op.create_index("ix_share_locks_project", "share_locks", ["project_id", "created_at", "id"], unique=False)
    op.create_index("ix_share_locks_resource", "share_locks", ["resource_id"], unique=False)

    op.create_table(
        "share_quotas",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_share_quotas")),
    )
    op.create_table(
        "shares",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("zone", TEXT, nullable=False),
        sa.Column("metadata", TEXT, nullable=False),
        sa.Column("export_path", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shares")),
    )
    op.create_index("ix_shares_project", "shares", ["project_id", "created_at", "id"], unique=False)

    op.create_table(
        "server_shares",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("share_id", TEXT, nullable=False),
        sa.Column("tag", TEXT, nullable=False),
        sa.Column("share_proto", TEXT, nullable=False),
        sa.Column("export_location", TEXT, nullable=False),
        sa.Column("built_in", sa.Boolean(), nullable=False),
        sa.Column("access_to", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.id"], name=op.f("fk_server_shares_server_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_shares")),
        sa.UniqueConstraint("server_id", "share_id", name=op.f("uq_server_shares_server_id_share_id")),
        sa.UniqueConstraint("server_id", "tag", name=op.f("uq_server_shares_server_id_tag")),
    )
    op.create_index("ix_server_shares_share", "server_shares", ["share_id", "access_to"], unique=False)

    op.create_table(
        "share_access_rules",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("share_id", TEXT, nullable=False),
        sa.Column("access_type", TEXT, nullable=False),
        sa.Column("access_to", TEXT, nullable=False),
        sa.Column("access_level", TEXT, nullable=False),
        sa.Column("metadata", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["share_id"], ["shares.id"], name=op.f("fk_share_access_rules_share_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_share_access_rules")),
        sa.UniqueConstraint(
            "share_id", "access_type", "access_to", name=op.f("uq_share_access_rules_share_id_access_type_access_to")
        ),
    )
