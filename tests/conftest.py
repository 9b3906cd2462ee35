"""Fixtures for every test."""

from __future__ import annotations

from tests.support.databases import (
    database,
    database_url,
    empty_url,
    postgresql_server,
    postgresql_url,
    sqlite_url,
)

__all__ = ["database", "database_url", "empty_url", "postgresql_server", "postgresql_url", "sqlite_url"]
