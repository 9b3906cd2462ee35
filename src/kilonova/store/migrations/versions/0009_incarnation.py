"""The incarnation of the database, by which hosts notice that an older copy was restored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "incarnation",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("leases", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_incarnation")),
    )
    # Commands of older releases count as commands of incarnation 0, so their answers stay valid.
    op.execute("INSERT INTO incarnation (number, leases) VALUES (0, 0)")
