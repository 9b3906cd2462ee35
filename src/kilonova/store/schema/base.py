"""The metadata that every table hangs on, and helpers for the columns that recur."""

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

# Every constraint has a name, since a migration can only change what it can name.
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
def _alike(column: Column[Any], table: Any) -> None:
    """Make a column hold, compare and sort the same in both databases.

    SQLite knows no lengths and only 64-bit integers, and PostgreSQL is told to do likewise. Limits are the API's to
    enforce.
    """
    if not isinstance(table, Table) or table.metadata is not metadata:
        return
    if isinstance(column.type, String):
        column.type = TEXT
    elif isinstance(column.type, Integer):
        numbered = column.primary_key and column.autoincrement is True
        column.type = NUMBERED if numbered else BigInteger()


def ident(name: str = "id") -> Column[str]:
    """The primary key: a UUID as text."""
    return Column(name, Text, primary_key=True)


def sequence(name: str = "sequence") -> Column[int]:
    """A primary key that numbers the rows in the order of insertion.

    Give the table `sqlite_autoincrement=True` so that numbers are never used twice. On PostgreSQL a lower number may
    become visible after a higher one, unless the writers `hold` a common key.
    """
    return Column(name, BigInteger, primary_key=True, autoincrement=True)


def reference(name: str, target: str, *, nullable: bool = False, ondelete: str | None = None) -> Column[str]:
    """A foreign key to `table.column`."""
    return Column(name, Text, ForeignKey(target, ondelete=ondelete), nullable=nullable)


def string(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def number(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


def real(name: str, *, nullable: bool = False, default: float | None = None) -> Column[float]:
    return Column(name, Double, nullable=nullable, server_default=None if default is None else f"{default:g}")


def moment(name: str, *, nullable: bool = False) -> Column[float]:
    """A point in time: seconds since the epoch."""
    return Column(name, Double, nullable=nullable)


def document(name: str, *, nullable: bool = False) -> Column[str]:
    """A JSON document as text."""
    return Column(name, Text, nullable=nullable)


def flag(name: str, *, nullable: bool = False, default: bool | None = None) -> Column[bool]:
    """`default` is for columns that a later revision adds: the rows there are get it."""
    given = None if default is None else true() if default else false()
    return Column(name, Boolean, nullable=nullable, server_default=given)
