"""Tables of the built-in share service; the content of shares are directories."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text, UniqueConstraint

from kilonova.store.schema.base import document, ident, metadata, moment, number, reference, string

shares = Table(
    "shares",
    metadata,
    ident(),
    string("project_id"),
    string("user_id"),
    string("name", nullable=True),
    string("description", nullable=True),
    number("size"),
    string("status"),
    string("zone"),
    document("metadata"),
    # `machine:directory`, once the directory exists.
    string("export_path", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    Index("ix_shares_project", "project_id", "created_at", "id"),
)

share_access_rules = Table(
    "share_access_rules",
    metadata,
    ident(),
    reference("share_id", "shares.id", ondelete="CASCADE"),
    string("access_type"),
    string("access_to"),
    string("access_level"),
    document("metadata"),
    moment("created_at"),
    moment("updated_at"),
    UniqueConstraint("share_id", "access_type", "access_to"),
)

# The locked resource is a share or an access rule.
share_locks = Table(
    "share_locks",
    metadata,
    ident(),
    string("project_id"),
    string("user_id"),
    string("context"),
    string("resource_type"),
    string("resource_id"),
    string("action"),
    string("reason", nullable=True),
    moment("created_at"),
    moment("updated_at"),
    Index("ix_share_locks_resource", "resource_id"),
    Index("ix_share_locks_project", "project_id", "created_at", "id"),
)

share_quotas = Table(
    "share_quotas",
    metadata,
    Column("project_id", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    number("hard_limit"),
)
