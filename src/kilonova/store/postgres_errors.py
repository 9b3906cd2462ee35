"""The port's errors for what asyncpg raises."""

from __future__ import annotations

import re

import asyncpg
from asyncpg import exceptions as pg

from kilonova.store.port import Conflict, Invalid, StoreError, Unavailable

CAUGHT = (asyncpg.PostgresError, asyncpg.InterfaceError, pg.InternalClientError, OSError, TimeoutError, ValueError)

_PASSING = (
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

_LOST = (pg.PostgresConnectionError, pg.AdminShutdownError, pg.CrashShutdownError, pg.CannotConnectNowError, OSError)


def explained(error: Exception, closed: bool) -> StoreError:
    """`closed`: whether the connection was found closed, which alone tells apart some of asyncpg's own errors.

    Neither it nor what caused it quotes a value, which could be a secret.
    """
    _forget_values(error)
    if isinstance(error, pg.UniqueViolationError):
        return Conflict(str(error), kind="unique", constraint=error.constraint_name)
    if isinstance(error, pg.ForeignKeyViolationError):
        return Conflict(str(error), kind="foreign key", constraint=error.constraint_name)
    if closed or isinstance(error, _PASSING):
        return Unavailable(str(error) or type(error).__name__)
    if isinstance(error, (pg.IntegrityConstraintViolationError, pg.DataError, ValueError)):
        return Invalid(str(error))
    return StoreError(str(error))


def lost(error: Exception, closed: bool) -> bool:
    """Whether the connection is gone, so that another one may do better."""
    return closed or isinstance(error, _LOST)


def _forget_values(error: Exception) -> None:
    if isinstance(error, asyncpg.PostgresError):
        error.detail = None
        error.args = (_QUOTED_VALUE.sub("", str(error.args[0])),)
