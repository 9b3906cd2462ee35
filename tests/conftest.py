"""Fixtures for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.support.databases import (
    database,
    database_url,
    empty_url,
    postgresql_server,
    postgresql_url,
    sqlite_url,
)

__all__ = ["database", "database_url", "empty_url", "postgresql_server", "postgresql_url", "sqlite_url"]

# How long an example takes to make or to try says more of the machine than of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
