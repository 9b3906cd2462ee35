"""The bytes of volumes as a simulated host reaches them: files that the volume service names."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Disk

BLOCK = 1 << 20


async def copy(source: Disk, target: Disk) -> None:
    """All that is on one volume onto another. The work in the thread has ended when this does."""
    copying = asyncio.ensure_future(asyncio.to_thread(_copy, path_of(source), path_of(target)))
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        await asyncio.wait([copying])
        raise
    except OSError as error:
        raise DriverError(f"cannot copy volume {source.volume_id}: {error.strerror}") from error


def path_of(disk: Disk) -> Path:
    path = disk.connection.get("data", {}).get("device_path")
    if not path:
        raise DriverError(f"volume {disk.volume_id} is none that simulated hosts can reach")
    return Path(path)


def _copy(source: Path, target: Path) -> None:
    """What does not fit on the target is refused before anything is written; what is empty stays so."""
    with source.open("rb") as reader, target.open("r+b") as writer:
        size = os.fstat(writer.fileno()).st_size
        extents = list(_extents(reader.fileno()))
        if any(end > size for _, end in extents):
            raise DriverError(f"{target.name} is smaller than {source.name}")
        writer.truncate(0)
        writer.truncate(size)
        for start, end in extents:
            writer.seek(start)
            for offset in range(start, end, BLOCK):
                writer.write(os.pread(reader.fileno(), min(BLOCK, end - offset), offset))
        writer.flush()
        os.fsync(writer.fileno())


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """From where to where something is written in the file. Most of a volume is empty."""
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end
