"""What a guest has written to its serial console, as far as the host keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# More than this is never given: it is what clients expect, and a message should carry no more.
MOST_BYTES = 102400


def tail(path: Path, lines: int | None) -> bytes:
    """The last lines; None for all that may be given. The bytes are the guest's own, whatever they are.

    The host cuts the file when it grows, and keeps what was before as `….0`, the newest, `….1` and so on.
    """
    wanted = MOST_BYTES
    content = b""
    for part in _parts(path):
        if len(content) >= wanted or (lines is not None and _count(content) > lines):
            break
        content = _end(part, wanted - len(content)) + content
    return content if lines is None else _last(content, lines)


def _parts(path: Path) -> Iterator[Path]:
    """Newest first."""
    yield path
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)")
    numbered = [
        (int(match[1]), other)
        for other in path.parent.glob(f"{path.name}.*")
        if (match := pattern.fullmatch(other.name))
    ]
    yield from (other for _, other in sorted(numbered))


def _end(path: Path, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - length))
            return file.read(length)
    except FileNotFoundError:
        return b""  # cut just now, or never written


def _count(content: bytes) -> int:
    return content.count(b"\n")


def _last(content: bytes, lines: int) -> bytes:
    if lines <= 0:
        return b""
    # Whole lines end; what stands after the last end is a line as well.
    end = b"\n" if content.endswith(b"\n") else b""
    return b"\n".join(content.removesuffix(end).split(b"\n")[-lines:]) + end
