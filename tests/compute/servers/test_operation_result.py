"""Waiting for the result of an operation: success, failure, timeout, and an operation that no longer exists."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.compute.operations.change_ports import AddFixedIp, AddFixedIpParams
from kilonova.compute.servers import operation_result
from kilonova.http.errors import BadRequest, Conflict, Unavailable
from kilonova.ids import new_id
from kilonova.operations import Failed, TimedOut, begin
from kilonova.operations.errors import describe_error
from tests.compute.servers.support import make_context
from tests.support import run
from tests.support.cloud import DEMO, Cloud, cloud, put_server
from tests.support.full_cloud import TIMEOUT_SECONDS

SERVER = "aaaaaaaa-1111-4111-8111-111111111111"
RULE = "os_compute_api:os-multinic:add"


async def begin_operation(c: Cloud) -> str:
    await put_server(c.db, SERVER, host="host1")
    async with c.db.transaction() as tx:
        return await begin(tx, AddFixedIp, params=AddFixedIpParams("n"), server_id=SERVER, project_id=DEMO)


async def update(c: Cloud, error: Exception | None = None, **columns: Any) -> None:
    """Change the only operation as the engine does."""
    if error is not None:
        columns["error"] = describe_error(error, "step").encode()
    async with c.db.transaction() as tx:
        for column, value in columns.items():
            await tx.execute(f"UPDATE operations SET {column} = $1", value)


def poll_event(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the operation was read unfinished, and will be read again."""
    polled, sleep = asyncio.Event(), asyncio.sleep

    async def sleep_after_poll(seconds: float) -> None:
        polled.set()
        await sleep(seconds)

    monkeypatch.setattr(operation_result, "asyncio", SimpleNamespace(sleep=sleep_after_poll))
    return polled


def test_result_of_operation_that_succeeds_during_wait(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            operation_id = await begin_operation(c)
            polled = poll_event(monkeypatch)
            waiting = operation_result.await_results(make_context(c), operation_id, TIMEOUT_SECONDS)
            task = asyncio.create_task(waiting)
            await polled.wait()
            assert not task.done()
            await update(c, state="done", results='{"step": {"port_id": "p"}}', finished_at=1.0)
            assert {step: bytes(result) for step, result in (await task).items()} == {"step": b'{"port_id": "p"}'}

    run(scenario())


def test_failure_is_raised_when_undo_has_ended(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            operation_id = await begin_operation(c)
            await update(c, TimedOut("too slow", fault="details"), state="undoing")
            assert await operation_result.await_results(make_context(c), operation_id, -1) == {}
            await update(c, state="failed", finished_at=1.0)
            with pytest.raises(TimedOut, match=r"^too slow$") as failure:
                await operation_result.await_results(make_context(c), operation_id, TIMEOUT_SECONDS)
            assert failure.value.fault == "details"

    run(scenario())


def test_wait_ends_after_timeout_or_if_operation_is_missing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            operation_id = await begin_operation(c)
            assert await operation_result.await_results(make_context(c), operation_id, 0.02) == {}
            with pytest.raises(Unavailable, match="no longer exists"):
                await operation_result.await_results(make_context(c), new_id(), TIMEOUT_SECONDS)

    run(scenario())


@pytest.mark.parametrize("error", [None, Failed("No more IP addresses available.")])
def test_run_operation_responds_with_its_result(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, host="host1")
            polled = poll_event(monkeypatch)
            running = operation_result.run_operation(make_context(c), SERVER, RULE, AddFixedIp, AddFixedIpParams("n"))
            task = asyncio.create_task(running)
            await polled.wait()
            await update(c, error, state="failed" if error else "done", finished_at=1.0)
            if error is None:
                assert (await task).status is None, "the status of the route"
            else:
                with pytest.raises(BadRequest, match=r"^No more IP addresses available.$"):
                    await task

    run(scenario())


def test_run_operation_refuses_locked_server(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, host="host1", locked=True)
            with pytest.raises(Conflict, match=r"is locked$"):
                params = AddFixedIpParams("n")
                await operation_result.run_operation(make_context(c), SERVER, RULE, AddFixedIp, params)
            assert await c.db.fetch("SELECT 1 FROM operations") == []

    run(scenario())


def test_wait_is_longer_than_wait_for_host(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, operations__host_timeout_seconds=45) as c:
            assert operation_result.result_timeout_seconds(make_context(c)) == 55.0

    run(scenario())
