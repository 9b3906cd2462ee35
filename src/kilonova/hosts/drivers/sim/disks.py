"""Volumes of simulated guests: their content is in files at the paths that the volume service gives."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Disk, Guest

BLOCK_BYTES = 1 << 20


async def copy_volume(source: Disk, target: Disk) -> None:
    """Copy a volume's content in a thread. A cancellation is raised only after the thread has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(_copy_file, device_path(source), device_path(target)))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    except OSError as error:
        raise DriverError(f"cannot copy volume {source.volume_id}: {error.strerror}") from error


def device_path(disk: Disk) -> Path:
    path = disk.connection.get("data", {}).get("device_path")
    if not path:
        raise DriverError(f"the connection of volume {disk.volume_id} has no device_path for simulated hosts")
    return Path(path)


def _copy_file(source: Path, target: Path) -> None:
    """Copy the data, not the holes. A target that is too small is refused before anything is written."""
    with source.open("rb") as reader, target.open("r+b") as writer:
        size = os.fstat(writer.fileno()).st_size
        extents = list(_extents(reader.fileno()))
        if any(end > size for _, end in extents):
            raise DriverError(f"{target.name} is smaller than {source.name}")
        writer.truncate(0)
        writer.truncate(size)
        for start, end in extents:
            writer.seek(start)
            for offset in range(start, end, BLOCK_BYTES):
                writer.write(os.pread(reader.fileno(), min(BLOCK_BYTES, end - offset), offset))
        writer.flush()
        os.fsync(writer.fileno())


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each range with data. Most of a volume is holes."""
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


def has_volume(guest: Guest, volume_id: str) -> bool:
    return any(disk.volume_id == volume_id for disk in guest.disks)


def without_volume(guest: Guest, volume_id: str) -> list[Disk]:
    return [disk for disk in guest.disks if disk.volume_id != volume_id]


def has_only_volumes(guest: Guest) -> bool:
    """Return whether the guest boots from a volume and has no local disks."""
    boots = guest.image is None and any(disk.boot_index == 0 for disk in guest.disks)
    local = guest.flavor.ephemeral_gb or guest.flavor.swap_mb if guest.local_disks is None else guest.local_disks
    return boots and not local
