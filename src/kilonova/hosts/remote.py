"""Hosts whose agents are processes of their own: known from what they report, reached by a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from kilonova import clock
from kilonova.hosts.heartbeat import ServedHosts
from kilonova.hosts.messages import Command, HostFacts, Report
from kilonova.hosts.transport import HostTrouble, Transport, describe_all

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT = 5.0
# So many missing reports in a row mean that a host is cut off.
_MISSING = 3
_TOO_OFTEN = 2
# What a host is made of may change while it runs.
DESCRIBE_EVERY = 60.0


class Broker(Transport, Protocol):
    def restarted(self, host: str) -> None:
        """Nobody answers any more what the host was asked before."""


class _Heard(NamedTuple):
    at: float
    boot: str
    # For how long it may say nothing before it is cut off.
    patience: float = 0.0


class RemoteHosts:
    """`seconds`: how often hosts are expected to report at least; they may say otherwise. `changed` is called when the
    heartbeat has something to do for a host: it is new, is back, or was started anew.
    """

    def __init__(self, broker: Broker, *, seconds: float) -> None:
        self._broker = broker
        self._seconds = seconds
        self._heard: dict[str, _Heard] = {}
        self._described: dict[str, _Heard] = {}
        # Agents that were there before, by host, and how often they were heard of since; and when the last one was.
        self._former: dict[str, dict[str, int]] = {}
        self._rivals: dict[str, float] = {}
        self.changed: Callable[[], None] = lambda: None

    @property
    def names(self) -> Sequence[str]:
        return list(self._heard)

    def heard(self, report: Report) -> None:
        host, now = report.host, clock.now()
        before = self._heard.get(host)
        self._heard[host] = _Heard(now, report.boot, _MISSING * max(self._seconds, report.seconds))
        if before is None:
            log.info("host %s reports for the first time", host)
        elif before.boot != report.boot:
            self._started_anew(host, before, report)
        elif now - before.at <= before.patience:
            return
        self.changed()

    def _started_anew(self, host: str, before: _Heard, report: Report) -> None:
        """An agent that was there before the last one is a second one of the same name."""
        former = self._former.setdefault(host, {})
        former.setdefault(before.boot, 0)
        if report.boot not in former:
            log.info("the agent of host %s was started anew", host)
            self._broker.restarted(host)
            return
        former[report.boot] += 1
        if former[report.boot] < _TOO_OFTEN:
            return  # its last words may have been under way
        if host not in self._rivals:
            log.error("two agents say that they are host %s: it counts as cut off until one is stopped", host)
        self._rivals[host] = clock.now()

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        return await self._broker.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        asked = list(hosts)
        began = {host: _Heard(clock.now(), self._heard[host].boot) for host in asked if host in self._heard}
        found = []
        for host, answer in (await describe_all(self, asked, timeout=_DESCRIBE_TIMEOUT)).items():
            if isinstance(answer, HostTrouble):
                log.warning("host %s does not say what it is: %s", host, answer.message)
            elif answer.host != host:
                log.error("host %s says that it is %s, and is ignored", host, answer.host)
            else:
                found.append(answer)
                if host in began:
                    self._described[host] = began[host]
        return found

    def silent(self, hosts: Iterable[str]) -> list[str]:
        now = clock.now()
        return [host for host in hosts if self._is_silent(host, now)]

    def _is_silent(self, host: str, now: float) -> bool:
        heard = self._heard.get(host)
        if heard is None or now - heard.at > heard.patience:
            return True
        if host in self._rivals and now - self._rivals[host] > 2 * heard.patience:
            del self._rivals[host]
        return host in self._rivals

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        before = clock.now() - DESCRIBE_EVERY
        return [host for host in hosts if self._is_outdated(host, before)]

    def _is_outdated(self, host: str, before: float) -> bool:
        described, heard = self._described.get(host), self._heard.get(host)
        return described is None or described.at < before or (heard is not None and heard.boot != described.boot)


class OwnHosts(ServedHosts, Transport, Protocol):
    """The hosts of a process, and how they are reached."""

    async def run(self) -> None:
        """What goes on beside commands, until cancelled."""


class AllHosts:
    """Those of this process and those of agents elsewhere, each reached its own way. Who is here is not elsewhere."""

    def __init__(self, here: OwnHosts, elsewhere: RemoteHosts) -> None:
        self._here = here
        self._elsewhere = elsewhere
        self._own = set(here.names)

    @property
    def names(self) -> Sequence[str]:
        return [*self._here.names, *(host for host in self._elsewhere.names if host not in self._own)]

    def on_change(self, callback: Callable[[], None]) -> None:
        self._elsewhere.changed = callback

    def heard(self, report: Report) -> bool:
        """False: it is not to be believed, because the host is one of this process."""
        if report.host in self._own:
            log.error("an agent elsewhere says that it is host %s, which this process serves", report.host)
            return False
        self._elsewhere.heard(report)
        return True

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        way = self._here if host in self._own else self._elsewhere
        return await way.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        own, others = self._parted(hosts)
        return [
            *(await self._here.facts(own) if own else []),
            *(await self._elsewhere.facts(others) if others else []),
        ]

    def silent(self, hosts: Iterable[str]) -> list[str]:
        own, others = self._parted(hosts)
        return [*self._here.silent(own), *self._elsewhere.silent(others)]

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        own, others = self._parted(hosts)
        return [*self._here.outdated(own), *self._elsewhere.outdated(others)]

    def _parted(self, hosts: Iterable[str]) -> tuple[list[str], list[str]]:
        asked = list(hosts)
        return [host for host in asked if host in self._own], [host for host in asked if host not in self._own]
