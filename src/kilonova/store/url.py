"""Database URLs: `sqlite:///abs/path.db` or `postgresql://user@host/name`."""

from __future__ import annotations

from pathlib import Path


def dialect_of(url: str) -> str:
    if url.startswith("sqlite://"):
        return "sqlite"
    if url.startswith(("postgresql://", "postgres://")):
        return "postgresql"
    raise ValueError("database URL must begin with sqlite:/// or postgresql://")


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. It is always absolute, however many slashes the URL has."""
    path = "/" + url.removeprefix("sqlite://").lstrip("/")
    if path == "/":
        raise ValueError("database URL names no file: sqlite:///path/to/file.db")
    return Path(path)
