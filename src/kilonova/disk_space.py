"""The reserve of the data directory: free disk space that images and volumes leave to the database."""

from __future__ import annotations

import os
from pathlib import Path

_GIB = 1 << 30


def available_bytes(directory: Path, reserved_gb: float) -> int:
    """How many bytes may be written until only the reserve is free; negative if less than the reserve is free."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize - int(reserved_gb * _GIB)
