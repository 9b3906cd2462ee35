"""Endpoint groups, endpoints of projects, and policies that clients store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "endpoint_groups",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("filters", TEXT, nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoint_groups")),
    )

    op.create_table(
        "endpoint_group_projects",
        sa.Column("endpoint_group_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_group_id"],
            ["endpoint_groups.id"],
            name=op.f("fk_endpoint_group_projects_endpoint_group_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_endpoint_group_projects_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("endpoint_group_id", "project_id", name=op.f("pk_endpoint_group_projects")),
    )
    op.create_index(
        op.f("ix_endpoint_group_projects_project_id"), "endpoint_group_projects", ["project_id"], unique=False
    )

    op.create_table(
        "endpoint_projects",
        sa.Column("endpoint_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_endpoint_projects_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("endpoint_id", "project_id", name=op.f("pk_endpoint_projects")),
    )
    op.create_index(op.f("ix_endpoint_projects_project_id"), "endpoint_projects", ["project_id"], unique=False)

    op.create_table(
        "policies",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("blob", TEXT, nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policies")),
    )
