"""Functions that the operations of the volume service share: rows, files, progress and error texts."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from kilonova.http.client import Unreachable
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, TransientError
from kilonova.store import Transaction
from kilonova.volume.conversion import Unacceptable
from kilonova.volume.exports.daemon import DaemonError
from kilonova.volume.exports.manager import Busy, ExportManager
from kilonova.volume.files import TooBig, VolumeFiles
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.snapshots.model import Snapshot
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes import states
from kilonova.volume.volumes.model import Volume

# A lane of their own, so that operations of servers do not wait for copies.
LANE = "volume"
# Includes the wait for a copy slot, and is long enough for terabytes on a slow disk.
COPY_SECONDS = 24 * 3600.0
# Attempts of a copy if the image service is unavailable. With the engine's pauses this is about five minutes.
MAX_ATTEMPTS = 14
_REPORT_SECONDS = 1.0


class NamesVolume(Protocol):
    @property
    def volume_id(self) -> str: ...


class NamesSnapshot(Protocol):
    @property
    def snapshot_id(self) -> str: ...


def volume_files(op: Operation) -> VolumeFiles:
    return VolumeFiles.of(op.services.config)


def new_data_id(op: Operation) -> str:
    """A new id of content. It starts with the operation's id, so that unused files can be found."""
    return f"{_run_id(op)}-{secrets.token_hex(4)}"


def _run_id(op: Operation) -> str:
    """The ids of the runs of a step sort by time."""
    return f"{op.id}-{op.epoch:08}-{op.attempt:04}"


async def remove_earlier_files(op: Operation, ident: str) -> None:
    """Remove the files that earlier runs of the step wrote for the volume or snapshot.

    Files of this run and of later ones stay: they may be the volume's content by now, if this worker has lost its
    lease or the answer to its commit.
    """
    if op.epoch > 1 or op.attempt > 0:
        await volume_files(op).remove_all(f"{ident}.{op.id}", before=f"{ident}.{_run_id(op)}")


async def remove_all_files(op: Operation, ident: str) -> None:
    """Remove all files that the operation wrote for the volume or snapshot. For undo."""
    await export_manager(op).stop_copy(op.id)
    await volume_files(op).remove_all(f"{ident}.{op.id}")


async def get_volume(op: Operation[NamesVolume], tx: Transaction | None = None) -> Volume:
    """The operation's volume, locked if `tx` is given. Raises Failed if the volume is deleted or being deleted.

    So no operation gives content to a volume after its deletion removed the files.
    """
    volume_id = op.params.volume_id
    volume = await volumes.get(tx or op.db, volume_id, lock=tx is not None)
    if volume is None or volume.status == states.DELETING:
        raise Failed(f"{volume_id} was deleted meanwhile.")
    return volume


async def get_snapshot(op: Operation[NamesSnapshot], tx: Transaction | None = None) -> Snapshot:
    """The operation's snapshot; see `get_volume`."""
    snapshot_id = op.params.snapshot_id
    snapshot = await snapshots.get(tx or op.db, snapshot_id, lock=tx is not None)
    if snapshot is None or snapshot.status == snapshots.DELETING:
        raise Failed(f"{snapshot_id} was deleted meanwhile.")
    return snapshot


def export_manager(op: Operation) -> ExportManager:
    return ExportManager(op.services.config, op.db)


@asynccontextmanager
async def exports_suspended(op: Operation, volume_id: str) -> AsyncIterator[None]:
    """Suspend the exports of the volume, for changes of its file. Clients wait meanwhile."""
    manager = export_manager(op)
    if not manager.was_used:
        yield
        return
    try:
        async with manager.suspended(volume_id):
            yield
    except Busy as error:
        raise StillCopying(str(error)) from error


class StillCopying(Exception):
    """The volume is being copied. The step is retried without a limit of attempts."""


class Progress:
    """Stores how many percent of `total` bytes are done. Raises Failed if the volume or snapshot was deleted."""

    def __init__(self, op: Operation, table: str, ident: str) -> None:
        self.total = 0
        self._op = op
        self._table = table
        self._id = ident
        self._next = time.monotonic() + _REPORT_SECONDS

    async def report(self, done: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_SECONDS
        percent = min(100 * done // max(self.total, 1), 99)
        await self._op.report(percent)
        async with self._op.db.transaction() as tx:
            if not await tx.execute(f"UPDATE {self._table} SET progress = $2 WHERE id = $1", self._id, percent):
                raise Failed(f"{self._id} was deleted meanwhile.")


@asynccontextmanager
async def translate_errors(op: Operation) -> AsyncIterator[None]:
    """Turn errors into Failed, with a text for users, or into TransientError if a retry may help."""
    try:
        yield
    except StillCopying as error:
        raise TransientError(str(error)) from error
    except (TooBig, Unacceptable) as error:
        raise Failed(f"The content could not be written: {error}.", fault=getattr(error, "details", None)) from error
    except ImageError as error:
        raise Failed(f"The image service refused: {error}") from error
    except FileNotFoundError as error:
        raise Failed("The content of the volume is missing.", fault=str(error)) from error
    except (Unreachable, TransientError, OSError, DaemonError) as error:
        if op.attempt >= MAX_ATTEMPTS:
            raise Failed(f"Given up after {MAX_ATTEMPTS} times: {_user_text(error)}", fault=str(error)) from error
        raise TransientError(_user_text(error)) from error


def _user_text(error: Exception) -> str:
    """Users must not see file names."""
    if isinstance(error, OSError):
        return f"the disk of the volume service failed: {error.strerror or type(error).__name__}"
    return str(error)
