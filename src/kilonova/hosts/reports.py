"""What hosts say by themselves: an agent's regular report, and what the control plane makes of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from kilonova import clock, ids
from kilonova.hosts.drivers.base import Driver, DriverError, NoAnswer
from kilonova.hosts.messages import Report
from kilonova.store import StoreError

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

MOST_SECONDS = 5.0
# Several guests often change together: one report tells of all.
_TOGETHER = 0.05
# What agreed with the records, and has not changed, is compared again only so often.
_AGAIN = 30.0


def every(report_seconds: float) -> float:
    """How often an agent reports: twice in the time in which heartbeats are written, so that one may get lost."""
    return min(report_seconds / 2, MOST_SECONDS)


@runtime_checkable
class Eventful(Protocol):
    """A driver that tells when a guest has changed."""

    def on_change(self, callback: Callable[[], None]) -> None: ...


class Reporter:
    """Sends the state of all guests: regularly, when a guest changes, and when it is woken. `quiet`: not just now."""

    def __init__(
        self,
        host: str,
        driver: Driver,
        send: Callable[[Report], Awaitable[object]],
        seconds: float,
        quiet: Callable[[], bool] = lambda: False,
    ) -> None:
        self._host = host
        self._driver = driver
        self._send = send
        self._seconds = seconds
        self._quiet = quiet
        # Another one for each start: whatever was asked of an agent before, it does not answer any more.
        self._boot = ids.new_id()
        self._woken = asyncio.Event()
        if isinstance(driver, Eventful):
            driver.on_change(self.wake)

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._report()
            try:
                async with asyncio.timeout(self._seconds):
                    await self._woken.wait()
                await asyncio.sleep(_TOGETHER)
            except TimeoutError:
                pass

    async def _report(self) -> None:
        self._woken.clear()
        if self._quiet():
            return
        try:
            guests = await self._driver.guests()
        except NoAnswer:
            return
        except DriverError as error:
            log.warning("no report this time: %s", error.message)
            return
        except Exception:
            # Whatever it is: commands may still be carried out, and the next report may succeed.
            log.exception("no report this time")
            return
        await self._send(Report(host=self._host, boot=self._boot, seconds=self._seconds, guests=guests))


class _Comparer:
    """Compares one report of a host at a time with the records; of those that come meanwhile the last one counts."""

    def __init__(self) -> None:
        self._next: dict[str, Report] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._agreed: dict[str, tuple[Report, float]] = {}

    def take(self, services: Services, report: Report) -> None:
        agreed = self._agreed.get(report.host)
        if agreed is not None and agreed[0] == report and clock.now() - agreed[1] < _AGAIN:
            return
        self._next[report.host] = report
        if report.host not in self._tasks:
            task = self._tasks[report.host] = asyncio.create_task(self._compare(services, report.host))
            task.add_done_callback(lambda _: self._tasks.pop(report.host, None))

    async def _compare(self, services: Services, host: str) -> None:
        from kilonova.compute import power_states

        while (report := self._next.pop(host, None)) is not None:
            began = clock.now()
            self._agreed.pop(host, None)
            try:
                if await power_states.observe(services, report):
                    self._agreed[host] = report, began
            except StoreError as trouble:
                log.warning("what host %s reports is not compared this time: %s", host, trouble)
            except Exception:
                log.exception("what host %s reports could not be compared", host)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_COMPARERS: WeakKeyDictionary[Services, _Comparer] = WeakKeyDictionary()


def heard(services: Services, report: Report) -> None:
    """A host of this process, or of another, has reported. Does what follows from it beside whatever else runs."""
    comparer = _COMPARERS.get(services)
    if comparer is None:
        comparer = _COMPARERS[services] = _Comparer()
    comparer.take(services, report)


async def close(services: Services) -> None:
    """Compare no more: the process ends."""
    comparer = _COMPARERS.pop(services, None)
    if comparer is not None:
        await comparer.close()
