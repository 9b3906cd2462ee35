"""The simulated hosts of a process: their names, sizes, files, and survival of kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from kilonova import clock
from kilonova.hosts import journal as journal_module
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts, host_name
from kilonova.hosts.journal import Journal, Key
from kilonova.hosts.transport import StaleEpoch, list_guests
from kilonova.store.incarnation import Mark
from tests.hosts.support import HOST, spawn, until
from tests.support import run


def test_host_names_are_stable() -> None:
    assert [host_name(number) for number in (1, 999, 1000)] == ["sim-001", "sim-999", "sim-1000"]


def test_sizes_by_pattern_replace_stored_sizes(tmp_path: Path) -> None:
    big = Size(vcpus=128, memory_mb=1024, disk_gb=10)
    EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=3)).close()
    hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=3, sizes={"*-002": big}))
    facts = run(hosts.facts(hosts.names))
    assert [fact.inventory["VCPU"].total for fact in facts] == [32, 128, 32]
    assert SimStore(tmp_path / "sim.db").hosts()["sim-002"] == big


@pytest.mark.parametrize("latency", [{"fly": 1.0}, {"spawn": -1.0}, {"spawn": float("nan")}])
def test_invalid_latency_is_refused(tmp_path: Path, latency: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"sim\.latency.*{next(iter(latency))}"):
        EmbeddedConfig(directory=tmp_path, latency=latency)


def test_boot_time_is_creation_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def booted(vcpus: int) -> list[float | None]:
        hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1, size=Size(vcpus=vcpus)))
        found = [facts.booted_at for facts in run(hosts.facts(hosts.names))]
        hosts.close()
        return found

    monkeypatch.setattr(clock, "now", lambda: 1000.0)
    assert booted(8) == [1000.0]
    monkeypatch.setattr(clock, "now", lambda: 2000.0)
    assert booted(8) == booted(16) == [1000.0], "neither a restart of the process nor a resize is a boot"


def test_sim_file_of_older_release_is_upgraded(tmp_path: Path) -> None:
    old = apsw.Connection(str(tmp_path / "sim.db"))
    old.execute("CREATE TABLE hosts (name TEXT PRIMARY KEY, vcpus INTEGER, memory_mb INTEGER, disk_gb INTEGER)")
    old.execute("INSERT INTO hosts VALUES ('sim-001', 32, 131072, 2048)")
    old.close()
    hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
    facts = run(hosts.facts(hosts.names))[0]
    assert facts.booted_at is not None
    assert clock.now() - 60 < facts.booted_at <= clock.now()


def test_thousand_hosts_are_described(tmp_path: Path) -> None:
    hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1000))
    assert len(run(hosts.facts(hosts.names))) == 1000


def test_run_prunes_and_checkpoints_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAINTENANCE_INTERVAL_SECONDS", 0.01)
    old = Key(HOST, "op-old", "start guest", 0, "spawn", "guest-1")
    journal = Journal(tmp_path / "agents.db")

    async def is_checkpointed() -> bool:
        try:
            return guests_in_file(tmp_path) == 1
        except apsw.Error:
            return False  # the file is being written

    async def scenario() -> None:
        with monkeypatch.context() as past:
            past.setattr(clock, "now", lambda: 1000.0)
            await journal.raise_epoch(old, 1, Mark())
        hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        await hosts.call(HOST, spawn())
        assert guests_in_file(tmp_path) == 0, "still in the write-ahead log"
        running = asyncio.create_task(hosts.run())
        await until(is_checkpointed)
        running.cancel()
        assert journal.find(old) == (None, None)

    run(scenario())


def guests_in_file(directory: Path) -> int:
    """Return the number of guests in the file without its write-ahead log."""
    uri = f"file:{directory}/sim.db?immutable=1"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'guests'").fetchone():
        return 0
    number: int = connection.execute("SELECT count(*) FROM guests").get
    return number


# Spawns guests until killed, and prints the number of each.
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


def test_answered_spawns_survive_kill(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _BUSY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        for line in busy.stdout:
            if int(line) == 150:
                os.kill(busy.pid, signal.SIGKILL)
                break
        answered = 151 + len(busy.stdout.read().splitlines())

    async def scenario() -> None:
        hosts = EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=1))
        before = {state.id: state for state in await list_guests(hosts, HOST)}
        for number in range(answered):
            key = {"operation": f"op-{number}", "epoch": 2}
            assert await hosts.call(HOST, spawn(f"guest-{number}", **key)) == before[f"guest-{number}"]
        after = {state.id: state for state in await list_guests(hosts, HOST)}
        assert after == before, "a repeat changed something"
        with pytest.raises(StaleEpoch):
            await hosts.call(HOST, spawn("guest-0", operation="op-0", epoch=1))

    run(scenario())
