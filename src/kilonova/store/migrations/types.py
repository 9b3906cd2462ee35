"""Column types that mean the same in both databases. Revisions refer to them, so they never change."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, Text

# SQLite sorts text by bytes. With this collation PostgreSQL does too, whatever the locale of its database.
TEXT = Text().with_variant(Text(collation="C"), "postgresql")

# SQLite generates row numbers only for a column of the type INTEGER.
NUMBERED = BigInteger().with_variant(Integer(), "sqlite")


def type_name(kind: Any) -> str | None:
    """The name of one of these types in a revision."""
    return "TEXT" if kind is TEXT else "NUMBERED" if kind is NUMBERED else None
