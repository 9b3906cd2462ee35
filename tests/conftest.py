"""Fixtures for every test."""

from __future__ import annotations

import pytest
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real guests first: one worker then waits for them while the others compute, and they come not all at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/virt/"))
