"""Files of a data directory: which ones a backup has, and how they are kept and copied."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kilonova import datadir

# A backup has every file that is not excluded here, so that it has the files of later features too.
# Logs, files of running processes, and what belongs to the hosts with real guests:
EXCLUDED = frozenset({datadir.LOCK, datadir.ENDPOINTS, "exports", "instances", "networks"})
_EXCLUDED_PREFIXES = (".", "tmp", datadir.REPLACED)
# Directories of incomplete uploads and copies.
_INCOMPLETE = frozenset({"images/uploads", "volumes/parts"})
_SQLITE_SIDE_FILES = ("-wal", "-shm", "-journal")
_SQLITE_HEADER = b"SQLite format 3\0"
_LINKS = ".backup"
_BLOCK_BYTES = 1 << 20
# ioctl number: the file shares the blocks of another one until either is written to.
_FICLONE = 0x40049409


def is_included(name: str) -> bool:
    """Whether a backup has this entry of the data directory."""
    return name not in EXCLUDED and not name.startswith(_EXCLUDED_PREFIXES) and not name.endswith(".log")


def list_files(directory: Path) -> list[Path]:
    """The files of a data directory, relative to it. SQLite's side files are part of their database."""
    found = [
        path
        for entry in os.scandir(directory)
        if is_included(entry.name)
        for path in _walk(directory, Path(entry.name))
        if not path.name.endswith(_SQLITE_SIDE_FILES)
    ]
    return sorted(found)


def _walk(directory: Path, path: Path) -> Iterator[Path]:
    try:
        mode = (directory / path).lstat().st_mode
        if stat.S_ISREG(mode):
            yield path
        elif stat.S_ISDIR(mode) and path.as_posix() not in _INCOMPLETE:
            for entry in os.scandir(directory / path):
                if not entry.name.startswith("."):
                    yield from _walk(directory, path / entry.name)
    except FileNotFoundError:
        pass  # deleted meanwhile


def is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    except FileNotFoundError:
        return False


@contextmanager
def links_directory(data_dir: Path) -> Iterator[Path]:
    """A directory for links, which keep files that are deleted during the backup. Raises BlockingIOError if in use."""
    path = data_dir / _LINKS
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield path
        finally:
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def link_files(data_dir: Path, paths: list[Path], links: Path) -> dict[Path, Path]:
    """Link the files that still exist. Returns the link of each file, or the file where links are not possible."""
    shutil.rmtree(links / "files", ignore_errors=True)
    kept: dict[Path, Path] = {}
    for path in paths:
        link = links / "files" / path
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(data_dir / path, link)
            kept[path] = link
        except FileNotFoundError:
            continue
        except OSError:
            kept[path] = data_dir / path  # another file system
    return kept


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, durable and private. Its holes stay holes. A file system that shares blocks copies at once."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(reader).st_size
            try:
                fcntl.ioctl(writer, _FICLONE, reader)
            except OSError:
                _copy_extents(reader, writer, size)
            os.truncate(writer, size)
            os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_extents(reader: int, writer: int, size: int) -> None:
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(reader, offset, os.SEEK_DATA)
        except OSError:
            return  # the rest is a hole
        hole = min(os.lseek(reader, offset, os.SEEK_HOLE), size)
        while offset < hole and (block := os.pread(reader, min(_BLOCK_BYTES, hole - offset), offset)):
            offset += os.pwrite(writer, block, offset)
        if offset < hole:
            return  # the file became shorter


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_directories(directory: Path) -> None:
    """Make the names of all files below the directory durable."""
    for root, _, _ in os.walk(directory):
        sync_directory(Path(root))


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
