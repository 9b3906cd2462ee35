"""Hosts that do not answer: an operation finds out, and goes on without them.

What is to be done on their return, it leaves behind (see `leftovers`). See docs/decisions/0012-silent-hosts.md for why
this is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from kilonova import clock
from kilonova.compute.operations.common import ask
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import Change
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.transport import HostFailed, HostTrouble, HostUnreachable, describe
from kilonova.operations import Failed, Operation
from kilonova.services import Services

PING = 5.0
"""Seconds in which a host that is there answers the simplest question."""
BRIEFLY = 0.2
LETTING_GO = 90.0
"""Seconds in which a host knows whether a guest lets a device go. Its answer must be waited for: that the guest does
not is said once, and whoever asks again later has the guest asked again."""
# By process: the hosts that somebody asks at the moment.
_QUESTIONS: WeakKeyDictionary[Services, dict[str, asyncio.Task[bool]]] = WeakKeyDictionary()


class HostSilent(HostTrouble):
    """The host answers nothing at all, for longer than an operation waits for one."""

    def __init__(self, host: str, seconds: float) -> None:
        super().__init__(host, f"did not answer for {seconds:g} s")
        self.public = self.message


async def insist(op: Operation, host: str, step: str, verb: Change, *, takes: float = 0.0) -> Any:
    """Ask the host for as long as it is there. Raises HostSilent, HostFailed, or HostUnreachable to be asked again.

    `takes`: for how many seconds it is right that no answer comes; asked again meanwhile, a host goes on with it.
    """
    begun = time.monotonic()
    patience = op.services.config.operations.host_seconds
    while True:
        since = time.monotonic()
        try:
            with _watched(op, host):
                return await _answer(op, host, step, verb, begun + takes - since)
        except HostUnreachable as error:
            if await is_silent(op, host, since):
                raise HostSilent(host, patience) from error
            if time.monotonic() >= begun + takes:
                raise
        await asyncio.sleep(min(1.0, patience / 10))


async def _answer(op: Operation, host: str, step: str, verb: Change, takes: float) -> Any:
    """Asked once for all that time: that something could not be done is said only to who listens just then."""
    patience = op.services.config.operations.host_seconds
    asked = asyncio.create_task(ask(op, host, step, verb, timeout=max(patience, takes)))
    try:
        while True:
            since = time.monotonic()
            await asyncio.wait({asked}, timeout=patience)
            if asked.done() or takes <= patience:
                return await asked
            if await is_silent(op, host, since):
                raise HostSilent(host, patience)
    finally:
        if not asked.cancel() and not asked.cancelled():
            asked.exception()  # if it is the second to end, nobody needs to hear of it


async def demand(op: Operation, host: str, step: str, verb: Change, *, takes: float = 0.0) -> Any:
    """Like `insist`; but what the host cannot do, or that it does not answer, fails the operation."""
    try:
        return await insist(op, host, step, verb, takes=takes)
    except (HostSilent, HostFailed) as error:
        if error.passing:
            raise
        raise Failed(f"The host could not {step}: {error.public}", fault=str(error)) from error


async def is_silent(op: Operation, host: str, since: float) -> bool:
    """Whether the host, asked in vain since then (`time.monotonic`), answers nothing at all for too long.

    A host that is only slow answers simple questions. One that an operator has forced down is not waited for.
    """
    if await _forced_down(op, host):
        return True
    patience = op.services.config.operations.host_seconds
    while True:
        try:
            await describe(op.services.hosts, host, timeout=PING)
        except HostUnreachable:
            op.services.scheduler.unheard(host)
            if time.monotonic() >= since + patience:
                return True
            await asyncio.sleep(min(1.0, patience / 10))
        except HostTrouble:
            return False
        else:
            return False


async def is_down(op: Operation, host: str) -> bool:
    """Whether the host counts as down for everybody: not heard of for long, forced down, or no longer known."""
    sql = "SELECT * FROM services WHERE host = $1 AND program = $2"
    service = await op.db.fetch_one(sql, host, COMPUTE)
    return service is None or not is_up(service, clock.now(), op.services.config.hosts.down_seconds)


async def is_given_up(op: Operation, host: str) -> bool:
    """Whether somebody answers for it that nothing runs there: an operator has forced the host down, or removed it.

    A host that is only not heard of may have lost nothing but its agent.
    """
    sql = "SELECT forced_down FROM services WHERE host = $1 AND program = $2"
    service = await op.db.fetch_one(sql, host, COMPUTE)
    return service is None or bool(service["forced_down"])


async def answers(op: Operation, host: str) -> bool:
    """Whether the host is there. One operation asks; others who want to know join it, and not for long.

    So many who wait for the same dead host do not keep a worker from everything else.
    """
    asked = _QUESTIONS.setdefault(op.services, {})
    question, patience = asked.get(host), BRIEFLY
    if question is None:
        question, patience = asyncio.create_task(_is_there(op, host)), 2 * PING
        asked[host] = question
        question.add_done_callback(lambda _: asked.pop(host, None))
    done, _ = await asyncio.wait([question], timeout=patience)
    return bool(done) and question.result()


async def _is_there(op: Operation, host: str) -> bool:
    try:
        await describe(op.services.hosts, host, timeout=PING)
    except HostUnreachable:
        return False
    except HostTrouble:
        pass  # whatever it says, it is there
    return True


@contextmanager
def _watched(op: Operation, host: str) -> Iterator[None]:
    """While the operation waits in here for the host, find out early whether the host is there at all.

    The operation waits its time. But others need not be sent to the same host, to wait as long.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    timer = loop.call_later(PING, lambda: tasks.append(loop.create_task(_ping(op, host))))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


async def _ping(op: Operation, host: str) -> None:
    if not await _is_there(op, host):
        op.services.scheduler.unheard(host)


async def _forced_down(op: Operation, host: str) -> bool:
    down = await op.db.fetch_value("SELECT forced_down FROM services WHERE host = $1 AND program = $2", host, COMPUTE)
    return bool(down)
