"""Image data on disk: written beside its place, made durable, then moved there; never whole in memory.

Every upload has an id and a file of its own, so that two uploads of one image cannot touch each other's data.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.image.formats import HEAD, virtual_size

if TYPE_CHECKING:
    from kilonova.config import Config

BLOCK = 1 << 20
HASH_ALGORITHM = "sha512"
# A file younger than this may be of an upload that has not locked it yet.
SETTLED_SECONDS = 60.0


class TooBig(Exception):
    """More bytes than the configured limit, or than the disk can take."""


@dataclass(frozen=True)
class Stored:
    """What was learned of the data while it streamed by."""

    size: int
    virtual_size: int | None
    checksum: str
    hash_value: str


class ImageFiles:
    """A directory of image data: one file per image, and those being uploaded below `uploads`."""

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root = root
        self.limit = limit
        self.uploads = root / "uploads"

    @classmethod
    def of(cls, config: Config) -> ImageFiles:
        return cls(config.data_dir / "images", config.image.max_bytes)

    def begin(self, image_id: str, data_id: str, disk_format: str | None) -> Upload:
        self.uploads.mkdir(parents=True, exist_ok=True)
        return Upload(self, f"{image_id}.{data_id}", disk_format)

    def is_uploading(self, image_id: str, data_id: str) -> bool:
        """Whether a living process still writes this upload: it holds a lock that dies with it.

        The temporary name is asked first: an upload that moves meanwhile is then found under its final name.
        """
        name = f"{image_id}.{data_id}"
        return is_locked(self.uploads / name) or is_locked(self.root / name)

    def remove(self, image_id: str, data_id: str) -> None:
        name = f"{image_id}.{data_id}"
        (self.uploads / name).unlink(missing_ok=True)
        (self.root / name).unlink(missing_ok=True)

    def read(self, image_id: str, data_id: str) -> AsyncGenerator[bytes, None]:
        """The data as a stream. Opened at once, so that a deletion meanwhile does not cut it short."""
        return _read(os.open(self.root / f"{image_id}.{data_id}", os.O_RDONLY | os.O_CLOEXEC))

    def names(self) -> list[str]:
        """The names of all files, `image.data` each."""
        found = [*self.root.glob("*.*"), *self.uploads.glob("*.*")]
        return sorted({path.name for path in found if path.is_file()})

    def sweep(self, names: list[str], known: Container[str]) -> int:
        """Remove those of the files that no image knows and nobody writes; how many."""
        removed = 0
        for name in names:
            for path in (self.uploads / name, self.root / name):
                if name not in known and _is_settled(path) and not is_locked(path):
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed


class Upload:
    """One stream of bytes on its way to becoming an image's data. It holds a lock on its file until closed."""

    def __init__(self, files: ImageFiles, name: str, disk_format: str | None) -> None:
        self.files = files
        self.disk_format = disk_format
        self.part = files.uploads / name
        self.place = files.root / name
        self.size = 0
        self._head = b""
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha = hashlib.new(HASH_ALGORITHM)
        self._fd = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def write(self, chunk: bytes) -> None:
        """Small pieces are gathered: one trip to a thread per block."""
        self.size += len(chunk)
        if self.files.limit is not None and self.size > self.files.limit:
            raise TooBig(f"The image data exceeds the limit of {self.files.limit} bytes.")
        self._waiting.append(chunk)
        self._waiting_size += len(chunk)
        if self._waiting_size >= BLOCK:
            await self._flush()

    async def finish(self) -> Stored:
        """Make the data durable under its final name."""
        await self._flush()
        await asyncio.to_thread(self._settle)
        return Stored(
            size=self.size,
            virtual_size=virtual_size(self.disk_format, self._head, self.size),
            checksum=self._md5.hexdigest(),
            hash_value=self._sha.hexdigest(),
        )

    def abandon(self) -> None:
        """Leave nothing behind."""
        self.part.unlink(missing_ok=True)
        self.place.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _flush(self) -> None:
        if not self._waiting:
            return
        block = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_size = 0
        try:
            await asyncio.to_thread(self._write, block)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise TooBig("There is not enough disk space to store the image data.") from error
            raise

    def _write(self, block: bytes) -> None:
        if len(self._head) < HEAD:
            self._head = (self._head + block[:HEAD])[:HEAD]
        self._md5.update(block)
        self._sha.update(block)
        for start in range(0, len(block), BLOCK):
            self._put(block[start : start + BLOCK])

    def _put(self, block: bytes) -> None:
        if block == bytes(len(block)):
            os.lseek(self._fd, len(block), os.SEEK_CUR)  # a hole reads as zeros, and takes no room
            return
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]

    def _settle(self) -> None:
        os.truncate(self._fd, self.size)
        os.fsync(self._fd)
        os.rename(self.part, self.place)
        directory = os.open(self.files.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def is_locked(path: Path) -> bool:
    """Whether somebody writes the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_settled(path: Path) -> bool:
    try:
        return clock.now() - path.stat().st_mtime > SETTLED_SECONDS
    except FileNotFoundError:
        return False


async def _read(fd: int) -> AsyncGenerator[bytes, None]:
    try:
        while block := await asyncio.to_thread(os.read, fd, BLOCK):
            yield block
    finally:
        os.close(fd)
