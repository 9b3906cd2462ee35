"""Failure and latency rules of simulated hosts, set by `kilonova sim` in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.messages.verbs import Destroy, Park
from kilonova.hosts.transport import HostRefused, HostUnreachable, describe, list_guests
from tests.hosts.support import HOST, command, spawn
from tests.support import run
from tests.support.cloud_process import kilonova

Cli = Callable[..., str]


@pytest.fixture
def hosts(tmp_path: Path) -> EmbeddedHosts:
    return EmbeddedHosts(EmbeddedConfig(directory=tmp_path, hosts=3, timeout=60))


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def call(*arguments: str, status: int = 0, fresh: bool = False) -> str:
        done = kilonova("sim", *arguments, "--data", str(tmp_path), fresh=fresh)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    return call


async def outcome(hosts: EmbeddedHosts, host: str, operation: str) -> str:
    try:
        await hosts.call(host, spawn(f"guest-{operation}", operation=operation, host=host))
    except HostRefused as failed:
        return failed.message
    except HostUnreachable:
        return "unreachable"
    return "ok"


def test_fail_rule_applies_to_its_host_and_times(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        assert await outcome(hosts, HOST, "op-0") == "ok"
        cli("fail", "--host", HOST, "--step", "spawn", "--times", "2", "--message", "disk full")
        assert await outcome(hosts, "sim-002", "op-1") == "ok"
        assert len(await list_guests(hosts, HOST)) == 1
        outcomes = [await outcome(hosts, HOST, "op-2") for _ in range(3)]
        assert outcomes == ["disk full", "disk full", "ok"]
        listed = cli("list").splitlines()
        assert listed[1].split() == ["1", HOST, "spawn", "fails,", "2", "times:", "disk", "full", "2", "(spent)"]

    run(scenario())


def test_fail_rule_for_all_hosts_holds_until_cleared(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("fail", "--host", "*", "--step", "spawn", fresh=True)
        failed = "simulated failure of spawn"
        assert [await outcome(hosts, host, "op-1") for host in hosts.names] == [failed] * 3
        assert cli("clear", fresh=True) == "1 removed\n"
        assert [await outcome(hosts, host, "op-1") for host in hosts.names] == ["ok"] * 3
        assert cli("list").splitlines() == ["RULE  HOST  STEP  EFFECT  APPLIED"]

    run(scenario())


def test_unreachable_rule_cuts_host_off(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("fail", "--host", "sim-002", "--mode", "unreachable")
        assert await outcome(hosts, "sim-002", "op-1") == "unreachable"
        with pytest.raises(HostUnreachable):
            await describe(hosts, "sim-002")
        assert hosts.unreachable(hosts.names) == ["sim-002"]
        assert [facts.host for facts in await hosts.facts(hosts.names)] == ["sim-001", "sim-003"]
        cli("clear", "--host", "sim-002")
        assert hosts.unreachable(hosts.names) == []
        assert await outcome(hosts, "sim-002", "op-1") == "ok"

    run(scenario())


def test_single_lost_answer_keeps_host_reachable(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("fail", "--host", HOST, "--step", "spawn", "--mode", "unreachable", "--times", "1")
        assert hosts.unreachable(hosts.names) == []
        assert [await outcome(hosts, HOST, "op-1") for _ in range(2)] == ["unreachable", "ok"]

    run(scenario())


def test_hang_ends_when_rule_is_cleared(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("fail", "--host", HOST, "--step", "spawn", "--mode", "hang")
        with pytest.raises(HostUnreachable):
            await hosts.call(HOST, spawn(), timeout=0.1)
        assert await list_guests(hosts, HOST) == []
        repeat = asyncio.create_task(hosts.call(HOST, spawn()))
        await asyncio.to_thread(cli, "clear")
        assert (await repeat).boots == 1

    run(scenario())


def test_guest_with_hanging_spawn_can_be_destroyed(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("fail", "--host", HOST, "--step", "spawn", "--mode", "hang")
        with pytest.raises(HostUnreachable):
            await hosts.call(HOST, spawn(), timeout=0.1)
        await hosts.call(HOST, command(Destroy(guest_id="guest-1")), timeout=30)
        cli("clear")
        await asyncio.sleep(0.15)
        assert await list_guests(hosts, HOST) == []

    run(scenario())


def test_newest_matching_latency_wins(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("latency", "--step", "spawn", "--seconds", "30", fresh=True)
        cli("latency", "--step", "spawn", "--seconds", "1")
        assert "30" not in cli("list", fresh=True), "a rule for the same host and step is replaced"
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await outcome(hosts, HOST, "op-1") == "ok"
        assert loop.time() - began >= 1
        cli("latency", "--step", "spawn", "--seconds", "300")
        cli("latency", "--step", "spawn", "--seconds", "0", "--host", "sim-003")
        assert await outcome(hosts, "sim-003", "op-1") == "ok", "the rule of 0 seconds exempts the host"

    run(scenario())


def test_rule_with_chance_strikes_sometimes(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        printed = cli("fail", "--step", "spawn", "--chance", "0.5", "--mode", "unreachable")
        assert printed == "rule 1: spawn on every host gets no response until cleared, in 50 % of the cases\n"
        assert hosts.unreachable(hosts.names) == [], "a host that answers sometimes is reachable"
        outcomes = {await outcome(hosts, HOST, f"op-{number}") for number in range(60)}
        assert outcomes == {"ok", "unreachable"}
        applied = int(cli("list").split()[-1])
        assert 0 < applied < 60

    run(scenario())


def test_next_latency_applies_when_chance_does_not_strike(hosts: EmbeddedHosts, cli: Cli) -> None:
    async def scenario() -> None:
        cli("latency", "--host", HOST, "--step", "spawn", "--seconds", "0.2")
        cli("latency", "--step", "spawn", "--seconds", "0", "--chance", "0.5")
        loop = asyncio.get_running_loop()
        slow: set[bool] = set()
        async with asyncio.timeout(60):
            while slow != {False, True}:
                began = loop.time()
                assert await outcome(hosts, HOST, f"op-{began}") == "ok"
                slow.add(loop.time() - began >= 0.2)
        assert "takes 0 s, in 50 % of the cases" in cli("list")

    run(scenario())


def test_sim_guests_lists_hosts_and_slots(hosts: EmbeddedHosts, cli: Cli) -> None:
    run(outcome(hosts, "sim-002", "op-1"))
    head, line = cli("guests", fresh=True).splitlines()
    assert head.split() == ["HOST", "ID", "NAME", "POWER", "BOOTS", "CREATED", "DISK", "SLOT"]
    _, *words, disk, slot = line.split()
    assert words[:4] == ["guest-op-1", "web-1", "running", "1"]
    assert slot == "-"
    run(hosts.call("sim-002", command(Park(guest_id="guest-op-1", slot="op-2"), host="sim-002")))
    assert cli("guests").splitlines()[1].split()[-2:] == [disk, "op-2"]
    assert "guest-op-1" not in cli("guests", "--host", HOST)


@pytest.mark.parametrize(
    "arguments, message, status",
    [
        (("fail", "--host", "sim-999"), "--host: no simulated host matches 'sim-999'", 1),
        (("fail", "--host", HOST, "--step", "fly"), "'--step'", 2),
        (("fail", "--host", HOST, "--times", "0"), "'--times'", 2),
        (("fail", "--host", HOST, "--mode", "explode"), "'--mode'", 2),
        (("fail", "--chance", "0"), "'--chance'", 2),
        (("fail", "--chance", "1.1"), "'--chance'", 2),
        (("latency", "--seconds", "1", "--chance", "nan"), "'--chance'", 2),
        (("latency", "--seconds", "-1"), "'--seconds'", 2),
        (("latency", "--seconds", "nan"), "'--seconds'", 2),
        (("latency", "--seconds", "inf"), "'--seconds'", 2),
    ],
)
def test_invalid_option_is_refused(
    hosts: EmbeddedHosts, cli: Cli, arguments: tuple[str, ...], message: str, status: int
) -> None:
    assert message in cli(*arguments, status=status)
    assert cli("list").splitlines() == ["RULE  HOST  STEP  EFFECT  APPLIED"]


def test_directory_without_sim_file_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert f"--data: {tmp_path} has no simulated hosts" in cli("list", status=1)
    assert list(tmp_path.iterdir()) == []
