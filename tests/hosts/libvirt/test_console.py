"""Reading the console log, including rotated files."""

from __future__ import annotations

from pathlib import Path

from kilonova.hosts.drivers.libvirt.console import MAX_BYTES, tail


def test_tail_returns_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert tail(path, 2) == b"two\nthree\n"
    assert tail(path, 99) == tail(path, None) == b"one\ntwo\nthree\n"
    assert tail(path, 0) == b""
    path.write_bytes(b"one\ntwo\nlogin: ")
    assert tail(path, 2) == b"two\nlogin: "


def test_missing_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "console.log", None) == tail(tmp_path / "console.log", 5) == b""


def test_rotated_logs_are_included(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"newest\n")
    (tmp_path / "console.log.0").write_bytes(b"second\nthird")
    (tmp_path / "console.log.1").write_bytes(b"first\n")
    (tmp_path / "console.log.new").write_bytes(b"not ours\n")
    assert tail(path, None) == b"first\nsecond\nthirdnewest\n"
    assert tail(path, 2) == b"second\nthirdnewest\n"
    assert tail(path, 3) == b"first\nsecond\nthirdnewest\n"


def test_rotated_logs_are_ordered_by_number(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"12\n")
    for number in range(12):
        (tmp_path / f"console.log.{number}").write_bytes(f"{11 - number}\n".encode())
    assert tail(path, None).split() == [str(number).encode() for number in range(13)]


def test_length_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"x" * MAX_BYTES * 2 + b"end\n")
    (tmp_path / "console.log.0").write_bytes(b"y" * MAX_BYTES)
    for lines in (None, 1, 5):
        assert len(tail(path, lines)) == MAX_BYTES
        assert tail(path, lines).endswith(b"xend\n")


def test_bytes_are_returned_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    path.write_bytes(b"\xff\xfe\x00\x1b[0m\r\n\x80\n")
    assert tail(path, None) == b"\xff\xfe\x00\x1b[0m\r\n\x80\n"
    assert tail(path, 1) == b"\x80\n"
