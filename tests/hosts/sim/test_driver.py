"""The simulated driver: its methods are idempotent, and it describes itself for placement."""

from __future__ import annotations

from pathlib import Path

import os_traits
import pytest

from kilonova.hosts.drivers.base import DriverError, MissingGuest
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import TRAITS, X86_TRAITS, Hardware
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.messages import Flavor, Nic
from tests.hosts.support import HOST, guest
from tests.support import run


@pytest.fixture
def driver(tmp_path: Path) -> SimDriver:
    store = SimStore(tmp_path / "sim.db")
    return SimDriver(HOST, {HOST: Hardware(Size(vcpus=8, memory_mb=4096, disk_gb=100))}, store, Rules(store), {})


def test_spawn_is_idempotent(driver: SimDriver) -> None:
    async def scenario() -> None:
        first = await driver.spawn(guest("g"))
        renamed = guest("g", name="db-1", metadata={"new": "yes"})
        assert await driver.spawn(renamed) == first
        await driver.power_off("g")
        assert (await driver.spawn(guest("g"))).power == "running"
        assert len(await driver.list_guests()) == 1

    run(scenario())


@pytest.mark.parametrize(
    "other",
    [
        guest("g", flavor=Flavor(vcpus=2, ram_mb=512, disk_gb=1)),
        guest("g", image=None),
        guest("g", nics=[Nic(port_id="p", mac="fa:16:3e:00:00:09")]),
    ],
    ids=["flavor", "image", "nics"],
)
def test_different_guest_with_same_id_is_refused(driver: SimDriver, other: object) -> None:
    async def scenario() -> None:
        before = await driver.spawn(guest("g"))
        with pytest.raises(DriverError) as refused:
            await driver.spawn(other)  # type: ignore[arg-type]
        assert refused.value.kind == "guest differs"
        assert await driver.list_guests() == [before]

    run(scenario())


def test_power_and_destroy_are_idempotent(driver: SimDriver) -> None:
    async def scenario() -> None:
        await driver.spawn(guest("g"))
        assert [(await driver.power_off("g")).power for _ in range(2)] == ["shutdown", "shutdown"]
        assert [(await driver.power_on("g")).boots for _ in range(2)] == [2, 2]
        assert (await driver.reboot("g", hard=False)).boots == 3
        await driver.power_off("g")
        assert (await driver.reboot("g", hard=True)).power == "running"
        for _ in range(2):
            await driver.destroy("g")
        assert await driver.list_guests() == []
        for method in (driver.power_on, driver.power_off):
            with pytest.raises(MissingGuest):
                await method("g")
        with pytest.raises(MissingGuest):
            await driver.reboot("g", hard=True)

    run(scenario())


def test_describe_reports_inventory(driver: SimDriver) -> None:
    async def scenario() -> None:
        facts = await driver.describe()
        memory = facts.inventory["MEMORY_MB"]
        assert (memory.total, memory.reserved, memory.max_unit, memory.allocation_ratio) == (4096, 512, 4096, 1.0)
        assert facts.inventory["VCPU"].allocation_ratio == 4.0
        assert facts.inventory["DISK_GB"].total == 100
        assert facts.host == facts.hypervisor_hostname == HOST

    run(scenario())


def test_traits_are_standard() -> None:
    # COMPUTE_REBUILD_BFV is not in os_traits.
    assert {*TRAITS, *X86_TRAITS} - set(os_traits.get_traits()) == {"COMPUTE_REBUILD_BFV"}
    assert "COMPUTE_NODE" in TRAITS
