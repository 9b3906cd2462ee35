"""Add trunks and their subports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "trunks",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("port_id", TEXT, nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["port_id"], ["ports.id"], name=op.f("fk_trunks_port_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trunks")),
    )
    with op.batch_alter_table("trunks", schema=None) as batch_op:
        batch_op.create_index("ix_trunks_name", ["name"], unique=False)
        batch_op.create_index("ix_trunks_project", ["project_id"], unique=False)
        batch_op.create_index("uq_trunks_port", ["port_id"], unique=True)

    op.create_table(
        "trunk_subports",
        sa.Column("port_id", TEXT, nullable=False),
        sa.Column("trunk_id", TEXT, nullable=False),
        sa.Column("segmentation_type", TEXT, nullable=False),
        sa.Column("segmentation_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["port_id"], ["ports.id"], name=op.f("fk_trunk_subports_port_id")),
        sa.ForeignKeyConstraint(["trunk_id"], ["trunks.id"], name=op.f("fk_trunk_subports_trunk_id")),
        sa.PrimaryKeyConstraint("port_id", name=op.f("pk_trunk_subports")),
    )
    with op.batch_alter_table("trunk_subports", schema=None) as batch_op:
        batch_op.create_index(
            "uq_trunk_subports_segment", ["trunk_id", "segmentation_type", "segmentation_id"], unique=True
        )
