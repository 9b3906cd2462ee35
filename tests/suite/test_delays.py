"""Random delays change only the timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from kilonova.config import DelaysConfig
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Describe
from kilonova.http.client import ClientResponse
from kilonova.injected_delays import Delays
from kilonova.store import Database
from tests.support import run
from tests.support.full_cloud import full_cloud


class CountingDelays(Delays):
    """Counts pauses. The first one sets `paused`; with `endless`, pauses do not end."""

    def __init__(self, *, endless: bool = False) -> None:
        super().__init__(DelaysConfig(milliseconds=0.01))
        self.count = 0
        self.endless = endless
        self.paused = asyncio.Event()

    async def pause(self) -> None:
        self.count += 1
        self.paused.set()
        if self.endless:
            await asyncio.Event().wait()
        await super().pause()


def test_without_delays_nothing_is_wrapped() -> None:
    delays, part = Delays(DelaysConfig()), Any
    assert delays.database(part) is delays.transport(part) is delays.caller(part) is part


def test_seed_reproduces_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def three_delays(seed: int) -> list[float]:
        slept.clear()
        delays = Delays(DelaysConfig(milliseconds=40, seed=seed))
        for _ in range(3):
            await delays.pause()
        return list(slept)

    assert run(three_delays(1)) == run(three_delays(1)) != run(three_delays(2))
    assert all(0 <= seconds < 0.04 for seconds in slept)


def test_every_statement_is_delayed(database: Callable[[], AbstractAsyncContextManager[Database]]) -> None:
    async def scenario() -> None:
        delays = CountingDelays()
        async with database() as real:
            db = delays.database(real)
            assert db.dialect == real.dialect
            async with db.transaction() as tx:
                await tx.lock("key")
                await tx.execute("CREATE TABLE things (name TEXT)")
                await tx.execute_many("INSERT INTO things VALUES ($1)", [("a",), ("b",)])
                assert await tx.fetch_value("SELECT COUNT(*) FROM things") == 2
            before = delays.count
            assert before >= 4 * 2 + 3
            assert await db.fetch("SELECT name FROM things ORDER BY name") == [{"name": "a"}, {"name": "b"}]
            assert await db.fetch_one("SELECT name FROM things WHERE name = $1", "b") == {"name": "b"}
            assert delays.count == before + 4
            with pytest.raises(ZeroDivisionError):
                async with db.transaction() as tx:
                    await tx.execute("DELETE FROM things")
                    raise ZeroDivisionError
            assert await db.fetch_value("SELECT COUNT(*) FROM things") == 2

    run(scenario())


def test_cancelled_delay_leaves_no_coroutine(database: Callable[[], AbstractAsyncContextManager[Database]]) -> None:
    """A coroutine that is never awaited would cause a warning, which is an error."""

    async def scenario() -> None:
        delays = CountingDelays(endless=True)
        async with database() as real:
            task = asyncio.create_task(delays.database(real).fetch("SELECT 1"))
            await delays.paused.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(scenario())


def test_host_and_service_calls_are_delayed(sqlite_url: str) -> None:
    async def scenario() -> None:
        delays = CountingDelays()
        async with full_cloud(sqlite_url, hosts=1) as c:
            facts = await delays.transport(c.hosts).call("sim-001", Command(host="sim-001", verb=Describe()))
            assert (facts.host, delays.count) == ("sim-001", 2)
            caller = delays.caller(c.caller)
            response: ClientResponse = await caller.request(
                "GET", "/compute/v2.1/flavors", headers={"X-Auth-Token": "member"}
            )
            assert (response.status, delays.count) == (200, 4)
            path = f"/image/v2/images/{c.image_id}/file"
            async with caller.stream("GET", path, headers={"X-Auth-Token": "member"}) as stream:
                assert (stream.status, delays.count) == (200, 5)
                assert b"".join([chunk async for chunk in stream.chunks])

    run(scenario())
