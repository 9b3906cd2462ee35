"""SQLAlchemy metadata of all tables, and helpers for common columns."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    event,
    false,
    true,
)

from kilonova.store.migrations.types import NUMBERED, TEXT

# Every constraint has a name, because migrations change constraints by name.
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


@event.listens_for(Column, "after_parent_attach")
def _unify_types(column: Column[Any], table: Any) -> None:
    """Make a column store, compare and sort values in the same way in both databases.

    SQLite has no lengths and only 64-bit integers, so PostgreSQL's columns have neither. The API enforces limits.
    """
    if not isinstance(table, Table) or table.metadata is not metadata:
        return
    if isinstance(column.type, String):
        column.type = TEXT
    elif isinstance(column.type, Integer):
        is_generated = column.primary_key and column.autoincrement is True
        column.type = NUMBERED if is_generated else BigInteger()


def ident(name: str = "id") -> Column[str]:
    """The primary key: a UUID as text."""
    return Column(name, Text, primary_key=True)


def sequence(name: str = "sequence") -> Column[int]:
    """A primary key that numbers the rows in the order of insertion.

    With `sqlite_autoincrement=True` in the table, numbers are never reused. On PostgreSQL a lower number may become
    visible after a higher one, unless the writers `lock` a common key.
    """
    return Column(name, BigInteger, primary_key=True, autoincrement=True)


def reference(name: str, target: str, *, nullable: bool = False, ondelete: str | None = None) -> Column[str]:
    """A foreign key to `table.column`."""
    return Column(name, Text, ForeignKey(target, ondelete=ondelete), nullable=nullable)


def string(name: str, *, nullable: bool = False, default: str | None = None) -> Column[str]:
    """`default` is for columns added by a later revision: existing rows get it."""
    return Column(name, Text, nullable=nullable, server_default=default)


def number(name: str, *, nullable: bool = False, default: int | None = None) -> Column[int]:
    """`default` is for columns added by a later revision: existing rows get it."""
    return Column(name, BigInteger, nullable=nullable, server_default=None if default is None else str(default))


def real(name: str, *, nullable: bool = False, default: float | None = None) -> Column[float]:
    return Column(name, Double, nullable=nullable, server_default=None if default is None else f"{default:g}")


def moment(name: str, *, nullable: bool = False) -> Column[float]:
    """A point in time: seconds since the epoch."""
    return Column(name, Double, nullable=nullable)


def document(name: str, *, nullable: bool = False) -> Column[str]:
    """A JSON document as text."""
    return Column(name, Text, nullable=nullable)


def flag(name: str, *, nullable: bool = False, default: bool | None = None) -> Column[bool]:
    """`default` is for columns added by a later revision: existing rows get it."""
    server_default = None if default is None else true() if default else false()
    return Column(name, Boolean, nullable=nullable, server_default=server_default)
