"""When a user's password was changed, so that clouds.yaml does not name a password that is not valid any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("users", sa.Column("password_changed_at", sa.Double(), nullable=True))
