"""Tags, console tokens, locks and soft deletes of servers, networks of hosts, volume messages, idle step time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "console_tokens",
        sa.Column("hash", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.id"], name=op.f("fk_console_tokens_server_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_console_tokens")),
    )
    op.create_index("console_tokens_expires", "console_tokens", ["expires_at"], unique=False)

    op.create_table(
        "server_tags",
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("tag", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.id"], name=op.f("fk_server_tags_server_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("server_id", "tag", name=op.f("pk_server_tags")),
    )
    op.create_index("server_tags_tag", "server_tags", ["tag", "server_id"], unique=False)

    op.create_table(
        "volume_messages",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("level", TEXT, nullable=False),
        sa.Column("resource_type", TEXT, nullable=False),
        sa.Column("resource_id", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_messages")),
    )
    op.create_index("volume_messages_created", "volume_messages", ["created_at", "id"], unique=False)
    op.create_index("volume_messages_expires", "volume_messages", ["expires_at"], unique=False)
    op.create_index("volume_messages_project", "volume_messages", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volume_messages_resource", "volume_messages", ["resource_id", "created_at"], unique=False)

    op.add_column("servers", sa.Column("soft_deleted_at", sa.Double(), nullable=True))
    op.add_column("servers", sa.Column("locked_by", TEXT, nullable=True))
    op.add_column("servers", sa.Column("sealed_password", TEXT, nullable=True))
    op.add_column("hypervisors", sa.Column("networked", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("operations", sa.Column("step_idle", sa.Double(), server_default="0", nullable=False))
