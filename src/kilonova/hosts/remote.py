"""Hosts whose agents run in other processes: known from their reports, reached through a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from kilonova import clock
from kilonova.hosts.heartbeat import ServedHosts
from kilonova.hosts.messages import Command, HostFacts, Report
from kilonova.hosts.messages.verbs import Answer, Verb
from kilonova.hosts.transport import Transport, describe_reachable

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT_SECONDS = 5.0
# A host counts as unreachable after this many missing reports in a row.
_MISSED_REPORTS = 3
# Reports of an earlier agent that prove it still runs. A single one may have been under way when the agent stopped.
_DUPLICATE_REPORTS = 2
# A host's facts may change while it runs.
DESCRIBE_INTERVAL_SECONDS = 60.0


class Broker(Transport, Protocol):
    def agent_restarted(self, host: str) -> None:
        """Fail the host's pending calls: the restarted agent does not answer them."""


class _LastReport(NamedTuple):
    at: float
    boot: str
    # The host counts as unreachable this long after the report.
    timeout: float = 0.0


class RemoteHosts:
    """`report_seconds`: the expected interval of reports; a report may announce a longer one.

    `on_change` is called when a host is new, reachable again, or has a restarted agent.
    """

    def __init__(self, broker: Broker, *, report_seconds: float) -> None:
        self._broker = broker
        self._report_seconds = report_seconds
        self._last_reports: dict[str, _LastReport] = {}
        self._described: dict[str, _LastReport] = {}
        # By host: the boots of earlier agents, each with the number of reports received since it was replaced.
        self._earlier_boots: dict[str, dict[str, int]] = {}
        # Hosts with two agents, and when the earlier agent reported last.
        self._duplicates: dict[str, float] = {}
        self.on_change: Callable[[], None] = lambda: None

    @property
    def names(self) -> Sequence[str]:
        return list(self._last_reports)

    def receive_report(self, report: Report) -> None:
        host, now = report.host, clock.now()
        last = self._last_reports.get(host)
        timeout = _MISSED_REPORTS * max(self._report_seconds, report.seconds)
        self._last_reports[host] = _LastReport(now, report.boot, timeout)
        if last is None:
            log.info("host %s reports for the first time", host)
        elif last.boot != report.boot:
            self._check_restart(host, last, report)
        elif now - last.at <= last.timeout:
            return
        self.on_change()

    def _check_restart(self, host: str, last: _LastReport, report: Report) -> None:
        """Tell a restarted agent from a second agent of the same name: the latter's boot was seen before."""
        earlier = self._earlier_boots.setdefault(host, {})
        earlier.setdefault(last.boot, 0)
        if report.boot not in earlier:
            log.info("the agent of host %s was restarted", host)
            self._broker.agent_restarted(host)
            return
        earlier[report.boot] += 1
        if earlier[report.boot] < _DUPLICATE_REPORTS:
            return
        if host not in self._duplicates:
            log.error("two agents report as host %s: it counts as unreachable until one of them is stopped", host)
        self._duplicates[host] = clock.now()

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        return await self._broker.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        names, now = list(hosts), clock.now()
        boots = {host: self._last_reports[host].boot for host in names if host in self._last_reports}
        found = await describe_reachable(self, names, timeout=_DESCRIBE_TIMEOUT_SECONDS)
        for facts in found:
            if facts.host in boots:
                self._described[facts.host] = _LastReport(now, boots[facts.host])
        return found

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        now = clock.now()
        return [host for host in hosts if self._is_unreachable(host, now)]

    def _is_unreachable(self, host: str, now: float) -> bool:
        last = self._last_reports.get(host)
        if last is None or now - last.at > last.timeout:
            return True
        if host in self._duplicates and now - self._duplicates[host] > 2 * last.timeout:
            del self._duplicates[host]
        return host in self._duplicates

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        before = clock.now() - DESCRIBE_INTERVAL_SECONDS
        return [host for host in hosts if self._is_outdated(host, before)]

    def _is_outdated(self, host: str, before: float) -> bool:
        described, last = self._described.get(host), self._last_reports.get(host)
        return described is None or described.at < before or (last is not None and last.boot != described.boot)


class LocalHosts(ServedHosts, Transport, Protocol):
    """The hosts of a process, and the transport to them."""

    async def run(self) -> None:
        """Run background work until cancelled."""


class AllHosts:
    """The hosts of this process together with remote ones. A local host takes precedence over a remote namesake."""

    def __init__(self, local: LocalHosts, remote: RemoteHosts) -> None:
        self._local = local
        self._remote = remote
        self._local_names = set(local.names)

    @property
    def names(self) -> Sequence[str]:
        return [*self._local.names, *(host for host in self._remote.names if host not in self._local_names)]

    def on_change(self, callback: Callable[[], None]) -> None:
        self._remote.on_change = callback

    def receive_report(self, report: Report) -> bool:
        """Return False if the report must be ignored, because this process serves the host itself."""
        if report.host in self._local_names:
            log.error("another process runs an agent for host %s, which this process serves", report.host)
            return False
        self._remote.receive_report(report)
        return True

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        transport = self._local if host in self._local_names else self._remote
        return await transport.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        local, remote = self._split(hosts)
        return [
            *(await self._local.facts(local) if local else []),
            *(await self._remote.facts(remote) if remote else []),
        ]

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        local, remote = self._split(hosts)
        return [*self._local.unreachable(local), *self._remote.unreachable(remote)]

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        local, remote = self._split(hosts)
        return [*self._local.outdated(local), *self._remote.outdated(remote)]

    def _split(self, hosts: Iterable[str]) -> tuple[list[str], list[str]]:
        names = list(hosts)
        local = [host for host in names if host in self._local_names]
        return local, [host for host in names if host not in self._local_names]
