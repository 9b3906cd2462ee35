"""Remote hosts: known from their reports, together with the hosts of the process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova import clock
from kilonova.hosts import remote
from kilonova.hosts.drivers.sim.facts import Hardware, host_facts
from kilonova.hosts.messages import Command, HostFacts, Report
from kilonova.hosts.messages.verbs import Describe
from kilonova.hosts.remote import AllHosts, RemoteHosts
from kilonova.hosts.transport import HostUnreachable, describe
from tests.support import run
from tests.support.full_cloud import full_cloud

A = "sim-001"


class Broker:
    """Answers for the hosts in `facts`. `restarted`: hosts whose pending calls were failed."""

    def __init__(self, *hosts: str) -> None:
        self.facts: dict[str, HostFacts] = {host: host_facts(host, Hardware()) for host in hosts}
        self.calls: list[str] = []
        self.restarted: list[str] = []
        self.hanging = ""

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        assert isinstance(command.verb, Describe)
        self.calls.append(host)
        if host == self.hanging:
            await asyncio.sleep(3600)
        if host not in self.facts:
            raise HostUnreachable(host, "no agent is connected for it")
        return self.facts[host]

    def agent_restarted(self, host: str) -> None:
        self.restarted.append(host)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        monkeypatch.setattr(clock, "now", lambda: self.time)


def test_host_without_reports_becomes_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    time, woken = Clock(monkeypatch), list[int]()
    hosts = RemoteHosts(Broker("a"), report_seconds=5)
    hosts.on_change = lambda: woken.append(1)
    assert (list(hosts.names), hosts.unreachable(["a"])) == ([], ["a"])
    hosts.receive_report(Report(host="a", boot="1"))
    assert (list(hosts.names), hosts.unreachable(["a"]), len(woken)) == (["a"], [], 1)
    time.time += 10
    hosts.receive_report(Report(host="a", boot="1"))
    assert len(woken) == 1
    time.time += 16
    assert (list(hosts.names), hosts.unreachable(["a"])) == (["a"], ["a"])
    hosts.receive_report(Report(host="a", boot="1"))
    assert (hosts.unreachable(["a"]), len(woken)) == ([], 2), "the host is reachable again"


def test_longer_report_interval_extends_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Clock(monkeypatch)
    hosts = RemoteHosts(Broker("a"), report_seconds=5)
    hosts.receive_report(Report(host="a", boot="1", seconds=60))
    time.time += 100
    assert hosts.unreachable(["a"]) == []
    time.time += 100
    assert hosts.unreachable(["a"]) == ["a"]


def test_second_agent_of_same_host_is_detected(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    time = Clock(monkeypatch)
    hosts = RemoteHosts(Broker("a"), report_seconds=5)
    for boot in ("1", "2", "1", "2", "1"):
        hosts.receive_report(Report(host="a", boot=boot))
        time.time += 1
    assert hosts.unreachable(["a"]) == ["a"]
    assert [record.levelname for record in caplog.records if "two agents" in record.message] == ["ERROR"]
    for _ in range(40):
        hosts.receive_report(Report(host="a", boot="1"))
        time.time += 1
    assert hosts.unreachable(["a"]) == [], "one of the two agents was stopped"


def test_facts_are_outdated_after_agent_restart_and_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        time, broker = Clock(monkeypatch), Broker("a")
        hosts = RemoteHosts(broker, report_seconds=5)
        hosts.receive_report(Report(host="a", boot="1"))
        assert hosts.outdated(["a"]) == ["a"]
        await hosts.facts(["a"])
        assert hosts.outdated(["a"]) == []
        hosts.receive_report(Report(host="a", boot="2"))
        assert (hosts.outdated(["a"]), broker.restarted) == (["a"], ["a"])
        await hosts.facts(["a"])
        time.time += remote.DESCRIBE_INTERVAL_SECONDS + 1
        assert hosts.outdated(["a"]) == ["a"]
        broker.facts["a"] = host_facts("b", Hardware())
        assert await hosts.facts(["a"]) == [], "the agent describes another host"
        del broker.facts["a"]
        assert await hosts.facts(["a"]) == []
        assert hosts.outdated(["a"]) == ["a"]

    run(scenario())


def test_local_host_takes_precedence_over_remote_one(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            broker = Broker("far", A)
            hosts = AllHosts(c.hosts, RemoteHosts(broker, report_seconds=600))
            assert hosts.receive_report(Report(host="far", boot="1"))
            assert not hosts.receive_report(Report(host=A, boot="1"))
            assert list(hosts.names) == [A, "far"]
            assert [found.host for found in await hosts.facts([A, "far"])] == [A, "far"]
            assert broker.calls == ["far"]
            assert hosts.unreachable([A, "far", "unknown"]) == ["unknown"]
            with pytest.raises(HostUnreachable):
                await describe(hosts, "unknown")

    run(scenario())
