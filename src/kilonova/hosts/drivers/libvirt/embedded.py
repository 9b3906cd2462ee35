"""The one host with real guests that a whole cloud in a process has: this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kilonova import clock
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import Images
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.journal import NAME, Journal, tend
from kilonova.hosts.messages import Command, HostFacts, Report
from kilonova.hosts.reports import Reporter, every
from kilonova.hosts.transport import HostTrouble, InProcess, describe_all

if TYPE_CHECKING:
    from kilonova.config import Config

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT = 15.0
# So many missing reports in a row mean that libvirt is gone.
_MISSING = 3


class LibvirtHost:
    """A transport together with the host that it reaches. `heard` is told what the host reports."""

    def __init__(self, host: str, config: Config, images: Images, heard: Callable[[Report], None]) -> None:
        self.names = [host]
        self._journal = Journal(config.data_dir / NAME)
        self._driver = LibvirtDriver(host, config, images)
        agent = Agent(host, self._driver, self._journal)
        self._transport = InProcess(lambda name: agent if name == host else None)
        self._heard = heard
        seconds = every(config.hosts.report_seconds)
        self._reporter = Reporter(host, self._driver, self._report, seconds)
        self._patience = _MISSING * seconds
        self._reported_at = clock.now()

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        return await self._transport.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        found = []
        for host, answer in (await describe_all(self, hosts, timeout=_DESCRIBE_TIMEOUT)).items():
            if isinstance(answer, HostTrouble):
                log.warning("host %s does not say what it is: %s", host, answer.message)
            else:
                found.append(answer)
        return found

    def silent(self, hosts: Iterable[str]) -> list[str]:
        """A host whose libvirt has not answered for a while counts as cut off."""
        quiet = clock.now() - self._reported_at > self._patience
        return [host for host in hosts if quiet and host in self.names]

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        return []

    async def run(self) -> None:
        """Reports and keeps files small, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._driver.run(), self._reporter.run(), tend(self._journal)):
                tasks.create_task(work)

    async def close(self) -> None:
        await self._driver.close()
        self._journal.close()

    async def _report(self, report: Report) -> None:
        self._reported_at = clock.now()
        self._heard(report)
