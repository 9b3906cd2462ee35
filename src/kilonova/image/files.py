"""Files of image data. An upload is streamed to a temporary file, synced, then renamed into place.

Every upload has its own id and file, so that two uploads of one image cannot touch each other's data.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.disk_space import available_bytes
from kilonova.image.formats import HEADER_BYTES, virtual_size

if TYPE_CHECKING:
    from kilonova.config import Config

BLOCK_BYTES = 1 << 20
HASH_ALGORITHM = "sha512"
_DISK_FULL = "There is not enough disk space to store the image data."
# A younger file may belong to an upload that has not locked it yet.
MIN_ORPHAN_AGE_SECONDS = 60.0


class UploadTooLarge(Exception):
    """The data exceeds the configured limit or the free disk space."""


@dataclass(frozen=True)
class UploadResult:
    """Size and checksums of the uploaded data."""

    size: int
    virtual_size: int | None
    checksum: str
    hash_value: str


class ImageFiles:
    """The directory of image data: one file per image, and running uploads in `uploads`."""

    def __init__(self, root: Path, limit: int | None = None, reserved_gb: float = 0.0) -> None:
        self.root = root
        self.limit = limit
        self.reserved_gb = reserved_gb
        self.uploads = root / "uploads"

    @classmethod
    def of(cls, config: Config) -> ImageFiles:
        return cls(config.data_dir / "images", config.image.max_bytes, config.reserved_disk_gb)

    def begin(self, image_id: str, data_id: str, disk_format: str | None) -> Upload:
        self.uploads.mkdir(parents=True, exist_ok=True)
        return Upload(self, f"{image_id}.{data_id}", disk_format)

    def is_uploading(self, image_id: str, data_id: str) -> bool:
        """Whether a live process holds the lock of this upload.

        Checks the temporary name first, so that an upload that is renamed meanwhile is found under its final name.
        """
        name = f"{image_id}.{data_id}"
        return is_locked(self.uploads / name) or is_locked(self.root / name)

    def remove(self, image_id: str, data_id: str) -> None:
        name = f"{image_id}.{data_id}"
        (self.uploads / name).unlink(missing_ok=True)
        (self.root / name).unlink(missing_ok=True)

    def read(self, image_id: str, data_id: str) -> AsyncGenerator[bytes, None]:
        """Stream the data. The file is opened at once, so that a deletion meanwhile does not truncate the stream."""
        return _read(os.open(self.root / f"{image_id}.{data_id}", os.O_RDONLY | os.O_CLOEXEC))

    def names(self) -> list[str]:
        """The names of all files, each `{image_id}.{data_id}`."""
        found = [*self.root.glob("*.*"), *self.uploads.glob("*.*")]
        return sorted({path.name for path in found if path.is_file()})

    def remove_orphans(self, names: list[str], known: Container[str]) -> int:
        """Remove files that belong to no known image and no running upload. Returns how many."""
        removed = 0
        for name in names:
            for path in (self.uploads / name, self.root / name):
                if name not in known and _is_old(path) and not is_locked(path):
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed


class Upload:
    """A running upload. It holds a lock on its file until it is closed."""

    def __init__(self, files: ImageFiles, name: str, disk_format: str | None) -> None:
        self.files = files
        self.disk_format = disk_format
        self.temporary_path = files.uploads / name
        self.final_path = files.root / name
        self.size = 0
        self._header = b""
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha = hashlib.new(HASH_ALGORITHM)
        self._fd = os.open(self.temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    async def write(self, chunk: bytes) -> None:
        """Buffer the chunk, and write in blocks: each write is a call to a thread."""
        self.size += len(chunk)
        if self.files.limit is not None and self.size > self.files.limit:
            raise UploadTooLarge(f"The image data exceeds the limit of {self.files.limit} bytes.")
        self._buffer.append(chunk)
        self._buffer_bytes += len(chunk)
        if self._buffer_bytes >= BLOCK_BYTES:
            await self._flush()

    async def finish(self) -> UploadResult:
        """Make the data durable under its final name."""
        await self._flush()
        await self._in_thread(self._commit)
        return UploadResult(
            size=self.size,
            virtual_size=virtual_size(self.disk_format, self._header, self.size),
            checksum=self._md5.hexdigest(),
            hash_value=self._sha.hexdigest(),
        )

    def discard(self) -> None:
        self.temporary_path.unlink(missing_ok=True)
        self.final_path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _flush(self) -> None:
        if not self._buffer:
            return
        block = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffer_bytes = 0
        await self._in_thread(self._write, block)

    async def _in_thread(self, function: Callable[..., None], *args: bytes) -> None:
        try:
            await asyncio.to_thread(function, *args)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise UploadTooLarge(_DISK_FULL) from error
            raise

    def _write(self, block: bytes) -> None:
        if len(self._header) < HEADER_BYTES:
            self._header = (self._header + block[:HEADER_BYTES])[:HEADER_BYTES]
        self._md5.update(block)
        self._sha.update(block)
        for start in range(0, len(block), BLOCK_BYTES):
            self._put(block[start : start + BLOCK_BYTES])

    def _put(self, block: bytes) -> None:
        if block == bytes(len(block)):
            os.lseek(self._fd, len(block), os.SEEK_CUR)  # a hole reads as zeros and needs no disk space
            return
        if len(block) > available_bytes(self.files.uploads, self.files.reserved_gb):
            raise UploadTooLarge(_DISK_FULL)
        view = memoryview(block)
        while view:
            view = view[os.write(self._fd, view) :]

    def _commit(self) -> None:
        os.truncate(self._fd, self.size)
        os.fsync(self._fd)
        os.rename(self.temporary_path, self.final_path)
        directory = os.open(self.files.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def is_locked(path: Path) -> bool:
    """Whether a process has locked the file for writing."""
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


def _is_old(path: Path) -> bool:
    try:
        return clock.wall() - path.stat().st_mtime > MIN_ORPHAN_AGE_SECONDS
    except FileNotFoundError:
        return False


async def _read(fd: int) -> AsyncGenerator[bytes, None]:
    try:
        while block := await asyncio.to_thread(os.read, fd, BLOCK_BYTES):
            yield block
    finally:
        os.close(fd)
