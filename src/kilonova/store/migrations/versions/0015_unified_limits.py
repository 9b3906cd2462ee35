"""Unified limits: registered limits, and limits of projects and domains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "registered_limits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("service_id", TEXT, nullable=False),
        sa.Column("region_id", TEXT, nullable=False),
        sa.Column("resource_name", TEXT, nullable=False),
        sa.Column("default_limit", sa.BigInteger(), nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registered_limits")),
        sa.UniqueConstraint(
            "service_id",
            "region_id",
            "resource_name",
            name=op.f("uq_registered_limits_service_id_region_id_resource_name"),
        ),
    )

    op.create_table(
        "limits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("registered_limit_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=True),
        sa.Column("domain_id", TEXT, nullable=True),
        sa.Column("resource_limit", sa.BigInteger(), nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name=op.f("fk_limits_domain_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_limits_project_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["registered_limit_id"], ["registered_limits.id"], name=op.f("fk_limits_registered_limit_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_limits")),
        sa.UniqueConstraint("registered_limit_id", "domain_id", name=op.f("uq_limits_registered_limit_id_domain_id")),
        sa.UniqueConstraint("registered_limit_id", "project_id", name=op.f("uq_limits_registered_limit_id_project_id")),
    )
    op.create_index(op.f("ix_limits_domain_id"), "limits", ["domain_id"], unique=False)
    op.create_index(op.f("ix_limits_project_id"), "limits", ["project_id"], unique=False)
