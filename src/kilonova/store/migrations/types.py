"""Column types that mean the same in both databases. Revisions refer to them, so they never change."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, Text

# SQLite orders text by bytes; so does PostgreSQL with this, whatever locale its database was made with.
TEXT = Text().with_variant(Text(collation="C"), "postgresql")

# SQLite numbers rows by itself only in a column spelled INTEGER.
NUMBERED = BigInteger().with_variant(Integer(), "sqlite")


def rendered(kind: Any) -> str | None:
    """The name of one of these types, for the text of a revision."""
    return "TEXT" if kind is TEXT else "NUMBERED" if kind is NUMBERED else None
