"""The memory of a process with its descendants."""

from __future__ import annotations

from pathlib import Path

from tests.openstack.cloud.processes import descendants


def memory(pid: int) -> int:
    """MiB of a process and its descendants (PSS: a page that several processes share counts once)."""
    return sum(map(_kibibytes, descendants(pid))) // 1024


def _kibibytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
