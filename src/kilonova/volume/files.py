"""The content of volumes and snapshots on disk: sparse raw files, written beside their place and then moved there.

Every writer has a file of its own, so that one that comes too late cannot touch what another has made.
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
from weakref import WeakKeyDictionary

from kilonova import clock
from kilonova.image.files import is_locked

if TYPE_CHECKING:
    from kilonova.config import Config

GIB = 1 << 30
BLOCK = 1 << 20
# Runs of zeros of this length are left out of the file.
PIECE = 1 << 16
# A file made or moved less long ago than this may be one that its writer has not locked yet, or not recorded.
SETTLED_SECONDS = 60.0
_ZEROS = bytes(PIECE)
# ioctl FICLONE: the file shares the blocks of another one until either is written to.
_CLONE = 0x40049409

Moved = Callable[[int], Awaitable[None]]
"""Told after each block how many bytes are done."""
T = TypeVar("T")


class TooBig(Exception):
    """More bytes than the volume, or the disk, can take."""


class VolumeFiles:
    """A directory of content: `volume.data`, below `snapshots` `snapshot.data`, and below `parts` what is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.snapshots = root / "snapshots"
        self.parts = root / "parts"

    @classmethod
    def of(cls, config: Config) -> VolumeFiles:
        return cls(config.data_dir / "volumes")

    def volume(self, volume_id: str, data_id: str) -> Path:
        return self.root / f"{volume_id}.{data_id}"

    def snapshot(self, snapshot_id: str, data_id: str) -> Path:
        return self.snapshots / f"{snapshot_id}.{data_id}"

    @asynccontextmanager
    async def writing(self, place: Path, size: int) -> AsyncIterator[Part]:
        """A file of `size` bytes, all zero, that is at its place when the block ends well, and nowhere otherwise."""
        async with self.aside(place.name, size) as part:
            yield part
            await in_thread(part.settle, place)

    @asynccontextmanager
    async def aside(self, name: str, size: int) -> AsyncIterator[Part]:
        """A file of `size` bytes, all zero, for the time of the block; nobody else's."""
        part = await in_thread(Part, self.parts / name, size)
        try:
            await in_thread(part.grow)
            yield part
        finally:
            part.close()
            part.path.unlink(missing_ok=True)

    async def remove(self, *paths: Path) -> None:
        """One that is gone already is fine."""
        await in_thread(self._remove, paths)

    async def remove_all(self, prefix: str, *, before: str | None = None) -> None:
        """All files, finished or not, whose names begin so, or only those that sort before that one.

        That is a look at every file there is.
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
        """Remove those of the files that nobody writes; how many."""
        removed = 0
        for name in names:
            for path in (directory / name for directory in self._directories()):
                if _is_settled(path) and not is_locked(path):
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _directories(self) -> tuple[Path, Path, Path]:
        """Parts first: what moves meanwhile is then found at its place."""
        return self.parts, self.root, self.snapshots


class Part:
    """Content on its way to its place. It holds a lock on its file until closed."""

    def __init__(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.size = size
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def grow(self) -> None:
        with _space():
            os.truncate(self._fd, self.size)

    async def fill(self, chunks: AsyncIterator[bytes], moved: Moved) -> int:
        """Write a stream from the beginning on; how many bytes it had."""
        offset = 0
        async for block in _blocks(chunks):
            await in_thread(self._put, offset, block)
            offset += len(block)
            await moved(offset)
        return offset

    async def copy(self, source: Path, moved: Moved) -> None:
        """Write what another file has, as far as there is room; or share its blocks where the file system can."""
        if await self.share(source):
            return
        fd = await in_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset, length in _extents(fd, self.size):
                await in_thread(self._transfer, fd, offset, length)
                await moved(offset + length)
        finally:
            os.close(fd)

    async def share(self, source: Path) -> bool:
        """Share the blocks of another file as it is at one moment; False where the file system cannot."""
        fd = await in_thread(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await in_thread(self._clone, fd)
        finally:
            os.close(fd)

    def settle(self, place: Path) -> None:
        """Make it durable under its name."""
        os.fsync(self._fd)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.path, place)
        _sync(place.parent, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def _clone(self, source: int) -> bool:
        try:
            fcntl.ioctl(self._fd, _CLONE, source)
        except OSError:
            return False
        os.truncate(self._fd, self.size)
        return True

    def _transfer(self, source: int, offset: int, length: int) -> None:
        while length > 0 and (block := os.pread(source, length, offset)):
            self._put(offset, block)
            offset, length = offset + len(block), length - len(block)

    def _put(self, offset: int, block: bytes) -> None:
        view = memoryview(block)
        with _space():
            for start, end in _runs(block):
                if offset + end > self.size:
                    raise TooBig(f"the content has more than {self.size} bytes")
                _write(self._fd, view[start:end], offset + start)


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """Wait for the work's end even when cancelled: what it has open must not be closed under it."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def resize(path: Path, size: int) -> None:
    """Durable when this returns. Nothing is lost of what is below the smaller one of the sizes."""
    with _space():
        os.truncate(path, size)
    _sync(path, os.O_RDWR)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def turn(config: Config) -> asyncio.Semaphore:
    """Only so many copies go on at a time in a process, whoever has begun them."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(max(config.volume.copies, 1)))


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Small chunks are gathered: one trip to a thread per block."""
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


def _extents(fd: int, most: int) -> Iterator[tuple[int, int]]:
    """The parts of a file's first bytes that have content, in blocks: offset and length."""
    end = min(os.fstat(fd).st_size, most)
    offset = 0
    while offset < end:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole
            raise
        hole = min(os.lseek(fd, offset, os.SEEK_HOLE), end)
        while offset < hole:
            length = min(BLOCK, hole - offset)
            yield offset, length
            offset += length


def _runs(block: bytes) -> Iterator[tuple[int, int]]:
    """The stretches of a block that are not all zero."""
    begin: int | None = None
    for start in range(0, len(block), PIECE):
        length = min(PIECE, len(block) - start)
        if block.startswith(_ZEROS if length == PIECE else _ZEROS[:length], start):  # without a copy
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


class _space:
    """Has a full disk said in words of ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TooBig("there is not enough disk space for the content") from error


def _is_settled(path: Path) -> bool:
    try:
        return clock.now() - path.stat().st_ctime > SETTLED_SECONDS
    except FileNotFoundError:
        return False
