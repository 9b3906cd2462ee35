"""Shared hosts and clouds. Each test worker starts them once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_clients import forked_clients
from tests.support.virt_cloud import RealCloud
from tests.support.virt_driver import DriverBench
from tests.support.virt_hosts import Host, Site, temporary_site
from tests.virt.clouds import CLOUD_KINDS, Clouds, OpenstackClient
from tests.virt.move_support import HostPair, host_pair
from tests.virt.network_support import Fabric, Fabrics

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests so that those of one kind of cloud run together."""
    kinds = list(CLOUD_KINDS)

    def kind(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return next((number for number, name in enumerate(kinds) if name in names), -1)

    here = [number for number, item in enumerate(items) if item.path.is_relative_to(_HERE)]
    for number, item in zip(here, sorted((items[number] for number in here), key=kind), strict=True):
        items[number] = item


@pytest.fixture(scope="package")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    created = Clouds(tmp_path_factory.mktemp("clouds"))
    yield created
    created.close()


@pytest.fixture(scope="module")
def short_timeouts(clouds: Clouds) -> RealCloud:
    return clouds.get("short_timeouts")


@pytest.fixture(scope="module")
def shared_disks(clouds: Clouds) -> RealCloud:
    return clouds.get("shared_disks")


@pytest.fixture(scope="module")
def long_timeouts(clouds: Clouds) -> RealCloud:
    return clouds.get("long_timeouts")


@pytest.fixture(scope="package")
def openstack_program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory, forked_clients(Path(directory)):
        yield Path(directory) / "openstack"


@pytest.fixture
def openstack(openstack_program: Path, long_timeouts: RealCloud) -> OpenstackClient:
    return OpenstackClient(openstack_program, long_timeouts)


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    with temporary_site() as created:
        yield created


@pytest.fixture(scope="package")
def host(site: Site) -> Host:
    return site.host("one")


@pytest.fixture
def bench(host: Host, request: pytest.FixtureRequest) -> Iterator[DriverBench]:
    """Drivers on the host with a directory for this test. Removes remaining guests afterwards."""
    if not host.is_on:
        host.power_on()
    created = DriverBench(host, host.directory / "benches" / request.node.name[:80])
    try:
        yield created
    finally:
        with contextlib.suppress(Exception):
            created.remove_domains()


@pytest.fixture(scope="package")
def local_pair() -> Iterator[HostPair]:
    """Two hosts without shared storage."""
    with host_pair() as hosts:
        yield hosts


@pytest.fixture(scope="package")
def shared_pair() -> Iterator[HostPair]:
    """Two hosts with shared storage."""
    with host_pair(shared_storage=True) as hosts:
        yield hosts


@pytest.fixture(scope="package")
def fabrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabrics]:
    created = Fabrics(tmp_path_factory.mktemp("fabrics"))
    yield created
    created.end()


@pytest.fixture
def fabric(fabrics: Fabrics) -> Iterator[Fabric]:
    """Hosts with networks only, in a clean state."""
    with fabrics.use() as created:
        yield created
