"""Tables of the compute service: servers and the nouns around them."""

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

# A deleted server's row stays: its actions, and lists with `changes-since` or `deleted`, still show it.
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
    # What the server is when no operation runs; `status` and `task_state` are derived (compute/servers/states.py).
    Column("vm_state", String(32), nullable=False),
    Column("power_state", Integer, nullable=False),
    Column("host", String(255)),
    Column("hypervisor_hostname", String(255)),
    Column("pinned_zone", String(255)),
    Column("flavor_id", String(255), nullable=False),
    Column("flavor", Text, nullable=False),
    # What the quota counts, so that usage is a sum over rows: the flavor's, or the larger of two during a resize.
    Column("vcpus", Integer, nullable=False),
    Column("ram", Integer, nullable=False),
    Column("image_id", String(36)),
    Column("image_properties", Text, nullable=False),
    Column("key_name", String(255)),
    Column("public_key", Text),
    Column("user_data", Text),
    # What its guest has given away, encrypted for its key.
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
    # Of a shelved server: since when, and the snapshot it comes back from.
    Column("shelved_at", Double),
    Column("shelved_image_id", String(36)),
    # Since when it is deleted but can be restored.
    Column("soft_deleted_at", Double),
    # Ids of the certificates that images are to be signed with; nothing where none were named.
    document("trusted_certificates", nullable=True),
    Column("locked", Boolean, nullable=False),
    Column("locked_reason", String(255)),
    # "owner": somebody of its project; "admin": somebody else.
    Column("locked_by", String(16)),
    Column("fault", Text),
    Column("deleted", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("launched_at", Double),
    Column("terminated_at", Double),
    # One per filter that chooses; flags and states of power match too many rows for an index to help.
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

# Defaults that an operator changed at run time; the class `default` stands before the configuration.
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
    # How many of its servers one host may have; only under the policy anti-affinity.
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

# Every attempt to find a host for a server: who was considered, what spoke against them, who was chosen.
attempts = Table(
    "attempts",
    metadata,
    sequence("id"),
    string("server_id"),
    string("operation_id", nullable=True),
    string("kind"),
    # Empty while nobody was found.
    string("host", nullable=True),
    document("diagnosis"),
    moment("created_at"),
    Index("attempts_server", "server_id", "id"),
    sqlite_autoincrement=True,
)

# Where a server was moved from and to, one row per operation that moves one. What became of the move is read from its
# operation; `outcome` is what was decided about it later.
moves = Table(
    "moves",
    metadata,
    sequence("id"),
    string("operation_id"),
    string("server_id"),
    string("project_id"),
    string("user_id"),
    # The API's word: migration, resize, live-migration, evacuation.
    string("type"),
    string("source_host"),
    string("source_node"),
    string("dest_host", nullable=True),
    string("dest_node", nullable=True),
    # The server's own copies with their ids; one flavor twice where it does not change.
    document("old_flavor"),
    document("new_flavor"),
    # What the server was before, for whoever takes it back.
    string("old_vm_state"),
    number("old_power_state"),
    # How much was moved so far, while the guest runs on.
    document("transfer", nullable=True),
    # confirmed, reverted, or for an evacuation cleaned; nothing while that is open.
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

# The disks of a server beside those that every server has: all its volumes, and local disks that it asked for.
# A server whose image is none boots from the volume with the boot index 0.
block_devices = Table(
    "block_devices",
    metadata,
    sequence("id"),
    string("uuid"),
    reference("server_id", "servers.id", ondelete="CASCADE"),
    # What it is made of (image, volume, snapshot, blank) and what it becomes (local, volume).
    string("source_type"),
    string("destination_type"),
    # What it is made of, where that has an id.
    string("source_id", nullable=True),
    string("volume_id", nullable=True),
    number("volume_size", nullable=True),
    string("volume_type", nullable=True),
    # Its attachment at the volume service, and how the host reaches the volume.
    string("attachment_id", nullable=True),
    document("connection", nullable=True),
    # The attachment to another host beside it, and how that host reaches the volume, while the server moves alive.
    document("standby", nullable=True),
    string("device_name", nullable=True),
    # 0: what the server boots from. Nothing or less than 0: never booted from.
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

# Words that users put on servers, to find them by.
server_tags = Table(
    "server_tags",
    metadata,
    Column("server_id", Text, ForeignKey("servers.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Text, primary_key=True),
    Index("server_tags_tag", "tag", "server_id"),
)

# Links to consoles of servers. Only the hash of what is in the link is kept, and where the console is the host says.
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
