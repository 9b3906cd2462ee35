"""The simulated hypervisor: every method may be asked twice, and guests outlive the process, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import os_traits
import pytest

from kilonova import clock
from kilonova.hosts import journal as journals
from kilonova.hosts.drivers.base import DriverError, MissingGuest
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import TRAITS, X86_TRAITS, Body
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts, host_name
from kilonova.hosts.journal import Journal, Key
from kilonova.hosts.messages import Flavor, Nic
from kilonova.hosts.transport import StaleEpoch, list_guests
from tests.hosts.support import HOST, guest, spawn, until
from tests.support import run


@pytest.fixture
def driver(tmp_path: Path) -> SimDriver:
    store = SimStore(tmp_path / "sim.db")
    return SimDriver(HOST, {HOST: Body(Size(vcpus=8, memory_mb=4096, disk_gb=100))}, store, Rules(store), {})


def test_spawn_finds_its_own_work(driver: SimDriver) -> None:
    async def scenario() -> None:
        first = await driver.spawn(guest("g"))
        renamed = guest("g", name="db-1", metadata={"new": "yes"})
        assert await driver.spawn(renamed) == first
        await driver.power_off("g")
        assert (await driver.spawn(guest("g"))).power == "running"
        assert len(await driver.guests()) == 1

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
def test_another_guest_of_the_same_id_is_refused(driver: SimDriver, other: object) -> None:
    async def scenario() -> None:
        before = await driver.spawn(guest("g"))
        with pytest.raises(DriverError) as refused:
            await driver.spawn(other)  # type: ignore[arg-type]
        assert refused.value.kind == "guest differs"
        assert await driver.guests() == [before]

    run(scenario())


def test_power_and_destroy_may_be_asked_twice(driver: SimDriver) -> None:
    async def scenario() -> None:
        await driver.spawn(guest("g"))
        assert [(await driver.power_off("g")).power for _ in range(2)] == ["shutdown", "shutdown"]
        assert [(await driver.power_on("g")).boots for _ in range(2)] == [2, 2]
        assert (await driver.reboot("g", hard=False)).boots == 3
        await driver.power_off("g")
        assert (await driver.reboot("g", hard=True)).power == "running"
        for _ in range(2):
            await driver.destroy("g")
        assert await driver.guests() == []
        for method in (driver.power_on, driver.power_off):
            with pytest.raises(MissingGuest):
                await method("g")
        with pytest.raises(MissingGuest):
            await driver.reboot("g", hard=True)

    run(scenario())


def test_it_describes_itself_as_placement_wants_it(driver: SimDriver) -> None:
    async def scenario() -> None:
        facts = await driver.describe()
        memory = facts.inventory["MEMORY_MB"]
        assert (memory.total, memory.reserved, memory.max_unit, memory.allocation_ratio) == (4096, 512, 4096, 1.0)
        assert facts.inventory["VCPU"].allocation_ratio == 4.0
        assert facts.inventory["DISK_GB"].total == 100
        assert facts.host == facts.hypervisor_hostname == HOST

    run(scenario())


def test_its_traits_are_standard_ones() -> None:
    # What says that a host can rebuild servers on a new content of their volume is compute's own.
    assert {*TRAITS, *X86_TRAITS} - set(os_traits.get_traits()) == {"COMPUTE_REBUILD_BFV"}
    assert "COMPUTE_NODE" in TRAITS


def test_hosts_keep_their_names_when_others_are_added() -> None:
    assert [host_name(number) for number in (1, 999, 1000)] == ["sim-001", "sim-999", "sim-1000"]


def test_sizes_by_pattern_and_their_change(tmp_path: Path) -> None:
    big = Size(vcpus=128, memory_mb=1024, disk_gb=10)
    EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=3)).close()
    reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=3, sizes={"*-002": big}))
    facts = run(reach.facts(reach.names))
    assert [fact.inventory["VCPU"].total for fact in facts] == [32, 128, 32]
    assert SimStore(tmp_path / "sim.db").hosts()["sim-002"] == big


@pytest.mark.parametrize("latency", [{"fly": 1.0}, {"spawn": -1.0}, {"spawn": float("nan")}])
def test_a_latency_that_cannot_be_is_named(tmp_path: Path, latency: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"sim\.latency.*{next(iter(latency))}"):
        EmbeddedConfig(directory=tmp_path, latency=latency)


def test_a_host_is_up_since_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def booted(vcpus: int) -> list[float | None]:
        reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1, size=Size(vcpus=vcpus)))
        found = [facts.booted_at for facts in run(reach.facts(reach.names))]
        reach.close()
        return found

    monkeypatch.setattr(clock, "now", lambda: 1000.0)
    assert booted(8) == [1000.0]
    monkeypatch.setattr(clock, "now", lambda: 2000.0)
    assert booted(8) == booted(16) == [1000.0], "neither a restart of the process nor another size is a boot"


def test_a_file_of_an_older_release_is_understood(tmp_path: Path) -> None:
    old = apsw.Connection(str(tmp_path / "sim.db"))
    old.execute("CREATE TABLE hosts (name TEXT PRIMARY KEY, vcpus INTEGER, memory_mb INTEGER, disk_gb INTEGER)")
    old.execute("INSERT INTO hosts VALUES ('sim-001', 32, 131072, 2048)")
    old.close()
    reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
    facts = run(reach.facts(reach.names))[0]
    assert facts.booted_at is not None
    assert clock.now() - 60 < facts.booted_at <= clock.now()


def test_a_thousand_hosts_are_there_at_once(tmp_path: Path) -> None:
    reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1000))
    assert len(run(reach.facts(reach.names))) == 1000


def test_files_are_kept_tidy_while_the_hosts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "TEND_EVERY", 0.01)
    old = Key(HOST, "op-old", "start guest", 0, "spawn", "guest-1")
    journal = Journal(tmp_path / "agents.db")
    with monkeypatch.context() as past:
        past.setattr(clock, "now", lambda: 1000.0)
        journal.raise_epoch(old, 1)

    async def tidied() -> bool:
        try:
            return guests_in_file_alone(tmp_path) == 1
        except apsw.Error:
            return False  # it is just being written

    async def scenario() -> None:
        reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        await reach.call(HOST, spawn())
        assert guests_in_file_alone(tmp_path) == 0, "still in the log"
        tidying = asyncio.create_task(reach.run())
        await until(tidied)
        tidying.cancel()
        assert journal.look(old) == (None, None)

    run(scenario())


def guests_in_file_alone(directory: Path) -> int:
    """How many guests a reader finds who ignores the write-ahead log."""
    uri = f"file:{directory}/sim.db?immutable=1"
    alone = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    if not alone.execute("SELECT 1 FROM sqlite_schema WHERE name = 'guests'").fetchone():
        return 0
    number: int = alone.execute("SELECT count(*) FROM guests").get
    return number


# Runs until killed: spawns one guest after another, and says of each that it is there.
_BUSY = """
import asyncio, sys
from pathlib import Path
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from tests.hosts.support import HOST, spawn

async def main():
    hosts = EmbeddedHosts(EmbeddedConfig(directory=Path(sys.argv[1]), hosts=1))
    number = 0
    while True:
        await hosts.call(HOST, spawn(f"guest-{number}", operation=f"op-{number}", epoch=2))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        for line in busy.stdout:
            if int(line) == 150:
                os.kill(busy.pid, signal.SIGKILL)
                break
        answered = 151 + len(busy.stdout.read().splitlines())

    async def scenario() -> None:
        reach = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        before = {state.id: state for state in await list_guests(reach, HOST)}
        for number in range(answered):
            asked = {"operation": f"op-{number}", "epoch": 2}
            assert await reach.call(HOST, spawn(f"guest-{number}", **asked)) == before[f"guest-{number}"]
        after = {state.id: state for state in await list_guests(reach, HOST)}
        assert after == before, "a repeat changed something"
        with pytest.raises(StaleEpoch):
            await reach.call(HOST, spawn("guest-0", operation="op-0", epoch=1))

    run(scenario())
