"""What the operations of the volume service share: the rows they are about, their progress, and how they fail."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kilonova.http.client import Unreachable
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, Passing
from kilonova.store import Row, Transaction
from kilonova.volume.conversion import Unacceptable
from kilonova.volume.exports.daemon import DaemonError
from kilonova.volume.exports.keeper import Busy, Keeper
from kilonova.volume.files import TooBig, VolumeFiles

log = logging.getLogger(__name__)

# Copies that wait for their turn keep no server waiting.
LANE = "volume"
# How long a copy may take with the wait for its turn: for terabytes on a slow disk.
COPY_SECONDS = 24 * 3600.0
# So often the image service may be away or break off during one copy: by the engine's pauses some five minutes.
TRIES = 14
_REPORT_SECONDS = 1.0


def files_of(op: Operation) -> VolumeFiles:
    return VolumeFiles.of(op.services.config)


def new_data(op: Operation) -> str:
    """Content that the operation makes now. What it made in vain is known by the operation's id."""
    return f"{_run(op)}-{secrets.token_hex(4)}"


def _run(op: Operation) -> str:
    """Later runs of a step come later in the order of texts."""
    return f"{op.id}-{op.epoch:08}-{op.attempt:04}"


async def clear(op: Operation, ident: str) -> None:
    """Remove what earlier runs of the step have written for the volume or snapshot, all of them in vain.

    Nothing of this run or a later one: a worker that has lost its lease, or does not know that what it wrote was
    recorded, must not take away what may be the volume's content by now.
    """
    if op.epoch > 1 or op.attempt > 0:
        await files_of(op).remove_all(f"{ident}.{op.id}", before=f"{ident}.{_run(op)}")


async def clear_all(op: Operation, ident: str) -> None:
    """Remove all that the operation has written for the volume or snapshot. For undo: it goes forward no more."""
    await keeper_of(op).stop_copy(op.id)
    await files_of(op).remove_all(f"{ident}.{op.id}")


async def volume_of(op: Operation, tx: Transaction | None = None) -> Row:
    """The operation's volume as it is now, and stays until `tx` ends; one that is being deleted counts as gone.

    So nobody gives content to a volume whose deletion has removed all that it saw.
    """
    return await _row_of(op, tx, "volumes", op.params["volume_id"])


async def snapshot_of(op: Operation, tx: Transaction | None = None) -> Row:
    """Likewise the operation's snapshot."""
    return await _row_of(op, tx, "volume_snapshots", op.params["snapshot_id"])


async def _row_of(op: Operation, tx: Transaction | None, table: str, ident: str) -> Row:
    sql = f"SELECT * FROM {table} WHERE id = $1 AND status <> 'deleting'"
    row = await (tx.fetch_one(f"{sql} FOR UPDATE", ident) if tx else op.db.fetch_one(sql, ident))
    if row is None:
        raise Failed(f"{ident} was deleted meanwhile.")
    return row


def keeper_of(op: Operation) -> Keeper:
    return Keeper(op.services.config, op.db)


@asynccontextmanager
async def apart(op: Operation, volume_id: str) -> AsyncIterator[None]:
    """For changes of a file itself: hosts that reach the volume wait meanwhile, and see it changed afterwards."""
    keeper = keeper_of(op)
    if not keeper.was_used:
        yield
        return
    try:
        async with keeper.suspended(volume_id):
            yield
    except Busy as error:
        raise Waiting(str(error)) from error


class Waiting(Exception):
    """For what takes as long as it takes."""


class Progress:
    """Shows, now and then, how many of `total` bytes are done; and ends the operation when what it is about is gone."""

    def __init__(self, op: Operation, table: str, ident: str) -> None:
        self.total = 0
        self._op = op
        self._table = table
        self._id = ident
        self._next = time.monotonic() + _REPORT_SECONDS

    async def moved(self, done: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_SECONDS
        percent = min(100 * done // max(self.total, 1), 99)
        await self._op.report(percent)
        async with self._op.db.transaction() as tx:
            if not await tx.execute(f"UPDATE {self._table} SET progress = $2 WHERE id = $1", self._id, percent):
                raise Failed(f"{self._id} was deleted meanwhile.")


@asynccontextmanager
async def explained(op: Operation) -> AsyncIterator[None]:
    """Failures of content and of the image service in words for users; what may pass is tried again, not for ever."""
    try:
        yield
    except Waiting as error:
        raise Passing(str(error)) from error
    except (TooBig, Unacceptable) as error:
        raise Failed(f"The content could not be written: {error}.", fault=getattr(error, "details", None)) from error
    except ImageError as error:
        raise Failed(f"The image service refused: {error}") from error
    except FileNotFoundError as error:
        raise Failed("The content of the volume is missing.", fault=str(error)) from error
    except (Unreachable, Passing, OSError, DaemonError) as error:
        if op.attempt >= TRIES:
            raise Failed(f"Given up after {TRIES} times: {_words(error)}", fault=str(error)) from error
        raise Passing(_words(error)) from error


def _words(error: Exception) -> str:
    """Names of files are nothing for users."""
    if isinstance(error, OSError):
        return f"the disk of the volume service failed: {error.strerror or type(error).__name__}"
    return str(error)
