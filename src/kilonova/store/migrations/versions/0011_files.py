"""Files that servers' guests find on their config drive."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kilonova.store.migrations.types import TEXT

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("servers", sa.Column("personality", TEXT, nullable=True))
