"""Tables of the built-in volume service; volume data are files."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text, UniqueConstraint

from kilonova.store.schema.base import document, flag, ident, metadata, moment, number, reference, string

volume_types = Table(
    "volume_types",
    metadata,
    ident(),
    string("name"),
    string("description", nullable=True),
    flag("is_public"),
    document("extra_specs"),
    moment("created_at"),
    moment("updated_at"),
    UniqueConstraint("name"),
)

volume_type_access = Table(
    "volume_type_access",
    metadata,
    Column("type_id", Text, ForeignKey("volume_types.id", ondelete="CASCADE"), primary_key=True),
    Column("project_id", Text, primary_key=True),
    Index("volume_type_access_project", "project_id"),
)

# Default volume types of projects, where they differ from the service's default.
volume_default_types = Table(
    "volume_default_types",
    metadata,
    Column("project_id", Text, primary_key=True),
    reference("type_id", "volume_types.id", ondelete="CASCADE"),
)

volumes = Table(
    "volumes",
    metadata,
    ident(),
    string("project_id"),
    string("user_id"),
    string("name", nullable=True),
    string("description", nullable=True),
    # In GiB, like all sizes of the API.
    number("size"),
    # The state; see `volume/volumes/states.py` for transitions. The state before an operation is kept for its undo.
    string("status"),
    string("previous_status", nullable=True),
    reference("type_id", "volume_types.id"),
    string("zone"),
    flag("bootable"),
    flag("multiattach"),
    # Null until it is set for the first time; shown from then on.
    flag("readonly", nullable=True),
    string("snapshot_id", nullable=True),
    string("source_volume_id", nullable=True),
    # Metadata of the image that the volume was created from, if any.
    document("image_metadata", nullable=True),
    # Part of the file's name, after the volume's id. Replaced content gets a new one.
    string("data_id", nullable=True),
    # Progress of the running operation, in percent.
    number("progress", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    Index("volumes_project", "project_id", "created_at", "id"),
    Index("volumes_created", "created_at", "id"),
    Index("volumes_name", "name", "project_id"),
    Index("volumes_status", "status"),
    Index("volumes_type", "type_id"),
    Index("volumes_snapshot", "snapshot_id"),
    Index("volumes_source", "source_volume_id"),
)

volume_metadata = Table(
    "volume_metadata",
    metadata,
    reference("volume_id", "volumes.id", ondelete="CASCADE"),
    string("key"),
    string("value"),
    PrimaryKeyConstraint("volume_id", "key"),
    Index("volume_metadata_key", "key", "value"),
)

volume_snapshots = Table(
    "volume_snapshots",
    metadata,
    ident(),
    string("project_id"),
    string("user_id"),
    reference("volume_id", "volumes.id"),
    string("name", nullable=True),
    string("description", nullable=True),
    number("size"),
    string("status"),
    number("progress", nullable=True),
    document("image_metadata", nullable=True),
    flag("bootable"),
    string("data_id", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    Index("volume_snapshots_project", "project_id", "created_at", "id"),
    Index("volume_snapshots_volume", "volume_id", "created_at"),
    Index("volume_snapshots_created", "created_at", "id"),
)

volume_snapshot_metadata = Table(
    "volume_snapshot_metadata",
    metadata,
    reference("snapshot_id", "volume_snapshots.id", ondelete="CASCADE"),
    string("key"),
    string("value"),
    PrimaryKeyConstraint("snapshot_id", "key"),
    Index("volume_snapshot_metadata_key", "key", "value"),
)

# Attachments; without a connector, the volume is only reserved.
volume_attachments = Table(
    "volume_attachments",
    metadata,
    ident(),
    reference("volume_id", "volumes.id", ondelete="CASCADE"),
    string("project_id"),
    string("server_id", nullable=True),
    # reserved, attaching, attached, detached, error_attaching.
    string("status"),
    string("mode"),
    string("host", nullable=True),
    string("mountpoint", nullable=True),
    document("connector", nullable=True),
    document("connection", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    moment("attached_at", nullable=True),
    Index("volume_attachments_volume", "volume_id"),
    Index("volume_attachments_server", "server_id"),
    Index("volume_attachments_project", "project_id", "created_at", "id"),
)

volume_transfers = Table(
    "volume_transfers",
    metadata,
    ident(),
    reference("volume_id", "volumes.id", ondelete="CASCADE"),
    string("project_id"),
    string("name", nullable=True),
    string("salt"),
    string("key_hash"),
    flag("no_snapshots"),
    moment("created_at"),
    Index("volume_transfers_volume", "volume_id", unique=True),
    Index("volume_transfers_project", "project_id", "created_at", "id"),
)

# Limits that differ from the configured defaults; usage is counted, never stored.
volume_quotas = Table(
    "volume_quotas",
    metadata,
    Column("project_id", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    number("hard_limit"),
)

volume_quota_classes = Table(
    "volume_quota_classes",
    metadata,
    Column("class_name", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    number("hard_limit"),
)

# User messages about failures. They remain after their resource is deleted.
volume_messages = Table(
    "volume_messages",
    metadata,
    ident(),
    string("project_id"),
    string("event_id"),
    string("level"),
    string("resource_type"),
    string("resource_id"),
    string("text"),
    string("request_id"),
    moment("created_at"),
    moment("expires_at"),
    Index("volume_messages_project", "project_id", "created_at", "id"),
    Index("volume_messages_created", "created_at", "id"),
    Index("volume_messages_resource", "resource_id", "created_at"),
    Index("volume_messages_expires", "expires_at"),
)

# Services that operators enabled or disabled; others are enabled.
volume_services = Table(
    "volume_services",
    metadata,
    Column("program", Text, primary_key=True),
    flag("disabled"),
    string("disabled_reason", nullable=True),
    moment("updated_at"),
)
