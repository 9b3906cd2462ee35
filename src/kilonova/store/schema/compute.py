"""Tables of the compute service."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from kilonova.store.schema.base import document, flag, ident, metadata, moment, number, reference, sequence, string

# Rows of deleted servers stay, for instance actions and for lists with `changes-since` or `deleted`.
_ALIVE: dict[str, Any] = {"sqlite_where": text("NOT deleted"), "postgresql_where": text("NOT deleted")}

servers = Table(
    "servers",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("project_id", String(64), nullable=False),
    Column("user_id", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("hostname", String(255), nullable=False),
    Column("description", String(255)),
    # The state while no operation runs; `status` and `task_state` are derived (compute/servers/states.py).
    Column("vm_state", String(32), nullable=False),
    Column("power_state", Integer, nullable=False),
    Column("host", String(255)),
    Column("hypervisor_hostname", String(255)),
    Column("pinned_zone", String(255)),
    Column("flavor_id", String(255), nullable=False),
    Column("flavor", Text, nullable=False),
    # Quota usage is the sum of these: the flavor's values, or the larger of both flavors while a resize or revert runs.
    Column("vcpus", Integer, nullable=False),
    Column("ram", Integer, nullable=False),
    Column("image_id", String(36)),
    # Hash of the image's data, such as `sha512:…`; null if it is unknown.
    string("image_hash", nullable=True),
    Column("image_properties", Text, nullable=False),
    Column("key_name", String(255)),
    Column("public_key", Text),
    Column("user_data", Text),
    # Files for the guest; null if none were requested.
    document("personality", nullable=True),
    # The administrator password that the guest reported, encrypted with the server's key.
    Column("sealed_password", Text),
    Column("metadata", Text, nullable=False),
    Column("nics", Text, nullable=False),
    Column("scheduler_hints", Text, nullable=False),
    Column("config_drive", Boolean, nullable=False),
    Column("disk_config", String(16), nullable=False),
    Column("access_ip_v4", String(64)),
    Column("access_ip_v6", String(64)),
    Column("reservation_id", String(32), nullable=False),
    Column("launch_index", Integer, nullable=False),
    Column("root_device_name", String(64)),
    # For a shelved server: the time, and the snapshot image to unshelve from with its hash.
    Column("shelved_at", Double),
    Column("shelved_image_id", String(36)),
    string("shelved_image_hash", nullable=True),
    # Time of a soft delete.
    Column("soft_deleted_at", Double),
    # Ids of the trusted image certificates; null if none were requested.
    document("trusted_certificates", nullable=True),
    Column("locked", Boolean, nullable=False),
    Column("locked_reason", String(255)),
    # Who locked it: "owner" (a user of its project) or "admin" (another user).
    Column("locked_by", String(16)),
    Column("fault", Text),
    Column("deleted", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("launched_at", Double),
    Column("terminated_at", Double),
    # One index per selective filter; flags and power states match too many rows.
    Index("servers_project", "project_id", "created_at", "id", **_ALIVE),
    Index("servers_created", "created_at", "id", **_ALIVE),
    Index("servers_name", "name", "project_id", **_ALIVE),
    Index("servers_state", "vm_state", "project_id", **_ALIVE),
    Index("servers_host", "host", **_ALIVE),
    Index("servers_node", "hypervisor_hostname", **_ALIVE),
    Index("servers_hostname", "hostname", **_ALIVE),
    Index("servers_key", "key_name", **_ALIVE),
    Index("servers_user", "user_id", **_ALIVE),
    Index("servers_flavor", "flavor_id", **_ALIVE),
    Index("servers_image", "image_id", **_ALIVE),
    Index("servers_reservation", "reservation_id"),
    Index("servers_changed", "project_id", "updated_at"),
)

flavors = Table(
    "flavors",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("flavor_id", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("description", Text),
    Column("vcpus", Integer, nullable=False),
    Column("ram", Integer, nullable=False),
    Column("disk", Integer, nullable=False),
    Column("ephemeral", Integer, nullable=False),
    Column("swap", Integer, nullable=False),
    Column("rxtx_factor", Double, nullable=False),
    Column("is_public", Boolean, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("extra_specs", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double),
    Index("flavors_flavor_id", "flavor_id", unique=True),
    Index("flavors_name", "name", unique=True),
    Index("flavors_size", "is_public", "ram", "disk"),
)

flavor_access = Table(
    "flavor_access",
    metadata,
    Column("flavor_id", Integer, ForeignKey("flavors.id", ondelete="CASCADE"), primary_key=True),
    Column("project_id", String(64), primary_key=True),
    Index("flavor_access_project", "project_id"),
)

keypairs = Table(
    "keypairs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("user_id", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("type", String(8), nullable=False),
    Column("fingerprint", String(255), nullable=False),
    Column("public_key", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("keypairs_user_name", "user_id", "name", unique=True),
)

aggregates = Table(
    "aggregates",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("uuid", String(36), nullable=False),
    Column("name", String(255), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double),
    Index("aggregates_uuid", "uuid", unique=True),
    Index("aggregates_name", "name", unique=True),
    sqlite_autoincrement=True,
)

aggregate_hosts = Table(
    "aggregate_hosts",
    metadata,
    Column("aggregate_id", Integer, ForeignKey("aggregates.id", ondelete="CASCADE"), primary_key=True),
    Column("host", String(255), primary_key=True),
    Index("aggregate_hosts_host", "host"),
)

# Availability zones are aggregates with the metadata key `availability_zone`.
aggregate_metadata = Table(
    "aggregate_metadata",
    metadata,
    Column("aggregate_id", Integer, ForeignKey("aggregates.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("value", String(255), nullable=False),
    Index("aggregate_metadata_key", "key", "value"),
)

# Limits that differ from the configured defaults; usage is counted, never stored.
quotas = Table(
    "quotas",
    metadata,
    Column("project_id", String(64), primary_key=True),
    Column("resource", String(64), primary_key=True),
    Column("hard_limit", BigInteger, nullable=False),
)

# Limits of single users in a project, below those of the project.
user_quotas = Table(
    "user_quotas",
    metadata,
    Column("project_id", String(64), primary_key=True),
    Column("user_id", String(64), primary_key=True),
    Column("resource", String(64), primary_key=True),
    Column("hard_limit", BigInteger, nullable=False),
)

# Defaults changed by an operator at run time; the class `default` overrides the configuration.
quota_classes = Table(
    "quota_classes",
    metadata,
    Column("class_name", String(255), primary_key=True),
    Column("resource", String(64), primary_key=True),
    Column("hard_limit", BigInteger, nullable=False),
)

server_groups = Table(
    "server_groups",
    metadata,
    ident(),
    string("project_id"),
    string("user_id"),
    string("name"),
    string("policy"),
    # Maximum of its servers per host; only for the policy anti-affinity.
    number("max_server_per_host", nullable=True),
    moment("created_at"),
    Index("server_groups_project", "project_id", "created_at", "id"),
)

# A server is in one group at most, from its creation to its deletion.
server_group_members = Table(
    "server_group_members",
    metadata,
    Column("server_id", Text, ForeignKey("servers.id", ondelete="CASCADE"), primary_key=True),
    Column("group_id", Text, ForeignKey("server_groups.id", ondelete="CASCADE"), nullable=False),
    Index("server_group_members_group", "group_id", "server_id"),
)

# Attempts to schedule a server: the hosts considered, why they were rejected, and the selected host.
attempts = Table(
    "attempts",
    metadata,
    sequence("id"),
    string("server_id"),
    string("operation_id", nullable=True),
    string("kind"),
    # Null if no host was found.
    string("host", nullable=True),
    document("diagnosis"),
    moment("created_at"),
    Index("attempts_server", "server_id", "id"),
    sqlite_autoincrement=True,
)

# Source and destination of a move, one row per operation. The status of a move is derived from its operation;
# `outcome` is a later decision of the user.
moves = Table(
    "moves",
    metadata,
    sequence("id"),
    string("operation_id"),
    string("server_id"),
    string("project_id"),
    string("user_id"),
    # As in the API: migration, resize, live-migration, evacuation.
    string("type"),
    string("source_host"),
    string("source_node"),
    string("dest_host", nullable=True),
    string("dest_node", nullable=True),
    # Ids of the server's copies of the flavors; the same id twice if the flavor does not change.
    document("old_flavor"),
    document("new_flavor"),
    # The server's state before, for a revert.
    string("old_vm_state"),
    number("old_power_state"),
    # Progress of a live migration.
    document("transfer", nullable=True),
    # confirmed, reverted, or for an evacuation cleaned; null while undecided.
    string("outcome", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    UniqueConstraint("operation_id"),
    Index("moves_server", "server_id", "id"),
    Index("moves_source", "source_host", "id"),
    Index("moves_dest", "dest_host", "id"),
    Index("moves_project", "project_id", "id"),
    sqlite_autoincrement=True,
)

# Block devices of servers: all volumes, and requested local disks. A server without an image boots from the volume
# with the boot index 0.
block_devices = Table(
    "block_devices",
    metadata,
    sequence("id"),
    string("uuid"),
    reference("server_id", "servers.id", ondelete="CASCADE"),
    # Source (image, volume, snapshot, blank) and destination (local, volume).
    string("source_type"),
    string("destination_type"),
    # The id of the source, if it has one.
    string("source_id", nullable=True),
    string("volume_id", nullable=True),
    number("volume_size", nullable=True),
    string("volume_type", nullable=True),
    # Attachment at the volume service, and the host's connection to the volume.
    string("attachment_id", nullable=True),
    document("connection", nullable=True),
    # Attachment and connection of the destination host during a live migration.
    document("standby", nullable=True),
    string("device_name", nullable=True),
    # 0: the boot device. Null or negative: not bootable.
    number("boot_index", nullable=True),
    string("device_type", nullable=True),
    string("disk_bus", nullable=True),
    string("guest_format", nullable=True),
    string("tag", nullable=True),
    flag("delete_on_termination"),
    flag("multiattach"),
    moment("created_at"),
    UniqueConstraint("uuid"),
    UniqueConstraint("server_id", "volume_id"),
    Index("block_devices_server", "server_id", "id"),
    Index("block_devices_volume", "volume_id"),
    sqlite_autoincrement=True,
)

# Tags of servers.
server_tags = Table(
    "server_tags",
    metadata,
    Column("server_id", Text, ForeignKey("servers.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Index("server_tags_tag", "tag", "server_id"),
)

# Console tokens of servers, as hashes. The host reports the address of the console.
console_tokens = Table(
    "console_tokens",
    metadata,
    Column("hash", Text, primary_key=True),
    reference("server_id", "servers.id", ondelete="CASCADE"),
    string("user_id"),
    string("type"),
    moment("created_at"),
    moment("expires_at"),
    Index("console_tokens_expires", "expires_at"),
)

# File shares of servers. A share that is attached is active while the server's guest runs.
server_shares = Table(
    "server_shares",
    metadata,
    ident(),
    reference("server_id", "servers.id", ondelete="CASCADE"),
    string("share_id"),
    string("tag"),
    string("share_proto"),
    string("export_location"),
    # Whether the export location is a directory of the built-in service.
    flag("built_in"),
    # The host's address, as the access rule has it.
    string("access_to"),
    string("status"),
    moment("created_at"),
    moment("updated_at"),
    UniqueConstraint("server_id", "share_id"),
    UniqueConstraint("server_id", "tag"),
    Index("ix_server_shares_share", "share_id", "access_to"),
)
