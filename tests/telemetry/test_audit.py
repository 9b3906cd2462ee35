"""The file of the audit log: rotation, a full disk, and lines that are written in part."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.telemetry.audit import AuditLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def audit(path: Path) -> Iterator[AuditLog]:
    made = AuditLog(str(path))
    yield made
    made.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def actions(path: Path) -> list[str]:
    return [line["action"] for line in lines(path)]


def test_file_is_private_and_appended_to(audit: AuditLog, path: Path) -> None:
    audit.write({"action": "a"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = AuditLog(str(path))
    again.write({"action": "b"})
    audit.write({"action": "c"})
    again.close()
    assert actions(path) == ["a", "b", "c"]


def test_moved_or_deleted_file_is_opened_again(audit: AuditLog, path: Path) -> None:
    audit.write({"action": "a"})
    path.rename(path.with_suffix(".1"))
    audit.write({"action": "b"})
    audit.write({"action": "c"})
    assert (actions(path.with_suffix(".1")), actions(path)) == (["a"], ["b", "c"])
    path.unlink()
    audit.write({"action": "d"})
    assert actions(path) == ["d"]
    path.write_bytes(b"")  # copytruncate
    audit.write({"action": "e"})
    assert actions(path) == ["e"]


def test_lost_lines_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """/dev/full refuses every write as a full disk does."""
    link = tmp_path / "audit.log"
    link.symlink_to("/dev/full")
    audit = AuditLog(str(link))
    for _ in range(3):
        audit.write({"action": "lost"})
    assert [record.getMessage() for record in caplog.records] == [
        "the audit log cannot be written: [Errno 28] No space left on device"
    ]
    link.unlink()
    for name in ("a", "b"):
        audit.write({"action": name})
    audit.close()
    assert actions(link) == ["lose", "a", "b"]
    assert lines(link)[0]["target"] == {"type": "audit/lines", "count": 3}
    assert lines(link)[0]["reason"] == {"text": "No space left on device"}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_line_written_in_part_does_not_damage_the_next(audit: AuditLog, path: Path) -> None:
    audit.write({"action": "a"})
    with file_size_limit(path.stat().st_size + 20):
        for _ in range(3):
            audit.write({"action": "lost"})
    audit.write({"action": "b"})
    first, part, *rest = path.read_bytes().splitlines()
    assert len(part) == 20
    assert orjson.loads(first)["action"] == "a"
    assert [orjson.loads(line)["action"] for line in rest] == ["lose", "b"]
    assert orjson.loads(rest[0])["target"]["count"] == 3
