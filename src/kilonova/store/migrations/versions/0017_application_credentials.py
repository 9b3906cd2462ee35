"""Application credentials with access rules, and the number that ends the tokens of a user."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "access_rules",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("service", TEXT, nullable=False),
        sa.Column("method", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_access_rules_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_access_rules")),
        sa.UniqueConstraint(
            "user_id", "service", "method", "path", name=op.f("uq_access_rules_user_id_service_method_path")
        ),
    )
    op.create_table(
        "application_credentials",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT, nullable=True),
        sa.Column("secret_hash", TEXT, nullable=False),
        sa.Column("role_ids", TEXT, nullable=False),
        sa.Column("unrestricted", sa.Boolean(), nullable=False),
        sa.Column("has_access_rules", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_application_credentials_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_application_credentials_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_application_credentials")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_application_credentials_user_id_name")),
    )
    op.create_index(
        op.f("ix_application_credentials_project_id"), "application_credentials", ["project_id"], unique=False
    )

    op.create_table(
        "application_credential_rules",
        sa.Column("application_credential_id", TEXT, nullable=False),
        sa.Column("access_rule_id", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["access_rule_id"],
            ["access_rules.id"],
            name=op.f("fk_application_credential_rules_access_rule_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["application_credential_id"],
            ["application_credentials.id"],
            name=op.f("fk_application_credential_rules_application_credential_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "application_credential_id", "access_rule_id", name=op.f("pk_application_credential_rules")
        ),
    )
    op.create_index(
        op.f("ix_application_credential_rules_access_rule_id"),
        "application_credential_rules",
        ["access_rule_id"],
        unique=False,
    )

    op.add_column("users", sa.Column("token_epoch", sa.BigInteger(), server_default="0", nullable=False))
