"""Hosts and clouds that tests share. A worker starts each once, and ends them before tests that need none."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stock_client import forking
from tests.support.virt_cloud import RealCloud
from tests.support.virt_driver import Bench
from tests.support.virt_hosts import Host, Site, site
from tests.virt.clouds import KINDS, Client, Clouds
from tests.virt.moving_guests import Pair, pair
from tests.virt.network_hosts import Fabric, Fabrics

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one kind of cloud follow each other."""
    kinds = list(KINDS)

    def kind(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return next((number for number, name in enumerate(kinds) if name in names), -1)

    here = [number for number, item in enumerate(items) if item.path.is_relative_to(_HERE)]
    for number, item in zip(here, sorted((items[number] for number in here), key=kind), strict=True):
        items[number] = item


@pytest.fixture(scope="package")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    made = Clouds(tmp_path_factory.mktemp("clouds"))
    yield made
    made.close()


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
def program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory, forking(Path(directory)):
        yield Path(directory) / "openstack"


@pytest.fixture
def openstack(program: Path, long_timeouts: RealCloud) -> Client:
    return Client(program, long_timeouts)


@pytest.fixture(scope="package")
def place() -> Iterator[Site]:
    with site() as made:
        yield made


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def apart() -> Iterator[Pair]:
    """Two hosts, each with disks of its own."""
    with pair() as hosts:
        yield hosts


@pytest.fixture(scope="package")
def together() -> Iterator[Pair]:
    """Two hosts that share the storage of disks."""
    with pair(shared=True) as hosts:
        yield hosts


@pytest.fixture(scope="package")
def fabrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabrics]:
    made = Fabrics(tmp_path_factory.mktemp("fabrics"))
    yield made
    made.end()


@pytest.fixture
def fabric(fabrics: Fabrics) -> Iterator[Fabric]:
    """Hosts that have nothing but networks, as if this test were the first to use them."""
    with fabrics.use() as made:
        yield made
