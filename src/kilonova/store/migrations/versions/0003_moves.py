"""Moves of servers between hosts, shelved servers, and inactive port bindings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import NUMBERED, TEXT

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "moves",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("source_host", TEXT, nullable=False),
        sa.Column("source_node", TEXT, nullable=False),
        sa.Column("dest_host", TEXT, nullable=True),
        sa.Column("dest_node", TEXT, nullable=True),
        sa.Column("old_flavor", TEXT, nullable=False),
        sa.Column("new_flavor", TEXT, nullable=False),
        sa.Column("old_vm_state", TEXT, nullable=False),
        sa.Column("old_power_state", sa.BigInteger(), nullable=False),
        sa.Column("transfer", TEXT, nullable=True),
        sa.Column("outcome", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_moves")),
        sa.UniqueConstraint("operation_id", name=op.f("uq_moves_operation_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("moves_dest", "moves", ["dest_host", "id"], unique=False)
    op.create_index("moves_project", "moves", ["project_id", "id"], unique=False)
    op.create_index("moves_server", "moves", ["server_id", "id"], unique=False)
    op.create_index("moves_source", "moves", ["source_host", "id"], unique=False)

    op.create_table(
        "standby_bindings",
        sa.Column("port_id", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("vnic_type", TEXT, nullable=False),
        sa.Column("profile", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["port_id"], ["ports.id"], name=op.f("fk_standby_bindings_port_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("port_id", "host", name=op.f("pk_standby_bindings")),
    )
    op.create_index("standby_bindings_host", "standby_bindings", ["host"], unique=False)

    op.add_column("servers", sa.Column("shelved_at", sa.Double(), nullable=True))
    op.add_column("servers", sa.Column("shelved_image_id", TEXT, nullable=True))
