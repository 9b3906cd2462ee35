"""Database URLs: `sqlite:///abs/path.db` or `postgresql://user@host/name`."""

from __future__ import annotations

from pathlib import Path


def dialect_of(url: str) -> str:
    if url.startswith("sqlite://"):
        return "sqlite"
    if url.startswith(("postgresql://", "postgres://")):
        return "postgresql"
    raise ValueError("the database URL must begin with sqlite:/// or postgresql://")


def sqlite_path(url: str) -> Path:
    """The absolute path of a SQLite URL, however many slashes the URL has."""
    path = "/" + url.removeprefix("sqlite://").lstrip("/")
    if path == "/":
        raise ValueError("the database URL has no path; expected sqlite:///path/to/file.db")
    return Path(path)
