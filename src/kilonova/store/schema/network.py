"""Tables of the built-in network service."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text, text

from kilonova.store.schema.base import document, flag, ident, metadata, moment, number, reference, string


def _standard() -> list[Column[Any]]:
    """Columns of all resources. Each tag in `tags` is enclosed in U+001F, so that SQL can search for it."""
    return [
        ident(),
        string("project_id"),
        string("description"),
        string("tags"),
        number("revision_number"),
        moment("created_at"),
        moment("updated_at"),
    ]


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


networks = Table(
    "networks",
    metadata,
    *_standard(),
    string("name"),
    string("status"),
    flag("admin_state_up"),
    flag("shared"),
    flag("external"),
    flag("is_default"),
    number("mtu"),
    flag("port_security_enabled"),
    string("network_type"),
    string("physical_network"),
    number("segmentation_id", nullable=True),
    document("availability_zone_hints"),
    Index("ix_networks_project", "project_id"),
    Index("ix_networks_name", "name"),
    # Few networks are shared, many belong to one project.
    Index("ix_networks_open", "id", **_where("shared OR external")),
    Index("uq_networks_segment", "network_type", "physical_network", "segmentation_id", unique=True),
)

subnets = Table(
    "subnets",
    metadata,
    *_standard(),
    string("name"),
    reference("network_id", "networks.id"),
    number("ip_version"),
    string("cidr"),
    string("gateway_ip", nullable=True),
    flag("enable_dhcp"),
    string("ipv6_ra_mode", nullable=True),
    string("ipv6_address_mode", nullable=True),
    document("allocation_pools"),
    document("dns_nameservers"),
    document("host_routes"),
    Index("ix_subnets_network", "network_id"),
    Index("ix_subnets_project", "project_id"),
    Index("ix_subnets_name", "name"),
)

ports = Table(
    "ports",
    metadata,
    *_standard(),
    string("name"),
    reference("network_id", "networks.id"),
    string("mac_address"),
    flag("admin_state_up"),
    string("status"),
    string("device_id"),
    string("device_owner"),
    flag("port_security_enabled"),
    string("host_id"),
    string("vnic_type"),
    document("profile"),
    document("allowed_address_pairs"),
    document("extra_dhcp_opts"),
    Index("uq_ports_network_mac", "network_id", "mac_address", unique=True),
    Index("ix_ports_project", "project_id"),
    Index("ix_ports_device", "device_id"),
    Index("ix_ports_host", "host_id"),
    Index("ix_ports_name", "name"),
)

# `slot` is the address's offset from the subnet's first address, used by the allocator. Addresses with an offset above
# 2^63 have none: they can be requested, but are never chosen automatically.
port_addresses = Table(
    "port_addresses",
    metadata,
    Column("subnet_id", Text, ForeignKey("subnets.id"), primary_key=True),
    Column("ip_address", Text, primary_key=True),
    number("slot", nullable=True),
    reference("port_id", "ports.id", ondelete="CASCADE"),
    number("position"),
    Index("ix_port_addresses_slot", "subnet_id", "slot"),
    Index("ix_port_addresses_port", "port_id", "position"),
    Index("ix_port_addresses_ip", "ip_address"),
)

trunks = Table(
    "trunks",
    metadata,
    *_standard(),
    string("name"),
    reference("port_id", "ports.id"),
    flag("admin_state_up"),
    Index("uq_trunks_port", "port_id", unique=True),
    Index("ix_trunks_project", "project_id"),
    Index("ix_trunks_name", "name"),
)

trunk_subports = Table(
    "trunk_subports",
    metadata,
    Column("port_id", Text, ForeignKey("ports.id"), primary_key=True),
    reference("trunk_id", "trunks.id"),
    string("segmentation_type"),
    number("segmentation_id"),
    Index("uq_trunk_subports_segment", "trunk_id", "segmentation_type", "segmentation_id", unique=True),
)

security_groups = Table(
    "security_groups",
    metadata,
    *_standard(),
    string("name"),
    flag("stateful"),
    flag("is_default"),
    Index("ix_security_groups_project", "project_id"),
    Index("ix_security_groups_name", "name"),
    # One default group per project, also with concurrent requests.
    Index("uq_security_groups_default", "project_id", unique=True, **_where("is_default")),
)

security_group_rules = Table(
    "security_group_rules",
    metadata,
    *_standard(),
    reference("security_group_id", "security_groups.id", ondelete="CASCADE"),
    reference("remote_group_id", "security_groups.id", nullable=True, ondelete="CASCADE"),
    string("direction"),
    string("ethertype"),
    string("protocol", nullable=True),
    number("port_range_min", nullable=True),
    number("port_range_max", nullable=True),
    string("remote_ip_prefix", nullable=True),
    Index("ix_security_group_rules_group", "security_group_id"),
    Index("ix_security_group_rules_remote", "remote_group_id"),
    Index("ix_security_group_rules_project", "project_id"),
)

port_security_groups = Table(
    "port_security_groups",
    metadata,
    Column("port_id", Text, ForeignKey("ports.id", ondelete="CASCADE"), primary_key=True),
    Column("security_group_id", Text, ForeignKey("security_groups.id"), primary_key=True),
    Index("ix_port_security_groups_group", "security_group_id"),
)

routers = Table(
    "routers",
    metadata,
    *_standard(),
    string("name"),
    string("status"),
    flag("admin_state_up"),
    # The gateway's port has its network and addresses. Interfaces are ports, found by their device_id.
    reference("gateway_port_id", "ports.id", nullable=True),
    flag("enable_snat"),
    document("routes"),
    document("availability_zone_hints"),
    Index("ix_routers_project", "project_id"),
    Index("ix_routers_name", "name"),
    Index("ix_routers_gateway", "gateway_port_id"),
)

floating_ips = Table(
    "floating_ips",
    metadata,
    *_standard(),
    string("status"),
    reference("floating_network_id", "networks.id"),
    string("floating_ip_address"),
    # The port on the external network that has the address.
    reference("floating_port_id", "ports.id"),
    # The project's port that the address is associated with, if any.
    reference("port_id", "ports.id", nullable=True),
    string("fixed_ip_address", nullable=True),
    reference("router_id", "routers.id", nullable=True),
    Index("ix_floating_ips_project", "project_id"),
    Index("ix_floating_ips_router", "router_id"),
    Index("ix_floating_ips_floating_port", "floating_port_id"),
    Index("ix_floating_ips_address", "floating_ip_address"),
    Index("ix_floating_ips_network", "floating_network_id"),
    # A fixed address of a port has at most one floating address.
    Index("uq_floating_ips_target", "port_id", "fixed_ip_address", unique=True),
)

# Automatically allocated network of a project.
auto_topologies = Table(
    "auto_topologies",
    metadata,
    Column("project_id", Text, primary_key=True),
    reference("network_id", "networks.id", ondelete="CASCADE"),
    reference("router_id", "routers.id", nullable=True, ondelete="SET NULL"),
    Index("ix_auto_topologies_network", "network_id"),
    Index("ix_auto_topologies_router", "router_id"),
)

network_quotas = Table(
    "network_quotas",
    metadata,
    Column("project_id", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    number("maximum"),
)

# Inactive port bindings; the active one is the port's `host_id`.
standby_bindings = Table(
    "standby_bindings",
    metadata,
    reference("port_id", "ports.id", ondelete="CASCADE"),
    string("host"),
    string("vnic_type"),
    document("profile"),
    moment("created_at"),
    PrimaryKeyConstraint("port_id", "host"),
    Index("standby_bindings_host", "host"),
)
