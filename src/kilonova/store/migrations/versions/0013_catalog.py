"""Registered services, endpoints and regions of the catalogue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "regions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("parent_region_id", TEXT, nullable=True),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regions")),
    )
    op.create_index(op.f("ix_regions_parent_region_id"), "regions", ["parent_region_id"], unique=False)

    op.create_table(
        "catalog_services",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalog_services")),
    )

    op.create_table(
        "catalog_endpoints",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("service_id", TEXT, nullable=False),
        sa.Column("region_id", TEXT, nullable=True),
        sa.Column("interface", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalog_endpoints")),
    )
    op.create_index(op.f("ix_catalog_endpoints_region_id"), "catalog_endpoints", ["region_id"], unique=False)
    op.create_index(op.f("ix_catalog_endpoints_service_id"), "catalog_endpoints", ["service_id"], unique=False)
