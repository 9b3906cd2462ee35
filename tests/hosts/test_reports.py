"""Reports of hosts: when an agent sends them, and how the control plane processes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError, NoAnswer
from kilonova.hosts.messages import GuestState, Report
from kilonova.hosts.reports import Reporter, ReportQueue, report_interval
from tests.hosts.support import HeldDriver, guest, until
from tests.support import run

A = "sim-001"


class NotifyingDriver(HeldDriver):
    """Notifies of changes, and fails with `error`."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.notify: Callable[[], None] = lambda: None

    def on_change(self, callback: Callable[[], None]) -> None:
        self.notify = callback

    async def list_guests(self) -> list[GuestState]:
        if self.error is not None:
            raise self.error
        return await super().list_guests()


def test_reporter_reports_changes_at_once_and_regularly() -> None:
    async def scenario() -> None:
        driver, sent = NotifyingDriver(), list[Report]()

        async def send(report: Report) -> None:
            sent.append(report)

        async def wait_for_reports(number: int) -> None:
            async with asyncio.timeout(60):
                while len(sent) < number:
                    await asyncio.sleep(0.005)

        running = asyncio.create_task(Reporter("a", driver, send, seconds=60).run())
        await wait_for_reports(1)
        for number in range(3):
            await driver.spawn(guest(f"guest-{number}"))
            driver.notify()
        await wait_for_reports(2)
        await asyncio.sleep(0.1)
        assert [len(report.guests) for report in sent] == [0, 3], "simultaneous changes are in one report"
        running.cancel()
        again = asyncio.create_task(Reporter("a", driver, send, seconds=0.02).run())
        await wait_for_reports(5)
        again.cancel()
        assert len({report.boot for report in sent}) == 2, "each start of the agent has its own boot id"

    run(scenario())


@pytest.mark.parametrize("error", [NoAnswer("down"), DriverError("libvirt is away"), RuntimeError("a bug")])
def test_reporter_continues_after_driver_error(error: Exception) -> None:
    async def scenario() -> None:
        driver, sent = NotifyingDriver(), list[Report]()
        driver.error = error

        async def send(report: Report) -> None:
            sent.append(report)

        running = asyncio.create_task(Reporter("a", driver, send, seconds=0.01).run())
        await asyncio.sleep(0.05)
        assert sent == []
        driver.error = None
        await until(_is_filled(sent))
        running.cancel()

    run(scenario())


def _is_filled(found: list[Any]) -> Any:
    async def filled() -> bool:
        return bool(found)

    return filled


def test_report_interval_is_half_of_heartbeat_interval() -> None:
    assert (report_interval(1), report_interval(10), report_interval(600)) == (0.5, 5, 5)


def test_report_queue_keeps_only_last_report_of_host() -> None:
    async def scenario() -> None:
        seen, gate = list[Report](), asyncio.Event()

        async def consume(report: Report) -> bool:
            seen.append(report)
            await gate.wait()
            return True

        async def is_idle() -> bool:
            return not queue._tasks

        queue = ReportQueue(consume)
        sent = [Report(host="a", boot=str(number)) for number in range(5)]
        queue.put(sent[0])
        await until(_is_filled(seen))
        for report in sent[1:]:
            queue.put(report)
            await asyncio.sleep(0.01)
        gate.set()
        await until(is_idle)
        assert seen == [sent[0], sent[-1]]
        queue.put(sent[-1])
        await asyncio.sleep(0.05)
        assert len(seen) == 2, "an unchanged report that agreed is skipped for a while"
        await queue.close()

    run(scenario())
