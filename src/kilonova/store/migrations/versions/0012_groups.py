"""Groups with their members and role assignments, and roles of domains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "groups",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("domain_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("extra", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["domain_id"], ["domains.id"], name=op.f("fk_groups_domain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sa.UniqueConstraint("domain_id", "name", name=op.f("uq_groups_domain_id_name")),
    )
    op.create_index(op.f("ix_groups_name"), "groups", ["name"], unique=False)

    op.create_table(
        "group_members",
        sa.Column("group_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_group_members_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_group_members_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "user_id", name=op.f("pk_group_members")),
    )
    op.create_index(op.f("ix_group_members_user_id"), "group_members", ["user_id"], unique=False)

    op.create_table(
        "group_role_assignments",
        sa.Column("group_id", TEXT, nullable=False),
        sa.Column("target_kind", TEXT, nullable=False),
        sa.Column("target_id", TEXT, nullable=False),
        sa.Column("role_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["groups.id"], name=op.f("fk_group_role_assignments_group_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["role_id"], ["roles.id"], name=op.f("fk_group_role_assignments_role_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "group_id", "target_kind", "target_id", "role_id", name=op.f("pk_group_role_assignments")
        ),
    )
    op.create_index(op.f("ix_group_role_assignments_role_id"), "group_role_assignments", ["role_id"], unique=False)
    op.create_index(
        op.f("ix_group_role_assignments_target_kind_target_id"),
        "group_role_assignments",
        ["target_kind", "target_id"],
        unique=False,
    )

    with op.batch_alter_table("roles") as batch_op:
        batch_op.add_column(sa.Column("domain_id", TEXT, server_default="", nullable=False))
        batch_op.drop_constraint(batch_op.f("uq_roles_name"), type_="unique")
        batch_op.create_unique_constraint(batch_op.f("uq_roles_domain_id_name"), ["domain_id", "name"])
