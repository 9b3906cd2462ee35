"""Runs statements on a SQLite connection: translates SQL, values and errors to the database interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import orjson

from kilonova.store import regular_expressions
from kilonova.store.interface import Conflict, Invalid, Row, StorageFull, StoreError, Unavailable
from kilonova.store.translate import MAX_CACHED_LENGTH, MAX_CACHED_STATEMENTS, Statement, translate

Columns = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of a statement's result columns, and the names of the boolean ones."""

_TRANSIENT = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.NoMemError,
    apsw.InterruptError,
    apsw.ProtocolError,
    apsw.ConnectionClosedError,
)


class Statements:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._columns_by_sql: dict[str, Columns] = {}
        self._has_regexp = False

    def fetch(self, sql: str, args: Sequence[Any]) -> list[Row]:
        statement = self._translated(sql)
        try:
            cursor = self._connection.execute(statement.sql, bind_arguments(args))
            first = cursor.fetchone()
            if first is None:
                return []
            names, flags = self._columns(sql, cursor, first)
            rows = [dict(zip(names, first, strict=True))]
            rows.extend(dict(zip(names, values, strict=True)) for values in cursor)
        except Exception as error:
            raise translate_error(self._connection, error) from error
        for name in flags:
            for row in rows:
                if row[name] is not None:
                    row[name] = row[name] != 0
        return rows

    def fetch_one(self, sql: str, args: Sequence[Any]) -> Row | None:
        statement = self._translated(sql)
        try:
            cursor = self._connection.execute(statement.sql, bind_arguments(args))
            values = cursor.fetchone()
            if values is None:
                return None
            names, flags = self._columns(sql, cursor, values)
            self._finish(cursor, statement.changes)
        except Exception as error:
            raise translate_error(self._connection, error) from error
        row = dict(zip(names, values, strict=True))
        for name in flags:
            if row[name] is not None:
                row[name] = row[name] != 0
        return row

    def fetch_value(self, sql: str, args: Sequence[Any]) -> Any:
        row = self.fetch_one(sql, args)
        return None if row is None else next(iter(row.values()))

    def execute(self, sql: str, args: Sequence[Any]) -> int:
        statement = self._translated(sql)
        try:
            for _ in self._connection.execute(statement.sql, bind_arguments(args)):
                pass
        except Exception as error:
            raise translate_error(self._connection, error) from error
        return self._connection.changes() if statement.changes else 0

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            for _ in self._connection.executemany(translate(sql).sql, (bind_arguments(row) for row in rows)):
                pass
        except Exception as error:
            raise translate_error(self._connection, error) from error

    def _translated(self, sql: str) -> Statement:
        statement = translate(sql)
        if statement.regex and not self._has_regexp:
            regular_expressions.load_extension(self._connection)
            self._has_regexp = True
        return statement

    def _finish(self, cursor: apsw.Cursor, changes: bool) -> None:
        """Skip the other rows. A change with RETURNING is complete only after its last row."""
        if changes:
            cursor.fetchall()
        else:
            cursor.close(True)

    def _columns(self, sql: str, cursor: apsw.Cursor, values: Sequence[Any]) -> Columns:
        known = self._columns_by_sql.get(sql)
        if known is None or len(known[0]) != len(values):
            columns = cursor.get_description()
            booleans = translate(sql).flags
            known = (
                tuple(name for name, _ in columns),
                tuple(name for name, kind in columns if (kind or "").upper() == "BOOLEAN" or name in booleans),
            )
            if len(sql) <= MAX_CACHED_LENGTH:
                if len(self._columns_by_sql) >= MAX_CACHED_STATEMENTS:
                    self._columns_by_sql.clear()
                self._columns_by_sql[sql] = known
        return known


def bind_arguments(args: Sequence[Any]) -> Sequence[Any]:
    """Lists become JSON. NUL is refused, because PostgreSQL cannot store it in text."""
    for arg in args:
        kind = type(arg)
        if kind is list or kind is tuple or (kind is str and "\0" in arg):
            return [_bind_argument(arg) for arg in args]
    return args


def _bind_argument(arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        return orjson.dumps(arg).decode()
    if isinstance(arg, str) and "\0" in arg:
        raise ValueError("text with a NUL character cannot be stored")
    return arg


def translate_error(connection: apsw.Connection, error: Exception) -> StoreError:
    """The interface's error for an error of SQLite or of binding a value."""
    if isinstance(error, apsw.ConstraintError):
        return _translate_constraint_error(connection, error)
    if isinstance(error, apsw.FullError):
        return StorageFull("the disk of the database is full")
    if isinstance(error, _TRANSIENT):
        return Unavailable(str(error))
    if isinstance(error, (TypeError, ValueError, OverflowError, apsw.TooBigError, apsw.MismatchError)):
        return Invalid(str(error))
    if isinstance(error, apsw.SQLError) and getattr(error, "error_offset", -1) == -1:
        # Not a syntax error: a missing table, or an invalid value such as a malformed regular expression.
        return StoreError(str(error)) if str(error).startswith("no such") else Invalid(str(error))
    return StoreError(str(error))


def _translate_constraint_error(connection: apsw.Connection, error: apsw.ConstraintError) -> StoreError:
    code: int = getattr(error, "extendedresult", 0)
    message = str(error)
    if code in (apsw.SQLITE_CONSTRAINT_UNIQUE, apsw.SQLITE_CONSTRAINT_PRIMARYKEY, apsw.SQLITE_CONSTRAINT_ROWID):
        return Conflict(message, kind="unique", constraint=_unique_constraint_name(connection, message, code))
    if code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY:
        return Conflict(message, kind="foreign key")
    return Invalid(message)


def _unique_constraint_name(connection: apsw.Connection, message: str, code: int) -> str:
    """The constraint's name as PostgreSQL reports it: its index, or the schema's naming convention."""
    subject = message.partition(": ")[2]
    if subject.startswith("index "):
        return subject.removeprefix("index ").strip("'")
    columns = [column.rpartition(".") for column in subject.split(", ")]
    table = columns[0][0]
    names = [name for _, _, name in columns]
    if code != apsw.SQLITE_CONSTRAINT_UNIQUE:
        return f"pk_{table}"
    indexes = connection.execute("SELECT name FROM pragma_index_list(?1) WHERE \"unique\" AND origin = 'c'", (table,))
    for (index,) in indexes.fetchall():
        parts = connection.execute("SELECT name FROM pragma_index_info(?1) ORDER BY seqno", (index,)).fetchall()
        if [name for (name,) in parts] == names:
            return str(index)
    return f"uq_{table}_{'_'.join(names)}"
