"""Reads the log of a guest's serial console."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# Clients expect this limit, and it bounds the size of messages.
MAX_BYTES = 102400


def tail(path: Path, lines: int | None) -> bytes:
    """The last lines, or all up to MAX_BYTES if `lines` is None.

    The host rotates the file when it grows: `….0` is the newest older part, then `….1` and so on.
    """
    content = b""
    for file in _log_files(path):
        if len(content) >= MAX_BYTES or (lines is not None and content.count(b"\n") > lines):
            break
        content = _read_end(file, MAX_BYTES - len(content)) + content
    return content if lines is None else _last_lines(content, lines)


def _log_files(path: Path) -> Iterator[Path]:
    """Newest first."""
    yield path
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)")
    numbered = [
        (int(match[1]), other)
        for other in path.parent.glob(f"{path.name}.*")
        if (match := pattern.fullmatch(other.name))
    ]
    yield from (other for _, other in sorted(numbered))


def _read_end(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - length))
            return file.read(length)
    except FileNotFoundError:
        return b""  # just rotated, or never written


def _last_lines(content: bytes, lines: int) -> bytes:
    if lines <= 0:
        return b""
    # Text after the last newline is a line as well.
    end = b"\n" if content.endswith(b"\n") else b""
    return b"\n".join(content.removesuffix(end).split(b"\n")[-lines:]) + end
