"""A small file system in memory, for tests of full disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[None]:
    """Mount an empty file system at the directory. Skips the test if this process may not mount."""
    directory.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("file systems cannot be mounted, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("needs the permission to mount file systems")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def free_bytes(directory: Path) -> int:
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize
