"""Stores the content of volumes and snapshots: sparse raw files, renamed into place when they are complete.

Every writer has a file of its own, so that a late worker cannot damage the file of another one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kilonova import clock
from kilonova.disk_space import available_bytes
from kilonova.image.files import is_locked

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.image_hash import Hasher
    from kilonova.services import Services

GIB = 1 << 30
BLOCK = 1 << 20
# Runs of zeros of this length become holes in the file.
HOLE = 1 << 16
# The writer of a younger file may not have locked or recorded it yet.
MIN_AGE_SECONDS = 60.0
_ZEROS = bytes(HOLE)
_DISK_FULL = "there is not enough disk space for the content"
# ioctl number: the file shares the blocks of another one until either is written to.
_FICLONE = 0x40049409

OnProgress = Callable[[int], Awaitable[None]]
"""Called after each block with the number of bytes written so far."""
T = TypeVar("T")


class TooBig(Exception):
    """The content does not fit in the volume or on the disk."""


class VolumeFiles:
    """The directory of content: `VOLUME.DATA`, `snapshots/SNAPSHOT.DATA`, and `parts/` for files being written."""

    def __init__(self, root: Path, reserved_gb: float = 0.0) -> None:
        self.root = root
        self.reserved_gb = reserved_gb
        self.snapshots = root / "snapshots"
        self.parts = root / "parts"

    @classmethod
    def of(cls, config: Config) -> VolumeFiles:
        return cls(config.data_dir / "volumes", config.reserved_disk_gb)

    def volume(self, volume_id: str, data_id: str) -> Path:
        return self.root / f"{volume_id}.{data_id}"

    def snapshot(self, snapshot_id: str, data_id: str) -> Path:
        return self.snapshots / f"{snapshot_id}.{data_id}"

    @asynccontextmanager
    async def create(self, path: Path, size: int) -> AsyncIterator[NewFile]:
        """Create a file of `size` zero bytes. It is renamed to `path` if the block succeeds, and removed otherwise."""
        async with self.temporary(path.name, size) as file:
            yield file
            await in_thread(file.rename, path)

    @asynccontextmanager
    async def temporary(self, name: str, size: int) -> AsyncIterator[NewFile]:
        """A file of `size` zero bytes that is removed after the block."""
        file = await in_thread(NewFile, self.parts / name, size, self.reserved_gb)
        try:
            await in_thread(file.resize)
            yield file
        finally:
            file.close()
            file.path.unlink(missing_ok=True)

    async def remove(self, *paths: Path) -> None:
        """Missing files are ignored."""
        await in_thread(self._remove, paths)

    async def remove_all(self, prefix: str, *, before: str | None = None) -> None:
        """Remove the files, complete or not, whose names start with `prefix` and sort before `before`.

        This reads all directories.
        """
        found = await in_thread(self._find, prefix)
        await in_thread(self._remove, [path for path in found if before is None or path.name < before])

    def _find(self, prefix: str) -> list[Path]:
        return [path for directory in self._directories() for path in directory.glob(f"{prefix}*")]

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        found = [path for directory in self._directories() for path in directory.glob("*.*")]
        return sorted({path.name for path in found if path.is_file()})

    def sweep(self, names: Iterable[str]) -> int:
        """Remove the files that have no writer; return their number."""
        removed = 0
        for name in names:
            for path in (directory / name for directory in self._directories()):
                if _is_old(path) and not is_locked(path):
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _directories(self) -> tuple[Path, Path, Path]:
        """`parts` first: a file that is renamed meanwhile is found in a later directory."""
        return self.parts, self.root, self.snapshots


class NewFile:
    """A file being written. It is locked until closed."""

    def __init__(self, path: Path, size: int, reserved_gb: float = 0.0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_space(path.parent, 0, reserved_gb)
        self.path = path
        self.size = size
        self._reserved_gb = reserved_gb
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def resize(self) -> None:
        with _disk_full_as_too_big():
            os.truncate(self._fd, self.size)

    async def fill(self, chunks: AsyncIterator[bytes], on_progress: OnProgress, hasher: Hasher | None = None) -> int:
        """Write the stream and hash it; return its length."""
        offset = 0
        async for block in _blocks(chunks):
            await in_thread(self._write_block, offset, block, hasher)
            offset += len(block)
            await on_progress(offset)
        return offset

    async def copy(self, source: Path, on_progress: OnProgress) -> None:
        """Copy the first `size` bytes of another file, by a clone if the file system supports it."""
        if await self.clone(source):
            return
        self.check_space(allocated_bytes(source))
        fd = await in_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset, length in _extents(fd, self.size):
                await in_thread(self._copy_range, fd, offset, length)
                await on_progress(offset + length)
        finally:
            os.close(fd)

    async def clone(self, source: Path) -> bool:
        """Clone another file atomically (reflink). False if the file system does not support it."""
        fd = await in_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await in_thread(self._clone, fd)
        finally:
            os.close(fd)

    def check_space(self, size: int) -> None:
        """Raise TooBig unless the disk has room for `size` bytes of data in the file."""
        check_space(self.path.parent, size, self._reserved_gb)

    def rename(self, path: Path) -> None:
        """Make the file durable under its final name."""
        os.fsync(self._fd)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.path, path)
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def _clone(self, source: int) -> bool:
        try:
            fcntl.ioctl(self._fd, _FICLONE, source)
        except OSError:
            return False
        os.truncate(self._fd, self.size)
        return True

    def _copy_range(self, source: int, offset: int, length: int) -> None:
        while length > 0 and (block := os.pread(source, length, offset)):
            self._write_block(offset, block)
            offset, length = offset + len(block), length - len(block)

    def _write_block(self, offset: int, block: bytes, hasher: Hasher | None = None) -> None:
        view = memoryview(block)
        if hasher is not None:
            hasher.update(view)
        with _disk_full_as_too_big():
            for start, end in _runs(block):
                if offset + end > self.size:
                    raise TooBig(f"the content has more than {self.size} bytes")
                self.check_space(end - start)
                _write(self._fd, view[start:end], offset + start)


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """Run `work` in a thread. Waits for its end even when cancelled, because `work` uses open files of the caller."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def check_space(directory: Path, size: int, reserved_gb: float) -> None:
    """Raise TooBig unless `size` bytes can be written and the reserve stays free."""
    if size > available_bytes(directory, reserved_gb):
        raise TooBig(_DISK_FULL)


def allocated_bytes(path: Path) -> int:
    """The disk space of the file, without holes."""
    return path.stat().st_blocks * 512


def resize(path: Path, size: int) -> None:
    """Resize the file, durable on return."""
    with _disk_full_as_too_big():
        os.truncate(path, size)
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_slot(services: Services) -> asyncio.Semaphore:
    """Limits the number of concurrent copies in the process."""
    if services.copy_slots is None:
        services.copy_slots = asyncio.Semaphore(max(services.config.volume.concurrent_copies, 1))
    return services.copy_slots


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join small chunks, so that a thread is used once per block."""
    waiting: list[bytes] = []
    size = 0
    async for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= BLOCK:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each block with data in the first `size` bytes of the file."""
    end = min(os.fstat(fd).st_size, size)
    offset = 0
    while offset < end:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        hole = min(os.lseek(fd, offset, os.SEEK_HOLE), end)
        while offset < hole:
            length = min(BLOCK, hole - offset)
            yield offset, length
            offset += length


def _runs(block: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each run in the block that is not all zero."""
    begin: int | None = None
    for start in range(0, len(block), HOLE):
        length = min(HOLE, len(block) - start)
        if block.startswith(_ZEROS if length == HOLE else _ZEROS[:length], start):  # without a copy
            if begin is not None:
                yield begin, start
                begin = None
        elif begin is None:
            begin = start
    if begin is not None:
        yield begin, len(block)


def _write(fd: int, view: memoryview, offset: int) -> None:
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


class _disk_full_as_too_big:
    """Turns errors of a full disk into TooBig."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TooBig(_DISK_FULL) from error


def _is_old(path: Path) -> bool:
    try:
        return clock.wall() - path.stat().st_ctime > MIN_AGE_SECONDS
    except FileNotFoundError:
        return False
