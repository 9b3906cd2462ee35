"""Fixtures for all tests, and the selection of tests and databases."""

from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import HealthCheck, settings

from tests.support.databases import (
    DIALECTS,
    database,
    database_url,
    empty_url,
    postgresql_server,
    postgresql_url,
    sqlite_url,
)

__all__ = ["database", "database_url", "empty_url", "postgresql_server", "postgresql_url", "sqlite_url"]

pytest_plugins = ["tests.support.recheck"]

# Stock clients read these variables, which name another cloud in the shell of a user.
for name in [name for name in os.environ if name.startswith("OS_")]:
    del os.environ[name]

# The time of an example depends on the machine, so there is no deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# These tests depend on the database and run on both. All others run on one of the two.
ON_BOTH_DATABASES = (
    "tests/faults/",
    "tests/fuzz/",
    "tests/identity/test_concurrency.py",
    "tests/operations/",
    "tests/placement/",
    "tests/scheduler/",
    "tests/store/",
    "tests/test_clock_sync.py",
    "tests/test_purge.py",
)
# Generated for every operation, and run on both databases.
GENERATED_ON_BOTH = "test_each_step_twice"

# Slow tests: they start processes, real guests or another database, or inject many faults.
NOT_QUICK = (
    "tests/cli/",
    "tests/clients/",
    "tests/compute/operations/steps/",
    "tests/compute/operations/test_live_migrate.py",
    "tests/compute/operations/test_move_volumes.py",
    "tests/compute/servers/actions/test_suspend.py",
    "tests/compute/servers/actions/test_live_migrate.py",
    "tests/compute/servers/actions/test_resize_faults.py",
    "tests/compute/test_parallel_boots.py",
    "tests/compute/volume_attachments/test_failed_detach.py",
    "tests/compute/volume_attachments/test_volume_service_unreachable.py",
    "tests/docs/",
    "tests/faults/",
    "tests/fuzz/",
    "tests/hosts/libvirt/",
    "tests/hosts/test_heartbeat_fencing.py",
    "tests/hosts/test_compromised_host.py",
    "tests/hosts/test_nats.py",
    "tests/hosts/sim/test_shapes.py",
    "tests/hosts/sim/test_rules.py",
    "tests/hosts/sim/test_driver_moves.py",
    "tests/identity/test_stock_clients.py",
    "tests/image/test_sdk.py",
    "tests/network/test_sdk.py",
    "tests/placement/candidates/test_search.py",
    "tests/placement/test_fuzz.py",
    "tests/placement/test_gabbits.py",
    "tests/placement/test_osc.py",
    "tests/scheduler/test_parallel.py",
    "tests/scheduler/test_plugins.py",
    "tests/specs/test_volume_rebuild_failures.py",
    "tests/store/test_durability.py",
    "tests/suite/test_recheck.py",
    "tests/suite/test_soak.py",
    "tests/test_companions.py",
    "tests/virt/",
    "tests/volume/exports/",
    "tests/volume/test_sdk.py",
)
# Slow tests among those generated for every operation.
GENERATED_SLOW = ("test_killed_at_each_step", "test_failures_leave_nothing")
# Each xdist worker starts with some of the longest tests, so that none runs them alone at the end.
LONG = ("tests/virt/", "tests/faults/", "tests/virt/", "tests/fuzz/", "tests/cli/", "tests/clients/", "tests/suite/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--both-databases", action="store_true", help="run every test on SQLite and on PostgreSQL")
    parser.addoption("--quick", action="store_true", help="run in-process tests on SQLite only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        items[:] = [item for item in items if _is_quick(item)]
    elif not config.getoption("--both-databases"):
        items[:] = [item for item in items if _is_on_its_database(item)]
    if worker := getattr(config, "workerinput", None):
        items[:] = _spread(items, worker["workercount"])


def _spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """xdist gives each worker one part of the list, all of equal length: each part begins with long tests."""
    rest = [item for item in items if not item.nodeid.startswith(LONG)]
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, folder in enumerate(LONG):
        found = [item for item in items if item.nodeid.startswith(folder)]
        nth, times = LONG[:number].count(folder), LONG.count(folder)
        begin, end = len(found) * nth // times, len(found) * (nth + 1) // times
        parts[number % workers] += found[begin:end]
    size = -(-len(items) // workers)
    for part in parts:
        room = max(0, size - len(part))
        part += rest[:room]
        del rest[:room]
    return [item for part in parts for item in part]


def _is_quick(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    if item.nodeid.startswith(NOT_QUICK) or "postgresql_url" in names or "postgresql_server" in names:
        return False
    return _dialect(item) != "postgresql" and getattr(item, "originalname", "") not in GENERATED_SLOW


def _is_on_its_database(item: pytest.Item) -> bool:
    """Whether the test's name selects this database, so that each directory has tests on both."""
    dialect = _dialect(item)
    if dialect is None or item.nodeid.startswith(ON_BOTH_DATABASES):
        return True
    if getattr(item, "originalname", "") == GENERATED_ON_BOTH:
        return True
    name = item.nodeid.replace("postgresql", "").replace("sqlite", "")
    return DIALECTS[zlib.crc32(name.encode()) % len(DIALECTS)] == dialect


def _dialect(item: pytest.Item) -> str | None:
    """The database of a test that is parametrized by database."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    dialect: str | None = params.get("database_url", params.get("empty_url"))
    return dialect
