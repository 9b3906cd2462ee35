"""Fixtures for tests against real OpenStack services. They are collected only with KILONOVA_TEST_OPENSTACK=1."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova
from tests.support.forked_clients import forked_clients

# Kilonova reads every variable KILONOVA_… as a setting, so the processes of tests must not inherit it. Processes that
# repeat a failed test inherit the other name.
if os.environ.pop("KILONOVA_TEST_OPENSTACK", None) == "1":
    os.environ["TEST_OPENSTACK"] = "1"

if os.environ.get("TEST_OPENSTACK") != "1":
    collect_ignore_glob = ["*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ci", action="store_true", help="run the part that CI requires")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: not in the part that CI requires")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--ci"):
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    """The cloud of OpenStack services. It is stopped at the end only if it did not run before."""
    cloud = Cloud()
    ran = cloud.is_running()
    try:
        cloud.start()
        yield cloud
    finally:
        if not ran:
            cloud.stop()


@pytest.fixture(scope="session")
def started_kilonova(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kilonova]:
    environ = {"KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3600"}
    with_cloud = Kilonova(cloud, tmp_path_factory.mktemp("kilonova") / "data", environ=environ)
    with_cloud.register()
    with with_cloud as running:
        yield running


@pytest.fixture
def kilonova(started_kilonova: Kilonova) -> Iterator[Kilonova]:
    """Kilonova beside the cloud's services. A test may kill it. Servers of the test are deleted afterwards."""
    if not started_kilonova.running:
        started_kilonova.start()
    yield started_kilonova
    if not started_kilonova.running:
        started_kilonova.start()
    started_kilonova.delete_servers()


@pytest.fixture(scope="session")
def openstack() -> Iterator[Path]:
    """The path of the `openstack` program."""
    # pytest's directories are too long for the path of a socket.
    with tempfile.TemporaryDirectory() as directory, forked_clients(Path(directory)):
        yield Path(directory) / "openstack"
