"""Transports that carry commands to agents. All carry encoded messages and raise the same three errors.

`InProcess` reaches agents of the same process; `kilonova.hosts.nats` reaches agents over a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from kilonova.hosts import messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.messages import Command, GuestState, HostFacts
from kilonova.hosts.messages.verbs import Describe, ListGuests

log = logging.getLogger(__name__)

# A short timeout is safe: a repeated command joins the work under way.
DEFAULT_TIMEOUT_SECONDS = 60.0
_CONCURRENT_CALLS = 64

T = TypeVar("T")


class HostCallError(Exception):
    """A command to a host failed. `passing`: the failure is transient, so the same command may be sent again.

    `public` is the text for users: the driver's own message may name hosts and paths.
    """

    passing: bool = False
    public = "failed inside the host"

    def __init__(self, host: str, message: str) -> None:
        super().__init__(f"{host}: {message}")
        self.host = host
        self.message = message


class HostUnreachable(HostCallError):
    """The host did not respond. The command may be done, under way, or never received."""

    passing = True
    public = "no answer from the host"


_PUBLIC_MESSAGES = {
    "driver": "refused by the hypervisor",
    "missing guest": "the guest is missing",
    "guest differs": "another guest has the same id",
    "interrupted": "interrupted by a delete or an abort",
    "no such slot": "the parked guest is missing",
    "no guest agent": "the guest runs no guest agent",
    "not running": "the guest does not run",
    "no display": "the guest has no console of this type",
    "unsupported": "the host's agent is of an older release",
}


class HostFailed(HostCallError):
    """The host answered with an error."""

    def __init__(self, host: str, kind: str, message: str, passing: bool = False) -> None:
        super().__init__(host, message)
        self.kind = kind
        self.passing = passing
        self.public = _PUBLIC_MESSAGES.get(kind, HostCallError.public)


class StaleEpoch(HostCallError):
    """Another worker has taken over the operation: the caller must stop at once."""


class Transport(Protocol):
    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        """Return the verb's answer. Raises HostUnreachable, HostFailed or StaleEpoch."""


class InProcess:
    """Reaches agents of this process. Messages are encoded and decoded as for any other transport."""

    def __init__(self, find_agent: Callable[[str], Agent | None], timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._find_agent = find_agent
        self._timeout = timeout

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        agent = self._find_agent(host)
        if agent is None:
            raise HostUnreachable(host, "no agent serves this host")
        seconds = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                data = await agent.handle(messages.encode(command))
        except TimeoutError:
            raise HostUnreachable(host, f"no answer within {seconds:g} s") from None
        except NoAnswer as error:
            raise HostUnreachable(host, str(error)) from None
        return read_reply(host, command, data)


def read_reply(host: str, command: Command, data: bytes) -> Any:
    """Decode a reply, for every transport. Raises HostFailed or StaleEpoch."""
    try:
        reply = messages.decode_reply(data)
        if reply.ok:
            return messages.decode_answer(command.verb, reply)
    except msgspec.DecodeError as decode_error:
        raise HostFailed(host, "malformed", f"unreadable reply: {decode_error}") from None
    error = reply.error
    if error is None:
        raise HostFailed(host, "malformed", "the reply is a failure without an error")
    if error.kind == "stale epoch":
        raise StaleEpoch(host, error.message)
    raise HostFailed(host, error.kind, error.message, error.passing)


async def describe(transport: Transport, host: str, *, timeout: float | None = None) -> HostFacts:
    facts: HostFacts = await transport.call(host, Command(host=host, verb=Describe()), timeout=timeout)
    return facts


async def list_guests(transport: Transport, host: str, *, timeout: float | None = None) -> list[GuestState]:
    guests: list[GuestState] = await transport.call(host, Command(host=host, verb=ListGuests()), timeout=timeout)
    return guests


async def describe_all(
    transport: Transport, hosts: Iterable[str], *, timeout: float | None = None
) -> dict[str, HostFacts | HostCallError]:
    return await _call_all(lambda host: describe(transport, host, timeout=timeout), hosts)


async def describe_reachable(transport: Transport, hosts: Iterable[str], *, timeout: float) -> list[HostFacts]:
    """Return the facts of the hosts that respond, in the order of `hosts`."""
    names, found = list(hosts), []
    answers = await describe_all(transport, names, timeout=timeout)
    for host in names:
        answer = answers[host]
        if isinstance(answer, HostCallError):
            log.warning("host %s cannot be described: %s", host, answer.message)
        elif answer.host != host:
            log.error("host %s describes itself as %s, and is ignored", host, answer.host)
        else:
            found.append(answer)
    return found


async def list_all_guests(
    transport: Transport, hosts: Iterable[str], *, timeout: float | None = None
) -> dict[str, list[GuestState] | HostCallError]:
    return await _call_all(lambda host: list_guests(transport, host, timeout=timeout), hosts)


async def _call_all(call: Callable[[str], Awaitable[T]], hosts: Iterable[str]) -> dict[str, T | HostCallError]:
    """Return each host's answer or error."""
    queue = iter(hosts)
    answers: dict[str, T | HostCallError] = {}

    async def work() -> None:
        for host in queue:
            try:
                answers[host] = await call(host)
            except HostCallError as error:
                answers[host] = error

    await asyncio.gather(*(work() for _ in range(_CONCURRENT_CALLS)))
    return answers
