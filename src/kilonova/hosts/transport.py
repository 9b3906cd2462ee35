"""How commands reach agents. Every transport carries encoded messages and raises the same three errors.

`InProcess` serves agents of the same process. One over a broker publishes the same bytes to its host's subject;
on the other side a subscription hands them to `Agent.handle` and answers with what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from kilonova.hosts import messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.messages import Command, Describe, GuestState, HostFacts, ListGuests

# Giving up early costs nothing: the repeat joins the work under way.
DEFAULT_TIMEOUT = 60.0
_AT_ONCE = 64

T = TypeVar("T")


class HostTrouble(Exception):
    """`passing` says whether the same command is worth sending again."""

    passing: bool = False
    public = "failed inside the host"
    """What users may read of it. The message is a driver's: it may name hosts, paths and whatever else."""

    def __init__(self, host: str, message: str) -> None:
        super().__init__(f"{host}: {message}")
        self.host = host
        self.message = message


class HostUnreachable(HostTrouble):
    """No answer came. The command may or may not have been done, or be under way."""

    passing = True
    public = "no answer from the host"


_PUBLIC = {
    "driver": "refused by the hypervisor",
    "missing guest": "the guest is missing",
    "guest differs": "another guest has its id",
    "interrupted": "interrupted by a delete or an abort",
    "no such slot": "what was kept of the guest is missing",
    "no guest agent": "nobody in the guest does it",
    "not running": "the guest does not run",
    "no display": "the guest has no such console",
    "unsupported": "the host is of an older release",
}


class HostFailed(HostTrouble):
    """The host answered that it could not."""

    def __init__(self, host: str, kind: str, message: str, passing: bool = False) -> None:
        super().__init__(host, message)
        self.kind = kind
        self.passing = passing
        self.public = _PUBLIC.get(kind, HostTrouble.public)


class StaleEpoch(HostTrouble):
    """Another worker has taken the operation over: the caller must stop at once."""


class Transport(Protocol):
    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        """The verb's answer. Raises HostUnreachable, HostFailed or StaleEpoch."""


class InProcess:
    """Agents of this process, found by host name. Really encodes and decodes, so nothing passes only here."""

    def __init__(self, find: Callable[[str], Agent | None], timeout: float = DEFAULT_TIMEOUT) -> None:
        self._find = find
        self._timeout = timeout

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        agent = self._find(host)
        if agent is None:
            raise HostUnreachable(host, "no agent serves this host")
        seconds = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                data = await agent.handle(messages.encode(command))
        except TimeoutError:
            raise HostUnreachable(host, f"no answer within {seconds:g} s") from None
        except NoAnswer as silence:
            raise HostUnreachable(host, str(silence)) from None
        return read_reply(host, command, data)


def read_reply(host: str, command: Command, data: bytes) -> Any:
    """What any transport makes of the bytes that came back."""
    try:
        reply = messages.decode_reply(data)
        if reply.ok:
            return messages.decode_answer(command.verb, reply)
    except msgspec.DecodeError as trouble:
        raise HostFailed(host, "malformed", f"unreadable reply: {trouble}") from None
    error = reply.error
    if error is None:
        raise HostFailed(host, "malformed", "a failure without a reason")
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
) -> dict[str, HostFacts | HostTrouble]:
    return await _ask_all(lambda host: describe(transport, host, timeout=timeout), hosts)


async def list_all_guests(
    transport: Transport, hosts: Iterable[str], *, timeout: float | None = None
) -> dict[str, list[GuestState] | HostTrouble]:
    return await _ask_all(lambda host: list_guests(transport, host, timeout=timeout), hosts)


async def _ask_all(ask: Callable[[str], Awaitable[T]], hosts: Iterable[str]) -> dict[str, T | HostTrouble]:
    """Every host's answer, or why there is none; a silent host hides no other."""
    waiting = iter(hosts)
    found: dict[str, T | HostTrouble] = {}

    async def work() -> None:
        for host in waiting:
            try:
                found[host] = await ask(host)
            except HostTrouble as trouble:
                found[host] = trouble

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return found
