"""Translates asyncpg's errors to those of `kilonova.store.interface`."""

from __future__ import annotations

import re

import asyncpg
from asyncpg import exceptions as pg

from kilonova.store.interface import Conflict, Invalid, StorageFull, StoreError, Unavailable

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    pg.InternalClientError,
    OSError,
    TimeoutError,
    ValueError,
)

_TRANSIENT = (
    pg.TransactionRollbackError,  # deadlock, serialization
    pg.LockNotAvailableError,
    pg.PostgresConnectionError,
    pg.OperatorInterventionError,  # shutting down, starting up, query cancelled
    pg.InsufficientResourcesError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.InvalidCachedStatementError,
    pg.OutdatedSchemaCacheError,
    OSError,
    TimeoutError,
)

_QUOTED_VALUE = re.compile(r"(?<=argument \$\d): .*(?= \()|(?<=argument \$\d\d): .*(?= \()|: \".*\"$", re.DOTALL)

_CONNECTION_ERRORS = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    OSError,
)


def translate_error(error: Exception, closed: bool) -> StoreError:
    """`closed`: whether the connection is closed, which some of asyncpg's errors do not tell.

    Values are removed from the error and its cause, because they could be secrets.
    """
    _remove_values(error)
    if isinstance(error, pg.UniqueViolationError):
        return Conflict(str(error), kind="unique", constraint=error.constraint_name)
    if isinstance(error, pg.ForeignKeyViolationError):
        return Conflict(str(error), kind="foreign key", constraint=error.constraint_name)
    if isinstance(error, pg.DiskFullError):
        return StorageFull("the disk of the database is full")
    if closed or isinstance(error, _TRANSIENT):
        return Unavailable(str(error) or type(error).__name__)
    if isinstance(error, (pg.IntegrityConstraintViolationError, pg.DataError, ValueError)):
        return Invalid(str(error))
    return StoreError(str(error))


def is_connection_lost(error: Exception, closed: bool) -> bool:
    """Whether the connection is lost, so that another connection may succeed."""
    return closed or isinstance(error, _CONNECTION_ERRORS)


def is_timeout(error: BaseException | None) -> bool:
    """Whether the statement exceeded `statement_timeout`."""
    return isinstance(error, pg.QueryCanceledError)


def _remove_values(error: Exception) -> None:
    if isinstance(error, asyncpg.PostgresError):
        error.detail = None
        error.args = (_QUOTED_VALUE.sub("", str(error.args[0])),)
