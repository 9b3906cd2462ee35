"""Transports that carry commands to agents, and the outcomes of commands. All transports carry encoded messages.

`InProcess` reaches agents of the same process; `kilonova.hosts.nats` reaches agents over a broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Protocol, TypeVar

import msgspec

from kilonova.hosts import messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.messages import Command, GuestState, HostFacts
from kilonova.hosts.messages.verbs import Answer, Describe, ListGuests, Verb

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


class HostNotResponding(HostCallError):
    """The host has not responded to any call for this long."""

    def __init__(self, host: str, seconds: float) -> None:
        super().__init__(host, f"did not respond for {seconds:g} s")
        self.public = self.message


class StaleEpoch(HostCallError):
    """Another worker has taken over the operation: the caller must stop at once."""

    kind = "stale epoch"


class HostRefused(HostCallError):
    """The host answered with an error. `kind` is the error's name on the wire; errors of any other kind are plain."""

    kind: ClassVar[str] = ""

    def __init__(self, host: str, message: str, *, passing: bool = False) -> None:
        super().__init__(host, message)
        self.passing = passing


class RefusedByHypervisor(HostRefused):
    kind = "driver"
    public = "refused by the hypervisor"


class NothingThere(HostRefused):
    """The host has no such guest or slot, so it has nothing to stop or remove."""


class GuestMissing(NothingThere):
    kind = "missing guest"
    public = "the guest is missing"


class SlotMissing(NothingThere):
    kind = "no such slot"
    public = "the parked guest is missing"


class GuestDiffers(HostRefused):
    kind = "guest differs"
    public = "another guest has the same id"


class Interrupted(HostRefused):
    kind = "interrupted"
    public = "interrupted by a delete or an abort"


class NoGuestAgent(HostRefused):
    kind = "no guest agent"
    public = "the guest runs no guest agent"


class GuestNotRunning(HostRefused):
    kind = "not running"
    public = "the guest does not run"


class NoDisplay(HostRefused):
    kind = "no display"
    public = "the guest has no console of this type"


class ImageRefused(HostRefused):
    kind = "image refused"
    public = "the image service does not store the data, because it exceeds a quota or limit"


class ImageBusy(HostRefused):
    kind = "image busy"
    public = "another upload to the image has not ended"


class ImageReplaced(HostRefused):
    kind = "image replaced"
    public = "the data of the image is damaged, or has changed since the server was created"


class VersionTooOld(HostRefused):
    kind = "unsupported"
    public = "the host's agent is of an older release"


class MalformedMessage(HostRefused):
    """Command or reply could not be read."""

    kind = "malformed"


_REFUSALS: dict[str, type[HostRefused]] = {
    refusal.kind: refusal
    for refusal in (
        RefusedByHypervisor,
        GuestMissing,
        SlotMissing,
        GuestDiffers,
        Interrupted,
        NoGuestAgent,
        GuestNotRunning,
        NoDisplay,
        ImageRefused,
        ImageBusy,
        ImageReplaced,
        VersionTooOld,
        MalformedMessage,
    )
}


class Transport(Protocol):
    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        """Return the verb's answer. Raises HostUnreachable, HostRefused or StaleEpoch."""


class InProcess:
    """Reaches agents of this process. Messages are encoded and decoded as for any other transport."""

    def __init__(self, find_agent: Callable[[str], Agent | None], timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._find_agent = find_agent
        self._timeout = timeout

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
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


def read_reply(host: str, command: Command[Verb[Answer]], data: bytes) -> Answer:
    """Decode a reply, for every transport. Raises HostRefused or StaleEpoch."""
    try:
        reply = messages.decode_reply(data)
        if reply.ok:
            return messages.decode_answer(command.verb, reply)
    except msgspec.DecodeError as decode_error:
        raise MalformedMessage(host, f"unreadable reply: {decode_error}") from None
    error = reply.error
    if error is None:
        raise MalformedMessage(host, "the reply is a failure without an error")
    if error.kind == StaleEpoch.kind:
        raise StaleEpoch(host, error.message)
    raise _REFUSALS.get(error.kind, HostRefused)(host, error.message, passing=error.passing)


async def describe(transport: Transport, host: str, *, timeout: float | None = None) -> HostFacts:
    return await transport.call(host, Command(host=host, verb=Describe()), timeout=timeout)


async def list_guests(transport: Transport, host: str, *, timeout: float | None = None) -> list[GuestState]:
    return await transport.call(host, Command(host=host, verb=ListGuests()), timeout=timeout)


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
