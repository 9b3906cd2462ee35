"""Volumes, and block devices of servers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import NUMBERED, TEXT

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "volume_quota_classes",
        sa.Column("class_name", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("class_name", "resource", name=op.f("pk_volume_quota_classes")),
    )
    op.create_table(
        "volume_quotas",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_volume_quotas")),
    )
    op.create_table(
        "volume_types",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("extra_specs", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_types")),
        sa.UniqueConstraint("name", name=op.f("uq_volume_types_name")),
    )
    op.create_table(
        "block_devices",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("source_type", TEXT, nullable=False),
        sa.Column("destination_type", TEXT, nullable=False),
        sa.Column("source_id", TEXT, nullable=True),
        sa.Column("volume_id", TEXT, nullable=True),
        sa.Column("volume_size", sa.BigInteger(), nullable=True),
        sa.Column("volume_type", TEXT, nullable=True),
        sa.Column("attachment_id", TEXT, nullable=True),
        sa.Column("connection", TEXT, nullable=True),
        sa.Column("standby", TEXT, nullable=True),
        sa.Column("device_name", TEXT, nullable=True),
        sa.Column("boot_index", sa.BigInteger(), nullable=True),
        sa.Column("device_type", TEXT, nullable=True),
        sa.Column("disk_bus", TEXT, nullable=True),
        sa.Column("guest_format", TEXT, nullable=True),
        sa.Column("tag", TEXT, nullable=True),
        sa.Column("delete_on_termination", sa.Boolean(), nullable=False),
        sa.Column("multiattach", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.id"], name=op.f("fk_block_devices_server_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_block_devices")),
        sa.UniqueConstraint("server_id", "volume_id", name=op.f("uq_block_devices_server_id_volume_id")),
        sa.UniqueConstraint("uuid", name=op.f("uq_block_devices_uuid")),
        sqlite_autoincrement=True,
    )
    op.create_index("block_devices_server", "block_devices", ["server_id", "id"], unique=False)
    op.create_index("block_devices_volume", "block_devices", ["volume_id"], unique=False)

    op.create_table(
        "volume_default_types",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("type_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["type_id"], ["volume_types.id"], name=op.f("fk_volume_default_types_type_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_volume_default_types")),
    )
    op.create_table(
        "volume_type_access",
        sa.Column("type_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["type_id"], ["volume_types.id"], name=op.f("fk_volume_type_access_type_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("type_id", "project_id", name=op.f("pk_volume_type_access")),
    )
    op.create_index("volume_type_access_project", "volume_type_access", ["project_id"], unique=False)

    op.create_table(
        "volumes",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("previous_status", TEXT, nullable=True),
        sa.Column("type_id", TEXT, nullable=False),
        sa.Column("zone", TEXT, nullable=False),
        sa.Column("bootable", sa.Boolean(), nullable=False),
        sa.Column("multiattach", sa.Boolean(), nullable=False),
        sa.Column("readonly", sa.Boolean(), nullable=True),
        sa.Column("snapshot_id", TEXT, nullable=True),
        sa.Column("source_volume_id", TEXT, nullable=True),
        sa.Column("image_metadata", TEXT, nullable=True),
        sa.Column("data_id", TEXT, nullable=True),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["type_id"], ["volume_types.id"], name=op.f("fk_volumes_type_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volumes")),
    )
    op.create_index("volumes_created", "volumes", ["created_at", "id"], unique=False)
    op.create_index("volumes_name", "volumes", ["name", "project_id"], unique=False)
    op.create_index("volumes_project", "volumes", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volumes_snapshot", "volumes", ["snapshot_id"], unique=False)
    op.create_index("volumes_source", "volumes", ["source_volume_id"], unique=False)
    op.create_index("volumes_status", "volumes", ["status"], unique=False)
    op.create_index("volumes_type", "volumes", ["type_id"], unique=False)

    op.create_table(
        "volume_attachments",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("volume_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("mode", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("mountpoint", TEXT, nullable=True),
        sa.Column("connector", TEXT, nullable=True),
        sa.Column("connection", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("attached_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_attachments_volume_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_attachments")),
    )
    op.create_index(
        "volume_attachments_project", "volume_attachments", ["project_id", "created_at", "id"], unique=False
    )
    op.create_index("volume_attachments_server", "volume_attachments", ["server_id"], unique=False)
    op.create_index("volume_attachments_volume", "volume_attachments", ["volume_id"], unique=False)

    op.create_table(
        "volume_metadata",
        sa.Column("volume_id", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_metadata_volume_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("volume_id", "key", name=op.f("pk_volume_metadata")),
    )
    op.create_index("volume_metadata_key", "volume_metadata", ["key", "value"], unique=False)

    op.create_table(
        "volume_snapshots",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("volume_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("image_metadata", TEXT, nullable=True),
        sa.Column("bootable", sa.Boolean(), nullable=False),
        sa.Column("data_id", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], name=op.f("fk_volume_snapshots_volume_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_snapshots")),
    )
    op.create_index("volume_snapshots_created", "volume_snapshots", ["created_at", "id"], unique=False)
    op.create_index("volume_snapshots_project", "volume_snapshots", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volume_snapshots_volume", "volume_snapshots", ["volume_id", "created_at"], unique=False)

    op.create_table(
        "volume_transfers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("volume_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("salt", TEXT, nullable=False),
        sa.Column("key_hash", TEXT, nullable=False),
        sa.Column("no_snapshots", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_transfers_volume_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_transfers")),
    )
    op.create_index("volume_transfers_project", "volume_transfers", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volume_transfers_volume", "volume_transfers", ["volume_id"], unique=True)

    op.create_table(
        "volume_snapshot_metadata",
        sa.Column("snapshot_id", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["snapshot_id"],
            ["volume_snapshots.id"],
            name=op.f("fk_volume_snapshot_metadata_snapshot_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("snapshot_id", "key", name=op.f("pk_volume_snapshot_metadata")),
    )
    op.create_index("volume_snapshot_metadata_key", "volume_snapshot_metadata", ["key", "value"], unique=False)

    op.create_table(
        "volume_services",
        sa.Column("program", TEXT, nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", TEXT, nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("program", name=op.f("pk_volume_services")),
    )

    op.add_column("servers", sa.Column("trusted_certificates", TEXT, nullable=True))
    op.add_column("hypervisors", sa.Column("connector", TEXT, nullable=True))
