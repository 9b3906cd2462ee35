"""Tables of placement and the scheduler."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import NUMBERED, TEXT

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("operation_id", TEXT, nullable=True),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=True),
        sa.Column("diagnosis", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sqlite_autoincrement=True,
    )
    op.create_index("attempts_server", "attempts", ["server_id", "id"], unique=False)

    op.create_table(
        "server_groups",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("policy", TEXT, nullable=False),
        sa.Column("max_server_per_host", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_groups")),
    )
    op.create_index("server_groups_project", "server_groups", ["project_id", "created_at", "id"], unique=False)

    op.create_table(
        "server_group_members",
        sa.Column("server_id", TEXT, nullable=False),
        sa.Column("group_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["server_groups.id"], name=op.f("fk_server_group_members_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["server_id"], ["servers.id"], name=op.f("fk_server_group_members_server_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("server_id", name=op.f("pk_server_group_members")),
    )
    op.create_index("server_group_members_group", "server_group_members", ["group_id", "server_id"], unique=False)

    op.create_table(
        "user_quotas",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("hard_limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "user_id", "resource", name=op.f("pk_user_quotas")),
    )

    op.create_table(
        "departed_providers",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("change", sa.BigInteger(), nullable=False),
        sa.Column("gone_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_departed_providers")),
    )
    op.create_index("departed_providers_change", "departed_providers", ["change"], unique=False)

    if op.get_context().dialect.name == "sqlite":
        _number_aggregates_once()

    op.add_column("hypervisors", sa.Column("booted_at", sa.Double(), nullable=True))
    op.add_column("inventories", sa.Column("own_ratio", sa.Double(), nullable=True))
    op.add_column("inventories", sa.Column("aggregate_ratio", sa.Double(), nullable=True))
    op.add_column("provider_aggregates", sa.Column("reported", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("provider_traits", sa.Column("reported", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("resource_providers", sa.Column("reported", sa.Boolean(), server_default=sa.false(), nullable=False))

    # All inventories so far were reported by hosts.
    op.execute("UPDATE inventories SET own_ratio = allocation_ratio")
    op.execute("UPDATE provider_traits SET reported = TRUE")
    op.execute("UPDATE resource_providers SET reported = TRUE")

    # Host aggregates are also placement aggregates of the hosts' providers.
    op.execute(
        "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) SELECT p.id, a.uuid FROM aggregates a"
        " JOIN aggregate_hosts ah ON ah.aggregate_id = a.id JOIN hypervisors h ON h.host = ah.host"
        " JOIN resource_providers p ON p.uuid = h.uuid"
    )


def _number_aggregates_once() -> None:
    """SQLite would give the number of the last aggregate again when that one is gone; clients keep such numbers."""
    op.create_table(
        "new_aggregates",
        sa.Column("id", NUMBERED, autoincrement=True, nullable=False),
        sa.Column("uuid", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_aggregates")),
        sqlite_autoincrement=True,
    )
    op.execute("INSERT INTO new_aggregates SELECT id, uuid, name, created_at, updated_at FROM aggregates")
    op.drop_table("aggregates")
    op.rename_table("new_aggregates", "aggregates")
    op.create_index("aggregates_name", "aggregates", ["name"], unique=True)
    op.create_index("aggregates_uuid", "aggregates", ["uuid"], unique=True)
