"""Reports of hosts: an agent's `Reporter`, and the control plane's `ReportQueue`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from kilonova import clock, ids
from kilonova.hosts.drivers.base import Driver, DriverError, NoAnswer
from kilonova.hosts.messages import Report
from kilonova.store import StoreError

log = logging.getLogger(__name__)

MAX_INTERVAL_SECONDS = 5.0
# Several guests often change together: one report covers them all.
_DEBOUNCE_SECONDS = 0.05
# An unchanged report that agreed with the records is skipped for this long.
_RECHECK_SECONDS = 30.0


def report_interval(report_seconds: float) -> float:
    """Return an agent's report interval: half the heartbeat's, so that one report may get lost."""
    return min(report_seconds / 2, MAX_INTERVAL_SECONDS)


@runtime_checkable
class ChangeNotifier(Protocol):
    """A driver that calls back when a guest has changed."""

    def on_change(self, callback: Callable[[], None]) -> None: ...


class Reporter:
    """Sends the state of all guests: regularly, when a guest changes, and when woken.

    `is_cut_off`: whether reports are suppressed because the simulated host is unreachable.
    """

    def __init__(
        self,
        host: str,
        driver: Driver,
        send: Callable[[Report], Awaitable[object]],
        seconds: float,
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._driver = driver
        self._send = send
        self._seconds = seconds
        self._is_cut_off = is_cut_off
        # Identifies this start of the agent. An agent does not answer commands that an earlier start received.
        self._boot = ids.new_id()
        self._woken = asyncio.Event()
        if isinstance(driver, ChangeNotifier):
            driver.on_change(self.wake)

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._report()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._woken.wait()
                await asyncio.sleep(_DEBOUNCE_SECONDS)
            except TimeoutError:
                pass

    async def _report(self) -> None:
        self._woken.clear()
        if self._is_cut_off():
            return
        try:
            guests = await self._driver.list_guests()
        except NoAnswer:
            return
        except DriverError as error:
            log.warning("no report: the driver cannot list its guests: %s", error.message)
            return
        except Exception:
            # The agent goes on: it may still execute commands, and the next report may succeed.
            log.exception("no report: the driver cannot list its guests")
            return
        await self._send(Report(host=self._host, boot=self._boot, seconds=self._seconds, guests=guests))


class ReportQueue:
    """Passes reports to `consume`, one per host at a time. Of the reports that arrive meanwhile only the last is kept.

    `consume` returns whether the report agreed with the records.
    """

    def __init__(self, consume: Callable[[Report], Awaitable[bool]]) -> None:
        self._consume = consume
        self._next: dict[str, Report] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._agreed: dict[str, tuple[Report, float]] = {}

    def put(self, report: Report) -> None:
        agreed = self._agreed.get(report.host)
        if agreed is not None and agreed[0] == report and clock.now() - agreed[1] < _RECHECK_SECONDS:
            return
        self._next[report.host] = report
        if report.host not in self._tasks:
            task = self._tasks[report.host] = asyncio.create_task(self._work(report.host))
            task.add_done_callback(lambda _: self._tasks.pop(report.host, None))

    async def _work(self, host: str) -> None:
        while (report := self._next.pop(host, None)) is not None:
            began = clock.now()
            self._agreed.pop(host, None)
            try:
                if await self._consume(report):
                    self._agreed[host] = report, began
            except StoreError as error:
                log.warning("the report of host %s was not processed: %s", host, error)
            except Exception:
                log.exception("the report of host %s was not processed", host)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
