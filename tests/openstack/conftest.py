"""Fixtures for tests against real OpenStack services. They are collected only with KILONOVA_TEST_OPENSTACK=1."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.openstack.cloud import Cloud

# Kilonova reads every variable KILONOVA_… as a setting, so the processes of tests must not inherit it. Processes that
# repeat a failed test inherit the other name.
if os.environ.pop("KILONOVA_TEST_OPENSTACK", None) == "1":
    os.environ["TEST_OPENSTACK"] = "1"

if os.environ.get("TEST_OPENSTACK") != "1":
    collect_ignore_glob = ["*"]


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
