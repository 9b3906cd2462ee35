"""The whole schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import NUMBERED, TEXT

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "aggregates",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aggregates")),
    )
    op.create_index("aggregates_name", "aggregates", ["name"], unique=True)
    op.create_index("aggregates_uuid", "aggregates", ["uuid"], unique=True)
    op.create_table(
        "consumers",
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_consumers")),
    )
    op.create_index("consumers_project", "consumers", ["project_id", "user_id"], unique=False)
    op.create_table(
        "domains",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_domains")),
        sa.UniqueConstraint("name", name=op.f("uq_domains_name")),
    )
    op.create_table(
        "flavors",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("flavor_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("vcpus", sa.BigInteger(), nullable=False),
        sa.Column("ram", sa.BigInteger(), nullable=False),
        sa.Column("disk", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral", sa.BigInteger(), nullable=False),
        sa.Column("swap", sa.BigInteger(), nullable=False),
        sa.Column("rxtx_factor", sa.Double(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("extra_specs", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flavors")),
    )
    op.create_index("flavors_flavor_id", "flavors", ["flavor_id"], unique=True)
    op.create_index("flavors_name", "flavors", ["name"], unique=True)
    op.create_index("flavors_size", "flavors", ["is_public", "ram", "disk"], unique=False)
    op.create_table(
        "images",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=True),
        sa.Column("owner", TEXT, nullable=True),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("visibility", TEXT, nullable=False),
        sa.Column("disk_format", TEXT, nullable=True),
        sa.Column("container_format", TEXT, nullable=True),
        sa.Column("min_disk", sa.BigInteger(), nullable=False),
        sa.Column("min_ram", sa.BigInteger(), nullable=False),
        sa.Column("protected", sa.Boolean(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("virtual_size", sa.BigInteger(), nullable=True),
        sa.Column("checksum", TEXT, nullable=True),
        sa.Column("hash_algo", TEXT, nullable=True),
        sa.Column("hash_value", TEXT, nullable=True),
        sa.Column("data_id", TEXT, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_images")),
    )
    op.create_index("ix_images_created", "images", ["created_at", "id"], unique=False)
    op.create_index("ix_images_name", "images", ["name"], unique=False)
    op.create_index("ix_images_owner", "images", ["owner", "created_at", "id"], unique=False)
    op.create_index("ix_images_status", "images", ["status"], unique=False)
    op.create_index("ix_images_visibility", "images", ["visibility", "created_at", "id"], unique=False)
    op.create_table(
        "keypairs",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("fingerprint", TEXT, nullable=False),
        sa.Column("public_key", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keypairs")),
    )
    op.create_index("keypairs_user_name", "keypairs", ["user_id", "name"], unique=True)
    op.create_table(
        "network_quotas",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("maximum", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_network_quotas")),
    )
    op.create_table(
        "networks",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("external", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("mtu", sa.BigInteger(), nullable=False),
        sa.Column("port_security_enabled", sa.Boolean(), nullable=False),
        sa.Column("network_type", TEXT, nullable=False),
        sa.Column("physical_network", TEXT, nullable=False),
        sa.Column("segmentation_id", sa.BigInteger(), nullable=True),
        sa.Column("availability_zone_hints", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_networks")),
    )
    op.create_index("ix_networks_name", "networks", ["name"], unique=False)
    op.create_index(
        "ix_networks_open",
        "networks",
        ["id"],
        unique=False,
        sqlite_where=sa.text("shared OR external"),
        postgresql_where=sa.text("shared OR external"),
    )
    op.create_index("ix_networks_project", "networks", ["project_id"], unique=False)
    op.create_index(
        "uq_networks_segment", "networks", ["network_type", "physical_network", "segmentation_id"], unique=True
    )
    op.create_table(
        "operation_events",
        sa.Column("seq", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("payload", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_operation_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_operation_events_created_at", "operation_events", ["created_at"], unique=False)
    op.create_index("ix_operation_events_key", "operation_events", ["key"], unique=False)
    op.create_table(
        "operations",
        sa.Column("seq", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("server_id", TEXT, nullable=True),
        sa.Column("project_id", TEXT, nullable=True),
        sa.Column("user_id", TEXT, nullable=True),
        sa.Column("request_id", TEXT, nullable=True),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("params", TEXT, nullable=False),
        sa.Column("plan", TEXT, nullable=False),
        sa.Column("results", TEXT, nullable=False),
        sa.Column("note", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("step", TEXT, nullable=False),
        sa.Column("undo_to", TEXT, nullable=True),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("trouble", TEXT, nullable=True),
        sa.Column("progress", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("lease_owner", TEXT, nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("run_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("round_started_at", sa.Double(), nullable=False),
        sa.Column("step_started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_operations")),
        sa.UniqueConstraint("id", name=op.f("uq_operations_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_operations_due",
        "operations",
        ["run_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index("ix_operations_request_id", "operations", ["request_id"], unique=False)
    op.create_index("ix_operations_server_id_seq", "operations", ["server_id", "seq"], unique=False)
    op.create_index(
        "ix_operations_unfinished_of_server",
        "operations",
        ["server_id", "seq"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "quota_classes",
        sa.Column("class_name", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("class_name", "resource", name=op.f("pk_quota_classes")),
    )
    op.create_table(
        "quotas",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_quotas")),
    )
    op.create_table(
        "resource_classes",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_resource_classes")),
    )
    op.create_table(
        "resource_providers",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("root_id", sa.BigInteger(), nullable=True),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["parent_id"], ["resource_providers.id"], name=op.f("fk_resource_providers_parent_id")),
        sa.ForeignKeyConstraint(["root_id"], ["resource_providers.id"], name=op.f("fk_resource_providers_root_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resource_providers")),
        sa.UniqueConstraint("name", name=op.f("uq_resource_providers_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_resource_providers_uuid")),
        sqlite_autoincrement=True,
    )
    op.create_index("resource_providers_change", "resource_providers", ["change"], unique=False)
    op.create_index("resource_providers_parent", "resource_providers", ["parent_id"], unique=False)
    op.create_index("resource_providers_root", "resource_providers", ["root_id"], unique=False)
    op.create_table(
        "revocations",
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("issued_until", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_revocations")),
    )
    op.create_index(op.f("ix_revocations_expires_at"), "revocations", ["expires_at"], unique=False)
    op.create_table(
        "roles",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roles")),
        sa.UniqueConstraint("name", name=op.f("uq_roles_name")),
    )
    op.create_table(
        "security_groups",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("stateful", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_security_groups")),
    )
    op.create_index("ix_security_groups_name", "security_groups", ["name"], unique=False)
    op.create_index("ix_security_groups_project", "security_groups", ["project_id"], unique=False)
    op.create_index(
        "uq_security_groups_default",
        "security_groups",
        ["project_id"],
        unique=True,
        sqlite_where=sa.text("is_default"),
        postgresql_where=sa.text("is_default"),
    )
    op.create_table(
        "servers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("hostname", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("vm_state", TEXT, nullable=False),
        sa.Column("power_state", sa.BigInteger(), nullable=False),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("hypervisor_hostname", TEXT, nullable=True),
        sa.Column("pinned_zone", TEXT, nullable=True),
        sa.Column("flavor_id", TEXT, nullable=False),
        sa.Column("flavor", TEXT, nullable=False),
        sa.Column("vcpus", sa.BigInteger(), nullable=False),
        sa.Column("ram", sa.BigInteger(), nullable=False),
        sa.Column("image_id", TEXT, nullable=True),
        sa.Column("image_properties", TEXT, nullable=False),
        sa.Column("key_name", TEXT, nullable=True),
        sa.Column("public_key", TEXT, nullable=True),
        sa.Column("user_data", TEXT, nullable=True),
        sa.Column("metadata", TEXT, nullable=False),
        sa.Column("nics", TEXT, nullable=False),
        sa.Column("scheduler_hints", TEXT, nullable=False),
        sa.Column("config_drive", sa.Boolean(), nullable=False),
        sa.Column("disk_config", TEXT, nullable=False),
        sa.Column("access_ip_v4", TEXT, nullable=True),
        sa.Column("access_ip_v6", TEXT, nullable=True),
        sa.Column("reservation_id", TEXT, nullable=False),
        sa.Column("launch_index", sa.BigInteger(), nullable=False),
        sa.Column("root_device_name", TEXT, nullable=True),
        sa.Column("locked", sa.Boolean(), nullable=False),
        sa.Column("locked_reason", TEXT, nullable=True),
        sa.Column("fault", TEXT, nullable=True),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("launched_at", sa.Double(), nullable=True),
        sa.Column("terminated_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_servers")),
    )
    op.create_index("servers_changed", "servers", ["project_id", "updated_at"], unique=False)
    op.create_index(
        "servers_created",
        "servers",
        ["created_at", "id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_flavor",
        "servers",
        ["flavor_id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_host",
        "servers",
        ["host"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_hostname",
        "servers",
        ["hostname"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_image",
        "servers",
        ["image_id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_key",
        "servers",
        ["key_name"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_name",
        "servers",
        ["name", "project_id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_node",
        "servers",
        ["hypervisor_hostname"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_project",
        "servers",
        ["project_id", "created_at", "id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index("servers_reservation", "servers", ["reservation_id"], unique=False)
    op.create_index(
        "servers_state",
        "servers",
        ["vm_state", "project_id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_index(
        "servers_user",
        "servers",
        ["user_id"],
        unique=False,
        sqlite_where=sa.text("NOT deleted"),
        postgresql_where=sa.text("NOT deleted"),
    )
    op.create_table(
        "services",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("program", TEXT, nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", TEXT, nullable=True),
        sa.Column("forced_down", sa.Boolean(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("report_count", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_services")),
        sa.UniqueConstraint("host", "program", name=op.f("uq_services_host_program")),
        sa.UniqueConstraint("uuid", name=op.f("uq_services_uuid")),
        sqlite_autoincrement=True,
    )
    op.create_index("services_program", "services", ["program", "host"], unique=False)
    op.create_table(
        "traits",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_traits")),
    )
    op.create_table(
        "aggregate_hosts",
        sa.Column("aggregate_id", sa.BigInteger(), nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["aggregate_id"], ["aggregates.id"], name=op.f("fk_aggregate_hosts_aggregate_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("aggregate_id", "host", name=op.f("pk_aggregate_hosts")),
    )
    op.create_index("aggregate_hosts_host", "aggregate_hosts", ["host"], unique=False)
    op.create_table(
        "aggregate_metadata",
        sa.Column("aggregate_id", sa.BigInteger(), nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["aggregate_id"], ["aggregates.id"], name=op.f("fk_aggregate_metadata_aggregate_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("aggregate_id", "key", name=op.f("pk_aggregate_metadata")),
    )
    op.create_index("aggregate_metadata_key", "aggregate_metadata", ["key", "value"], unique=False)
    op.create_table(
        "flavor_access",
        sa.Column("flavor_id", sa.BigInteger(), nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["flavor_id"], ["flavors.id"], name=op.f("fk_flavor_access_flavor_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("flavor_id", "project_id", name=op.f("pk_flavor_access")),
    )
    op.create_index("flavor_access_project", "flavor_access", ["project_id"], unique=False)
    op.create_table(
        "hypervisors",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("service_id", sa.BigInteger(), nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("hypervisor_hostname", TEXT, nullable=False),
        sa.Column("hypervisor_type", TEXT, nullable=False),
        sa.Column("hypervisor_version", sa.BigInteger(), nullable=False),
        sa.Column("host_ip", TEXT, nullable=False),
        sa.Column("cpu_info", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], name=op.f("fk_hypervisors_service_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hypervisors")),
        sa.UniqueConstraint("host", "hypervisor_hostname", name=op.f("uq_hypervisors_host_hypervisor_hostname")),
        sa.UniqueConstraint("uuid", name=op.f("uq_hypervisors_uuid")),
        sqlite_autoincrement=True,
    )
    op.create_index("hypervisors_hostname", "hypervisors", ["hypervisor_hostname"], unique=False)
    op.create_index("hypervisors_service", "hypervisors", ["service_id"], unique=False)
    op.create_table(
        "image_members",
        sa.Column("image_id", TEXT, nullable=False),
        sa.Column("member_id", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["image_id"], ["images.id"], name=op.f("fk_image_members_image_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("image_id", "member_id", name=op.f("pk_image_members")),
    )
    op.create_index("ix_image_members_member", "image_members", ["member_id", "image_id"], unique=False)
    op.create_table(
        "image_properties",
        sa.Column("image_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["image_id"], ["images.id"], name=op.f("fk_image_properties_image_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("image_id", "name", name=op.f("pk_image_properties")),
    )
    op.create_index("ix_image_properties_name", "image_properties", ["name", "image_id"], unique=False)
    op.create_table(
        "image_tags",
        sa.Column("image_id", TEXT, nullable=False),
        sa.Column("tag", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["image_id"], ["images.id"], name=op.f("fk_image_tags_image_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("image_id", "tag", name=op.f("pk_image_tags")),
    )
    op.create_index("ix_image_tags_tag", "image_tags", ["tag", "image_id"], unique=False)
    op.create_table(
        "implied_roles",
        sa.Column("prior_id", TEXT, nullable=False),
        sa.Column("implied_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["implied_id"], ["roles.id"], name=op.f("fk_implied_roles_implied_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["prior_id"], ["roles.id"], name=op.f("fk_implied_roles_prior_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("prior_id", "implied_id", name=op.f("pk_implied_roles")),
    )
    op.create_index(op.f("ix_implied_roles_implied_id"), "implied_roles", ["implied_id"], unique=False)
    op.create_table(
        "inventories",
        sa.Column("provider_id", sa.BigInteger(), nullable=False),
        sa.Column("resource_class", TEXT, nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("min_unit", sa.BigInteger(), nullable=False),
        sa.Column("max_unit", sa.BigInteger(), nullable=False),
        sa.Column("step_size", sa.BigInteger(), nullable=False),
        sa.Column("allocation_ratio", sa.Double(), nullable=False),
        sa.CheckConstraint("step_size > 0", name=op.f("ck_inventories_step_size")),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name=op.f("fk_inventories_provider_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["resource_class"],
            ["resource_classes.name"],
            name=op.f("fk_inventories_resource_class"),
            onupdate="CASCADE",
        ),
        sa.PrimaryKeyConstraint("provider_id", "resource_class", name=op.f("pk_inventories")),
        sqlite_with_rowid=False,
    )
    op.create_index("inventories_class", "inventories", ["resource_class", "provider_id"], unique=False)
    op.create_table(
        "operation_steps",
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("phase", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_operation_steps_operation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation_id", "round", "phase", "name", name=op.f("pk_operation_steps")),
    )
    op.create_table(
        "operation_waits",
        sa.Column("operation_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("poll_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("posted_at", sa.Double(), nullable=True),
        sa.Column("payload", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["operation_id"], ["operations.id"], name=op.f("fk_operation_waits_operation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("operation_id", name=op.f("pk_operation_waits")),
    )
    op.create_index("ix_operation_waits_key", "operation_waits", ["key"], unique=False)
    op.create_table(
        "ports",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("network_id", TEXT, nullable=False),
        sa.Column("mac_address", TEXT, nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("device_id", TEXT, nullable=False),
        sa.Column("device_owner", TEXT, nullable=False),
        sa.Column("port_security_enabled", sa.Boolean(), nullable=False),
        sa.Column("host_id", TEXT, nullable=False),
        sa.Column("vnic_type", TEXT, nullable=False),
        sa.Column("profile", TEXT, nullable=False),
        sa.Column("allowed_address_pairs", TEXT, nullable=False),
        sa.Column("extra_dhcp_opts", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["networks.id"], name=op.f("fk_ports_network_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ports")),
    )
    op.create_index("ix_ports_device", "ports", ["device_id"], unique=False)
    op.create_index("ix_ports_host", "ports", ["host_id"], unique=False)
    op.create_index("ix_ports_name", "ports", ["name"], unique=False)
    op.create_index("ix_ports_project", "ports", ["project_id"], unique=False)
    op.create_index("uq_ports_network_mac", "ports", ["network_id", "mac_address"], unique=True)
    op.create_table(
        "projects",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("domain_id", TEXT, nullable=False),
        sa.Column("parent_id", TEXT, nullable=True),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name=op.f("fk_projects_domain_id")),
        sa.ForeignKeyConstraint(["parent_id"], ["projects.id"], name=op.f("fk_projects_parent_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("domain_id", "name", name=op.f("uq_projects_domain_id_name")),
    )
    op.create_index(op.f("ix_projects_name"), "projects", ["name"], unique=False)
    op.create_index(op.f("ix_projects_parent_id"), "projects", ["parent_id"], unique=False)
    op.create_table(
        "provider_aggregates",
        sa.Column("provider_id", sa.BigInteger(), nullable=False),
        sa.Column("aggregate_uuid", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["resource_providers.id"],
            name=op.f("fk_provider_aggregates_provider_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("provider_id", "aggregate_uuid", name=op.f("pk_provider_aggregates")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "provider_aggregates_aggregate", "provider_aggregates", ["aggregate_uuid", "provider_id"], unique=False
    )
    op.create_table(
        "provider_traits",
        sa.Column("provider_id", sa.BigInteger(), nullable=False),
        sa.Column("trait", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["resource_providers.id"], name=op.f("fk_provider_traits_provider_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["trait"], ["traits.name"], name=op.f("fk_provider_traits_trait")),
        sa.PrimaryKeyConstraint("provider_id", "trait", name=op.f("pk_provider_traits")),
        sqlite_with_rowid=False,
    )
    op.create_index("provider_traits_trait", "provider_traits", ["trait", "provider_id"], unique=False)
    op.create_table(
        "security_group_rules",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("security_group_id", TEXT, nullable=False),
        sa.Column("remote_group_id", TEXT, nullable=True),
        sa.Column("direction", TEXT, nullable=False),
        sa.Column("ethertype", TEXT, nullable=False),
        sa.Column("protocol", TEXT, nullable=True),
        sa.Column("port_range_min", sa.BigInteger(), nullable=True),
        sa.Column("port_range_max", sa.BigInteger(), nullable=True),
        sa.Column("remote_ip_prefix", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["remote_group_id"],
            ["security_groups.id"],
            name=op.f("fk_security_group_rules_remote_group_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["security_group_id"],
            ["security_groups.id"],
            name=op.f("fk_security_group_rules_security_group_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_security_group_rules")),
    )
    op.create_index("ix_security_group_rules_group", "security_group_rules", ["security_group_id"], unique=False)
    op.create_index("ix_security_group_rules_project", "security_group_rules", ["project_id"], unique=False)
    op.create_index("ix_security_group_rules_remote", "security_group_rules", ["remote_group_id"], unique=False)
    op.create_table(
        "subnets",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("network_id", TEXT, nullable=False),
        sa.Column("ip_version", sa.BigInteger(), nullable=False),
        sa.Column("cidr", TEXT, nullable=False),
        sa.Column("gateway_ip", TEXT, nullable=True),
        sa.Column("enable_dhcp", sa.Boolean(), nullable=False),
        sa.Column("ipv6_ra_mode", TEXT, nullable=True),
        sa.Column("ipv6_address_mode", TEXT, nullable=True),
        sa.Column("allocation_pools", TEXT, nullable=False),
        sa.Column("dns_nameservers", TEXT, nullable=False),
        sa.Column("host_routes", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["network_id"], ["networks.id"], name=op.f("fk_subnets_network_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subnets")),
    )
    op.create_index("ix_subnets_name", "subnets", ["name"], unique=False)
    op.create_index("ix_subnets_network", "subnets", ["network_id"], unique=False)
    op.create_index("ix_subnets_project", "subnets", ["project_id"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("domain_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("default_project_id", TEXT, nullable=True),
        sa.Column("password_hash", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name=op.f("fk_users_domain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("domain_id", "name", name=op.f("uq_users_domain_id_name")),
    )
    op.create_index(op.f("ix_users_default_project_id"), "users", ["default_project_id"], unique=False)
    op.create_index(op.f("ix_users_name"), "users", ["name"], unique=False)
    op.create_table(
        "allocations",
        sa.Column("consumer_uuid", TEXT, nullable=False),
        sa.Column("provider_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("resource_class", TEXT, nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("used > 0", name=op.f("ck_allocations_used")),
        sa.ForeignKeyConstraint(
            ["consumer_uuid"],
            ["consumers.uuid"],
            name=op.f("fk_allocations_consumer_uuid"),
            ondelete="CASCADE",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.ForeignKeyConstraint(
            ["provider_id", "resource_class"],
            ["inventories.provider_id", "inventories.resource_class"],
            name=op.f("fk_allocations_provider_id_resource_class"),
            onupdate="CASCADE",
        ),
        sa.PrimaryKeyConstraint("consumer_uuid", "provider_id", "resource_class", name=op.f("pk_allocations")),
        sqlite_with_rowid=False,
    )
    op.create_index("allocations_provider", "allocations", ["provider_id", "resource_class", "used"], unique=False)
    op.create_table(
        "port_addresses",
        sa.Column("subnet_id", TEXT, nullable=False),
        sa.Column("ip_address", TEXT, nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=True),
        sa.Column("port_id", TEXT, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["port_id"], ["ports.id"], name=op.f("fk_port_addresses_port_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["subnet_id"], ["subnets.id"], name=op.f("fk_port_addresses_subnet_id")),
        sa.PrimaryKeyConstraint("subnet_id", "ip_address", name=op.f("pk_port_addresses")),
    )
    op.create_index("ix_port_addresses_ip", "port_addresses", ["ip_address"], unique=False)
    op.create_index("ix_port_addresses_port", "port_addresses", ["port_id", "position"], unique=False)
    op.create_index("ix_port_addresses_slot", "port_addresses", ["subnet_id", "slot"], unique=False)
    op.create_table(
        "port_security_groups",
        sa.Column("port_id", TEXT, nullable=False),
        sa.Column("security_group_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["port_id"], ["ports.id"], name=op.f("fk_port_security_groups_port_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["security_group_id"], ["security_groups.id"], name=op.f("fk_port_security_groups_security_group_id")
        ),
        sa.PrimaryKeyConstraint("port_id", "security_group_id", name=op.f("pk_port_security_groups")),
    )
    op.create_index("ix_port_security_groups_group", "port_security_groups", ["security_group_id"], unique=False)
    op.create_table(
        "role_assignments",
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("target_kind", TEXT, nullable=False),
        sa.Column("target_id", TEXT, nullable=False),
        sa.Column("role_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["role_id"], ["roles.id"], name=op.f("fk_role_assignments_role_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_role_assignments_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "target_kind", "target_id", "role_id", name=op.f("pk_role_assignments")),
    )
    op.create_index(op.f("ix_role_assignments_role_id"), "role_assignments", ["role_id"], unique=False)
    op.create_index(
        op.f("ix_role_assignments_target_kind_target_id"),
        "role_assignments",
        ["target_kind", "target_id"],
        unique=False,
    )
    op.create_table(
        "routers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.Column("gateway_port_id", TEXT, nullable=True),
        sa.Column("enable_snat", sa.Boolean(), nullable=False),
        sa.Column("routes", TEXT, nullable=False),
        sa.Column("availability_zone_hints", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["gateway_port_id"], ["ports.id"], name=op.f("fk_routers_gateway_port_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_routers")),
    )
    op.create_index("ix_routers_gateway", "routers", ["gateway_port_id"], unique=False)
    op.create_index("ix_routers_name", "routers", ["name"], unique=False)
    op.create_index("ix_routers_project", "routers", ["project_id"], unique=False)
    op.create_table(
        "auto_topologies",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("network_id", TEXT, nullable=False),
        sa.Column("router_id", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["network_id"], ["networks.id"], name=op.f("fk_auto_topologies_network_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["router_id"], ["routers.id"], name=op.f("fk_auto_topologies_router_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_auto_topologies")),
    )
    op.create_index("ix_auto_topologies_network", "auto_topologies", ["network_id"], unique=False)
    op.create_index("ix_auto_topologies_router", "auto_topologies", ["router_id"], unique=False)
    op.create_table(
        "floating_ips",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("tags", TEXT, nullable=False),
        sa.Column("revision_number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("floating_network_id", TEXT, nullable=False),
        sa.Column("floating_ip_address", TEXT, nullable=False),
        sa.Column("floating_port_id", TEXT, nullable=False),
        sa.Column("port_id", TEXT, nullable=True),
        sa.Column("fixed_ip_address", TEXT, nullable=True),
        sa.Column("router_id", TEXT, nullable=True),
        sa.ForeignKeyConstraint(
            ["floating_network_id"], ["networks.id"], name=op.f("fk_floating_ips_floating_network_id")
        ),
        sa.ForeignKeyConstraint(["floating_port_id"], ["ports.id"], name=op.f("fk_floating_ips_floating_port_id")),
        sa.ForeignKeyConstraint(["port_id"], ["ports.id"], name=op.f("fk_floating_ips_port_id")),
        sa.ForeignKeyConstraint(["router_id"], ["routers.id"], name=op.f("fk_floating_ips_router_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_floating_ips")),
    )
    op.create_index("ix_floating_ips_address", "floating_ips", ["floating_ip_address"], unique=False)
    op.create_index("ix_floating_ips_floating_port", "floating_ips", ["floating_port_id"], unique=False)
    op.create_index("ix_floating_ips_network", "floating_ips", ["floating_network_id"], unique=False)
    op.create_index("ix_floating_ips_project", "floating_ips", ["project_id"], unique=False)
    op.create_index("ix_floating_ips_router", "floating_ips", ["router_id"], unique=False)
    op.create_index("uq_floating_ips_target", "floating_ips", ["port_id", "fixed_ip_address"], unique=True)
