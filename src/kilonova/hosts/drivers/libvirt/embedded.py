"""The libvirt host of an all-in-one process: this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kilonova import clock
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import DriverError, Images
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.journal import JOURNAL_FILE_NAME, Journal, maintain_files
from kilonova.hosts.messages import Command, HostFacts, Report
from kilonova.hosts.messages.verbs import Answer, Verb
from kilonova.hosts.reports import Reporter, report_interval
from kilonova.hosts.transport import InProcess, describe_reachable

if TYPE_CHECKING:
    from kilonova.config import Config

_DESCRIBE_TIMEOUT_SECONDS = 15.0
# After this many missed reports in a row the host counts as unreachable.
_MAX_MISSED_REPORTS = 3


class LibvirtHost:
    """A transport together with its only host. `on_report` receives the host's reports."""

    def __init__(self, host: str, config: Config, images: Images, on_report: Callable[[Report], None]) -> None:
        self.names = [host]
        self._journal = Journal(config.data_dir / JOURNAL_FILE_NAME)
        self._driver = LibvirtDriver(host, config, images)
        self._agent = agent = Agent(host, self._driver, self._journal)
        self._transport = InProcess(lambda name: agent if name == host else None)
        self._on_report = on_report
        seconds = report_interval(config.hosts.report_seconds)
        self._reporter = Reporter(host, self._driver, self._report, seconds)
        self._report_timeout_seconds = _MAX_MISSED_REPORTS * seconds
        self._reported_at = clock.now()
        # Waits for a description that did not arrive in time.
        self._late: asyncio.Task[None] | None = None
        self._uri = config.libvirt.uri
        self._problem = ""
        # Called when a late description has arrived.
        self.on_change: Callable[[], None] = lambda: None

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        return await self._transport.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        names = list(hosts)
        found = await describe_reachable(self, names, timeout=_DESCRIBE_TIMEOUT_SECONDS)
        if not found and self.names[0] in names and (self._late is None or self._late.done()):
            self._late = asyncio.create_task(self._wait_for_description())
        return found

    def why_absent(self) -> str:
        """Why libvirt keeps the host from being registered."""
        return self._problem or f"libvirt at {self._uri} has not listed its capabilities yet"

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        """The host counts as unreachable if its libvirt has not responded for a while."""
        overdue = clock.now() - self._reported_at > self._report_timeout_seconds
        return [host for host in hosts if overdue and host in self.names]

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        return []

    async def run(self) -> None:
        """Run driver, reports and journal maintenance until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._driver.run(), self._reporter.run(), maintain_files(self._journal)):
                tasks.create_task(work)

    async def close(self) -> None:
        if self._late is not None:
            self._late.cancel()
            await asyncio.gather(self._late, return_exceptions=True)
        self._agent.close()
        await self._driver.close()
        self._journal.close()

    async def _wait_for_description(self) -> None:
        try:
            await self._driver.describe()
        except DriverError as error:
            self._problem = error.message
        else:
            self._problem = ""
            self.on_change()

    async def _report(self, report: Report) -> None:
        self._reported_at = clock.now()
        self._on_report(report)
