"""The directories of shares: `SHARE/` with the content, and `deleted/` for content that is being removed.

The service creates and removes directories and never looks into them: their files are written by guests.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.disk_space import available_bytes

if TYPE_CHECKING:
    from kilonova.config import Config

# As `/tmp`: every user of a guest may create files, and owners and modes of these files limit who else may use them.
_MODE = 0o1777
# A thread removes content for this time. Then the operation can be cancelled, or the next thread continues.
_PART_SECONDS = 0.5


class NoSpace(Exception):
    """The disk has no free space beyond the reserve."""


class ShareFiles:
    def __init__(self, root: Path, reserved_gb: float = 0.0) -> None:
        self.root = root
        self.deleted = root / "deleted"
        self.reserved_gb = reserved_gb

    @classmethod
    def of(cls, config: Config) -> ShareFiles:
        root = Path(config.share.directory).absolute() if config.share.directory else config.data_dir / "shares"
        return cls(root, config.reserved_disk_gb)

    def export_path(self, share_id: str) -> str:
        """`machine:directory`, in the form of an NFS export. The machine is this one."""
        return f"{socket.gethostname()}:{self.root / share_id}"

    def create(self, share_id: str) -> None:
        """Create the directory, which may exist. Raises NoSpace and OSError."""
        # virtiofsd runs as root; no other user of the machine may reach what guests write.
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if available_bytes(self.root, self.reserved_gb) <= 0:
            raise NoSpace("there is not enough disk space for a share")
        directory = self.root / share_id
        directory.mkdir(exist_ok=True)
        directory.chmod(_MODE)
        _sync(self.root)

    async def remove(self, share_id: str) -> None:
        """Remove the directory with its content. A missing directory is ignored. Raises OSError.

        The content is removed in parts, because a thread cannot be cancelled, and a share may have millions of files.
        """
        await asyncio.to_thread(self._set_aside, share_id)
        while not await asyncio.to_thread(_remove_part, self.deleted / share_id):
            pass

    def _set_aside(self, share_id: str) -> None:
        """Move the directory to `deleted/`, so that a guest that starts meanwhile cannot mount it."""
        directory = self.root / share_id
        if directory.exists():
            self.deleted.mkdir(mode=0o700, exist_ok=True)
            directory.rename(self.deleted / share_id)
            _sync(self.root)


def _remove_part(directory: Path) -> bool:
    """Remove content for `_PART_SECONDS`. Returns whether the directory is removed.

    Guests may have created symbolic links, which are not followed. Nested directories are moved to the top first, so
    that their depth is not limited by the length of a path.
    """
    until = time.monotonic() + _PART_SECONDS
    while directory.exists():
        with os.scandir(directory) as found:
            entry = next(found, None)
        if entry is None:
            directory.rmdir()
        elif not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
        else:
            with os.scandir(entry.path) as inner:
                for each in inner:
                    if each.is_dir(follow_symlinks=False):
                        os.rename(each.path, directory / f"moved-{uuid.uuid4()}")
                    else:
                        os.unlink(each.path)
                    if time.monotonic() > until:
                        return False
            os.rmdir(entry.path)
        if time.monotonic() > until:
            return False
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
