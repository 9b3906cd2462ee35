"""Tables of compute services and their hypervisors."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text, UniqueConstraint

from kilonova.store.schema.base import document, flag, metadata, moment, number, sequence, string

services = Table(
    "services",
    metadata,
    # Old microversions identify services and hypervisors by number, newer ones by uuid.
    sequence("id"),
    Column("uuid", Text, nullable=False, unique=True),
    string("host"),
    # The API's "binary", a reserved word in PostgreSQL.
    string("program"),
    flag("disabled"),
    string("disabled_reason", nullable=True),
    flag("forced_down"),
    # Not indexed: every heartbeat rewrites it.
    moment("last_seen_at"),
    number("report_count"),
    number("version"),
    moment("created_at"),
    moment("updated_at", nullable=True),
    UniqueConstraint("host", "program"),
    Index("services_program", "program", "host"),
    sqlite_autoincrement=True,
)

# Inventories and traits of a host are in placement: its provider has the same uuid.
hypervisors = Table(
    "hypervisors",
    metadata,
    sequence("id"),
    Column("uuid", Text, nullable=False, unique=True),
    Column("service_id", BigInteger, ForeignKey("services.id"), nullable=False),
    string("host"),
    string("hypervisor_hostname"),
    string("hypervisor_type"),
    number("hypervisor_version"),
    string("host_ip"),
    document("cpu_info"),
    moment("booted_at", nullable=True),
    moment("created_at"),
    moment("updated_at", nullable=True),
    # The host's last reported volume connector, for use while the host is unreachable.
    document("connector", nullable=True),
    # Whether the host creates networks for its guests and needs network plans.
    flag("networked", default=False),
    UniqueConstraint("host", "hypervisor_hostname"),
    Index("hypervisors_service", "service_id"),
    Index("hypervisors_hostname", "hypervisor_hostname"),
    sqlite_autoincrement=True,
)
