"""A host with libvirt for tests that speak to the driver itself. A worker starts one, and its tests share it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.virt_driver import Bench
from tests.support.virt_hosts import Host, Site, site
from tests.virt.moving_guests import Pair, pair


@pytest.fixture(scope="session")
def place() -> Iterator[Site]:
    with site() as made:
        yield made


@pytest.fixture(scope="session")
def host(place: Site) -> Host:
    return place.host("one")


@pytest.fixture
def bench(host: Host, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Drivers on the host with a directory of this test alone; whatever guests are left go."""
    if not host.is_on:
        host.power_on()
    made = Bench(host, host.directory / "benches" / request.node.name[:80])
    try:
        yield made
    finally:
        with contextlib.suppress(Exception):
            made.clear()


@pytest.fixture(scope="session")
def apart() -> Iterator[Pair]:
    """Two hosts, each with disks of its own."""
    with pair() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def together() -> Iterator[Pair]:
    """Two hosts that share the storage of disks."""
    with pair(shared=True) as hosts:
        yield hosts
