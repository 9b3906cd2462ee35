"""Sends commands to hosts. A policy says how long to wait, and what the outcome of a command becomes.

Operations continue without unreachable hosts: docs/decisions/0012-unreachable-hosts.md says why this is safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

from kilonova import clock
from kilonova.compute.servers import model
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Answer, GuestVerb, NewGuestVerb, Query, Verb
from kilonova.hosts.registry import COMPUTE, find_compute_service
from kilonova.hosts.transport import (
    HostCallError,
    HostNotResponding,
    HostUnreachable,
    NothingThere,
    StaleEpoch,
    describe,
)
from kilonova.operations import Failed, Operation
from kilonova.services import Services
from kilonova.store import Reader

# A reachable host answers `describe` within this time.
PROBE_TIMEOUT_SECONDS = 5.0
# A user waits for the answer.
QUERY_TIMEOUT_SECONDS = 10.0
# How long an operation waits for a probe that another operation began.
SHARED_PROBE_WAIT_SECONDS = 0.2
# How long a host may wait for a guest to release a device. A refusal is reported once only, so the call must last.
DETACH_TIMEOUT_SECONDS = 90.0
# How often a host may refuse an undo, or not finish it: about one and ten minutes, by the engine's pauses. Operations
# that wait for the undo, such as a delete, must not wait for ever.
MAX_REFUSALS, MAX_DELAYS = 10, 20


class HostCallFailed(Failed):
    """The outcome of a call fails the operation. Only administrators see the host and its words."""

    def __init__(self, summary: str, outcome: HostCallError) -> None:
        super().__init__(f"{summary}: {outcome.public}", fault=str(outcome))
        self.outcome = outcome


class GivenUp(Exception):
    """The host does not respond, or has refused too often: the operation continues without it."""


class Timeout(Enum):
    TRANSPORT = auto()  # that of the transport
    HOST = auto()  # `operations.host_timeout_seconds`
    PROBE = auto()


Failure = Callable[[Operation, str, HostCallError], NoReturn]
"""Raises what an outcome becomes. The text is a summary of the call for users."""


def fail(op: Operation, summary: str, outcome: HostCallError) -> NoReturn:
    raise HostCallFailed(summary, outcome) from outcome


@dataclass(frozen=True, slots=True)
class Policy:
    """How a command is sent, and what its outcome becomes.

    A transient outcome is raised as it is, so that the step is repeated.
    """

    timeout: Timeout = Timeout.TRANSPORT
    # Probe a host that does not answer in time: HostNotResponding if it answers no probe, otherwise HostUnreachable.
    probes: bool = False
    # Also probe while the call lasts, and repeat it for the time that it may take. Implies `probes` and Timeout.HOST.
    watches: bool = False
    # Outcomes that are as good as an answer.
    accepts: tuple[type[HostCallError], ...] = ()
    # What any other refusal, and a host that does not respond, becomes; None: it is raised as it is.
    failure: Failure | None = None
    # Raise GivenUp for a host that does not respond, or has refused or delayed the call too often.
    gives_up: bool = False


ONCE = Policy()
WATCHED = Policy(watches=True)
MUST_SUCCEED = Policy(watches=True, failure=fail)
# A step that does nothing without the guest.
UNLESS_MISSING = Policy(watches=True, failure=fail, accepts=(NothingThere,))
DELETE = Policy(timeout=Timeout.HOST, probes=True, failure=fail, accepts=(NothingThere,))
# Cleanup: now, or deferred by the caller if this raises GivenUp.
CLEAN_UP = Policy(timeout=Timeout.PROBE, probes=True, failure=fail, accepts=(NothingThere,), gives_up=True)
READ = Policy(timeout=Timeout.PROBE)
READ_PROBED = Policy(timeout=Timeout.PROBE, probes=True)
MUST_READ = Policy(timeout=Timeout.PROBE, probes=True, failure=fail)


async def call(
    op: Operation,
    host: str,
    step: str,
    verb: GuestVerb[Answer] | NewGuestVerb[Answer],
    policy: Policy = MUST_SUCCEED,
    *,
    takes: float = 0.0,
) -> Answer | None:
    """Send a command of a step. Returns the answer; None for an outcome that the policy accepts.

    Epoch and round let the agent refuse a late command and repeat an answer. `takes`: how many seconds the answer may
    take if the host responds otherwise. A host that receives the command again continues with it.
    """
    op.called_host = host
    command = Command(host=host, operation=op.id, step=step, round=op.round, epoch=op.epoch, verb=verb)
    return await send(op, command, policy, f"The host could not {step}", takes=takes)


async def read(
    op: Operation, host: str, verb: Query[Answer], policy: Policy = READ, *, summary: str = ""
) -> Answer | None:
    """Send a query. Returns like `call`. `summary` begins the text of a failure."""
    return await send(op, Command(host=host, verb=verb), policy, summary)


async def query(services: Services, host: str, verb: Query[Answer]) -> Answer:
    """Send a query for a user, who waits for the answer. Raises every outcome as it is."""
    return await services.hosts.call(host, Command(host=host, verb=verb), timeout=QUERY_TIMEOUT_SECONDS)


async def send(
    op: Operation, command: Command[Verb[Answer]], policy: Policy, summary: str = "", *, takes: float = 0.0
) -> Answer | None:
    try:
        return await (_call_and_repeat(op, command, takes) if policy.watches else _call_once(op, command, policy))
    except HostCallError as outcome:
        if isinstance(outcome, policy.accepts) and not outcome.passing:
            return None
        if isinstance(outcome, HostUnreachable | StaleEpoch):
            raise
        if policy.gives_up and (isinstance(outcome, HostNotResponding) or await is_refused_too_often(op)):
            raise GivenUp from outcome
        if outcome.passing or policy.failure is None:
            raise
        policy.failure(op, summary, outcome)


async def _call_once(op: Operation, command: Command[Verb[Answer]], policy: Policy) -> Answer:
    since = time.monotonic()
    try:
        return await op.services.hosts.call(command.host, command, timeout=_timeout_seconds(op, policy))
    except HostUnreachable as error:
        if policy.gives_up and op.attempt >= MAX_DELAYS:
            raise GivenUp from error
        if policy.probes and await is_unresponsive(op, command.host, since):
            raise HostNotResponding(command.host, op.services.config.operations.host_timeout_seconds) from error
        raise


def _timeout_seconds(op: Operation, policy: Policy) -> float | None:
    match policy.timeout:
        case Timeout.TRANSPORT:
            return None
        case Timeout.HOST:
            return op.services.config.operations.host_timeout_seconds
        case Timeout.PROBE:
            return PROBE_TIMEOUT_SECONDS


async def _call_and_repeat(op: Operation, command: Command[Verb[Answer]], takes: float) -> Answer:
    """Send a command until the host answers or does not respond at all.

    Raises HostUnreachable, which repeats the step, if the host responds but the command's answer does not arrive within
    `takes` seconds.
    """
    host, begun = command.host, time.monotonic()
    timeout = op.services.config.operations.host_timeout_seconds
    while True:
        since = time.monotonic()
        try:
            with _report_if_unreachable(op, host):
                return await _call_and_watch(op, command, begun + takes - since)
        except HostUnreachable as error:
            if await is_unresponsive(op, host, since):
                raise HostNotResponding(host, timeout) from error
            if time.monotonic() >= begun + takes:
                raise
        await asyncio.sleep(min(1.0, timeout / 10))


async def _call_and_watch(op: Operation, command: Command[Verb[Answer]], takes: float) -> Answer:
    """Send the command once and wait `takes` seconds: a host reports a failure only to the call that waits for it."""
    host, timeout = command.host, op.services.config.operations.host_timeout_seconds
    task = asyncio.create_task(op.services.hosts.call(host, command, timeout=max(timeout, takes)))
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


async def is_refused_too_often(op: Operation) -> bool:
    """Whether refusals have reached the limit after which the operation ends without the cleanup."""
    return op.attempt >= MAX_REFUSALS or (op.attempt > 0 and await model.is_being_deleted(op.db, str(op.server_id)))


# Probes


async def is_unresponsive(op: Operation, host: str, since: float) -> bool:
    """Whether the host has answered no call since `since` (`time.monotonic`), for the configured time.

    A slow host answers probes. A host that is forced down counts as unresponsive at once.
    """
    if await _forced_down(op, host):
        return True
    timeout = op.services.config.operations.host_timeout_seconds
    while not await _answers_probe(op.services, host):
        op.services.scheduler.mark_unreachable(host)
        if time.monotonic() >= since + timeout:
            return True
        await asyncio.sleep(min(1.0, timeout / 10))
    return False


async def responds(op: Operation, host: str) -> bool:
    """Whether the host answers a probe. Operations share one probe per host, and only the first waits for its end.

    So operations that wait for the same dead host do not occupy a worker's slots.
    """
    running = op.services.probes
    probe, timeout = running.get(host), SHARED_PROBE_WAIT_SECONDS
    if probe is None:
        probe, timeout = asyncio.create_task(_answers_probe(op.services, host)), 2 * PROBE_TIMEOUT_SECONDS
        running[host] = probe
        probe.add_done_callback(lambda _: running.pop(host, None))
    done, _ = await asyncio.wait([probe], timeout=timeout)
    return bool(done) and probe.result()


async def _answers_probe(services: Services, host: str) -> bool:
    try:
        await describe(services.hosts, host, timeout=PROBE_TIMEOUT_SECONDS)
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
    if not await _answers_probe(op.services, host):
        op.services.scheduler.mark_unreachable(host)


# The state of a host's compute service


async def is_down(services: Services, reader: Reader, host: str) -> bool:
    """Whether the compute service of the host is down, forced down or removed."""
    service = await find_compute_service(reader, host)
    return service is None or not is_up(service, clock.now(), services.config.hosts.down_seconds)


async def is_forced_down_or_removed(op: Operation, host: str) -> bool:
    """Whether an operator has confirmed that no guest runs there, by forcing the host down or removing it.

    On any other host without reports, guests may still run without the agent.
    """
    sql = "SELECT forced_down FROM services WHERE host = $1 AND program = $2"
    service = await op.db.fetch_one(sql, host, COMPUTE)
    return service is None or bool(service["forced_down"])


async def _forced_down(op: Operation, host: str) -> bool:
    down = await op.db.fetch_value("SELECT forced_down FROM services WHERE host = $1 AND program = $2", host, COMPUTE)
    return bool(down)
