"""Calls a host for an operation, and detects unreachable hosts so that the operation can continue without them.

`cleanup` defers work on an unreachable host. docs/decisions/0012-unreachable-hosts.md says why this is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from kilonova import clock
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Change
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.transport import HostCallError, HostFailed, HostUnreachable, describe
from kilonova.operations import Failed, Operation
from kilonova.services import Services

# A reachable host answers `describe` within this time.
PROBE_TIMEOUT_SECONDS = 5.0
# How long an operation waits for a probe that another operation began.
SHARED_PROBE_WAIT_SECONDS = 0.2
# How long a host may wait for a guest to release a device. A refusal is reported once only, so the call must last.
DETACH_TIMEOUT_SECONDS = 90.0
# Running probes by host, for each process.
_PROBES: WeakKeyDictionary[Services, dict[str, asyncio.Task[bool]]] = WeakKeyDictionary()


class HostNotResponding(HostCallError):
    """The host has not responded to any call for `operations.host_timeout_seconds`."""

    def __init__(self, host: str, seconds: float) -> None:
        super().__init__(host, f"did not respond for {seconds:g} s")
        self.public = self.message


async def call_once(op: Operation, host: str, step: str, verb: Change, *, timeout: float | None = None) -> Any:
    """Send a command once. Epoch and round let the agent refuse a late command and repeat an answer."""
    op.called_host = host
    return await op.services.hosts.call(
        host,
        Command(host=host, operation=op.id, step=step, round=op.round, epoch=op.epoch, verb=verb),
        timeout=timeout,
    )


async def call_once_or_fail(op: Operation, host: str, step: str, verb: Change, *, timeout: float | None = None) -> Any:
    """Like `call_once`. An error of the host fails the operation; only administrators see the host and its words."""
    try:
        return await call_once(op, host, step, verb, timeout=timeout)
    except HostFailed as error:
        if error.passing:
            raise
        raise Failed(f"The host could not {step}: {error.public}", fault=str(error)) from error


async def call(op: Operation, host: str, step: str, verb: Change, *, takes: float = 0.0) -> Any:
    """Send a command until the host answers or does not respond at all. Raises HostNotResponding or HostFailed.

    Raises HostUnreachable, which repeats the step, if the host responds but the command's answer does not arrive within
    `takes` seconds. A host that receives the command again continues with it.
    """
    begun = time.monotonic()
    timeout = op.services.config.operations.host_timeout_seconds
    while True:
        since = time.monotonic()
        try:
            with _report_if_unreachable(op, host):
                return await _call_and_watch(op, host, step, verb, begun + takes - since)
        except HostUnreachable as error:
            if await is_unresponsive(op, host, since):
                raise HostNotResponding(host, timeout) from error
            if time.monotonic() >= begun + takes:
                raise
        await asyncio.sleep(min(1.0, timeout / 10))


async def _call_and_watch(op: Operation, host: str, step: str, verb: Change, takes: float) -> Any:
    """Send the command once and wait `takes` seconds: a host reports a failure only to the call that waits for it."""
    timeout = op.services.config.operations.host_timeout_seconds
    task = asyncio.create_task(call_once(op, host, step, verb, timeout=max(timeout, takes)))
    try:
        while True:
            since = time.monotonic()
            await asyncio.wait({task}, timeout=timeout)
            if task.done() or takes <= timeout:
                return await task
            if await is_unresponsive(op, host, since):
                raise HostNotResponding(host, timeout)
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it


async def call_or_fail(op: Operation, host: str, step: str, verb: Change, *, takes: float = 0.0) -> Any:
    """Like `call`. An error of the host, or a host that does not respond, fails the operation."""
    try:
        return await call(op, host, step, verb, takes=takes)
    except (HostNotResponding, HostFailed) as error:
        if error.passing:
            raise
        raise Failed(f"The host could not {step}: {error.public}", fault=str(error)) from error


async def is_unresponsive(op: Operation, host: str, since: float) -> bool:
    """Whether the host has answered no call since `since` (`time.monotonic`), for the configured time.

    A slow host answers probes. A host that is forced down counts as unresponsive at once.
    """
    if await _forced_down(op, host):
        return True
    timeout = op.services.config.operations.host_timeout_seconds
    while True:
        try:
            await describe(op.services.hosts, host, timeout=PROBE_TIMEOUT_SECONDS)
        except HostUnreachable:
            op.services.scheduler.mark_unreachable(host)
            if time.monotonic() >= since + timeout:
                return True
            await asyncio.sleep(min(1.0, timeout / 10))
        except HostCallError:
            return False
        else:
            return False


async def is_down(op: Operation, host: str) -> bool:
    """Whether the compute service of the host is down, forced down or removed."""
    sql = "SELECT * FROM services WHERE host = $1 AND program = $2"
    service = await op.db.fetch_one(sql, host, COMPUTE)
    return service is None or not is_up(service, clock.now(), op.services.config.hosts.down_seconds)


async def is_forced_down_or_removed(op: Operation, host: str) -> bool:
    """Whether an operator has confirmed that no guest runs there, by forcing the host down or removing it.

    On any other host without reports, guests may still run without the agent.
    """
    sql = "SELECT forced_down FROM services WHERE host = $1 AND program = $2"
    service = await op.db.fetch_one(sql, host, COMPUTE)
    return service is None or bool(service["forced_down"])


async def responds(op: Operation, host: str) -> bool:
    """Whether the host answers a probe. Operations share one probe per host, and only the first waits for its end.

    So operations that wait for the same dead host do not occupy a worker's slots.
    """
    running = _PROBES.setdefault(op.services, {})
    probe, timeout = running.get(host), SHARED_PROBE_WAIT_SECONDS
    if probe is None:
        probe, timeout = asyncio.create_task(_probe_once(op, host)), 2 * PROBE_TIMEOUT_SECONDS
        running[host] = probe
        probe.add_done_callback(lambda _: running.pop(host, None))
    done, _ = await asyncio.wait([probe], timeout=timeout)
    return bool(done) and probe.result()


async def _probe_once(op: Operation, host: str) -> bool:
    try:
        await describe(op.services.hosts, host, timeout=PROBE_TIMEOUT_SECONDS)
    except HostUnreachable:
        return False
    except HostCallError:
        pass  # an error is an answer too
    return True


@contextmanager
def _report_if_unreachable(op: Operation, host: str) -> Iterator[None]:
    """Probe the host while the operation waits for it, and tell the scheduler if it is unreachable.

    The operation keeps waiting, but the scheduler sends no other server to this host.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(PROBE_TIMEOUT_SECONDS, lambda: tasks.append(loop.create_task(_probe(op, host))))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


async def _probe(op: Operation, host: str) -> None:
    if not await _probe_once(op, host):
        op.services.scheduler.mark_unreachable(host)


async def _forced_down(op: Operation, host: str) -> bool:
    down = await op.db.fetch_value("SELECT forced_down FROM services WHERE host = $1 AND program = $2", host, COMPUTE)
    return bool(down)
