"""The directories of shares: `SHARE/` with the content, and `deleted/` for content that is being removed.

The service creates and removes directories and never looks into them: their files are written by guests.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.disk_space import available_bytes

if TYPE_CHECKING:
    from kilonova.config import Config

# Guests decide by owner and mode who may use a share; its root is open to every user of the guest.
_MODE = 0o1777


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

    def remove(self, share_id: str) -> None:
        """Remove the directory with its content. A missing directory is ignored. Raises OSError.

        It is renamed first, so that no guest that starts meanwhile finds half of the content.
        """
        directory, doomed = self.root / share_id, self.deleted / share_id
        if directory.exists():
            self.deleted.mkdir(mode=0o700, exist_ok=True)
            directory.rename(doomed)
            _sync(self.root)
        if doomed.exists():
            shutil.rmtree(doomed)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
