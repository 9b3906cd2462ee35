"""Agents over NATS: requests to a host's subject, reports on another, and a connection that is made again for ever.

    <prefix>.host.<host>     commands, answered on the inbox that they name
    <prefix>.report.<host>   what a host says by itself

A host's credential needs no more than to subscribe to its commands, to publish its reports, and to answer what it was
asked (`allow_responses`); it asks nothing itself, and has no inbox. See docs/decisions/0017-agents-over-nats.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kilonova import certificates, ids
from kilonova.hosts import messages
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.messages import Command, Report
from kilonova.hosts.transport import DEFAULT_TIMEOUT, HostFailed, HostUnreachable, read_reply

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from kilonova.config import Messaging
    from kilonova.hosts.agent import Agent

log = logging.getLogger(__name__)

# Between two tries to connect.
PAUSE = 0.5
CONNECT_SECONDS = 5.0
# A connection that is dead without a word is found out by pings.
PING_EVERY, PINGS = 5, 2
# For so long a command waits for a connection that is just being made.
PATIENCE = 2.0

PART = "Kilonova-Part"
# What is left of the server's limit for subject and headers.
_ROOM = 1024
_MOST_PARTS = 64
# What a process holds of messages that have not come whole yet, in parts of all senders together.
_MOST_HELD = 1024
NO_RESPONDERS = "503"


class Setting(Exception):
    """For the operator: a setting that cannot work."""


def token(host: str) -> str:
    """A host's name as one token of a subject, which knows no dots, spaces or stars."""
    return "".join(
        character if character.isascii() and (character.isalnum() or character == "-") else _escaped(character)
        for character in host
    )


def _escaped(character: str) -> str:
    return "".join(f"_{byte:02X}" for byte in character.encode())


def command_subject(messaging: Messaging, host: str) -> str:
    return f"{messaging.prefix}.host.{token(host)}"


def report_subject(messaging: Messaging, host: str) -> str:
    return f"{messaging.prefix}.report.{token(host)}"


class TooLong(Exception):
    """A message that the server would not take in however many parts."""


class Arrival(NamedTuple):
    """A whole message. `status` is the server's own word instead of one."""

    subject: str
    reply: str
    data: bytes
    status: str = ""


Handler = Callable[[Arrival], Awaitable[None] | None]


def parts(data: bytes, limit: int) -> Iterator[tuple[bytes, dict[str, str] | None]]:
    """What is too long for one message goes in several, each of which says which of how many it is."""
    size = max(1, limit - _ROOM)
    if len(data) <= size:
        yield data, None
        return
    number = -(-len(data) // size)
    if number > _MOST_PARTS:
        raise TooLong(f"{len(data)} bytes are more than {_MOST_PARTS} messages of the NATS server hold: raise its "
                      f"max_payload, now {limit}")  # fmt: skip
    identity = ids.new_id()
    for index in range(number):
        yield data[index * size : (index + 1) * size], {PART: f"{identity}/{index}/{number}"}


class Joiner:
    """Puts parts together. Of one message they come in order; what a sender never ended is forgotten."""

    def __init__(self) -> None:
        self._open: dict[str, list[bytes]] = {}

    @property
    def held(self) -> int:
        """So many parts wait for others."""
        return sum(map(len, self._open.values()))

    def join(self, data: bytes, headers: Mapping[str, str] | None) -> bytes | None:
        """The whole, once it is there."""
        label = (headers or {}).get(PART)
        if label is None:
            return data
        identity, _, place = label.partition("/")
        try:
            index, number = map(int, place.split("/"))
        except ValueError:
            return None
        held = self._open.setdefault(identity, [])
        if index != len(held) or not index < number <= _MOST_PARTS:
            self._open.pop(identity)
            return None
        held.append(data)
        if len(held) == number:
            return b"".join(self._open.pop(identity))
        while self.held > _MOST_HELD:
            self._open.pop(next(iter(self._open)))
        return None


class Link:
    """One connection to the broker. Whenever it breaks it is made again, with its subscriptions, for ever."""

    def __init__(self, messaging: Messaging, name: str) -> None:
        self._messaging = messaging
        self._name = name
        self._servers = [url.strip() for url in messaging.url.split(",") if url.strip()]
        self._handlers: dict[str, Handler] = {}
        self._joiner = Joiner()
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._established = False
        self._trouble = ""
        self.on_connected: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._tls = _tls(messaging)

    def subscribe(self, subject: str, handler: Handler) -> None:
        """Before it runs."""
        self._handlers[subject] = handler

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def trouble(self) -> str:
        return self._trouble or "not connected yet"

    async def ready(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        return self.connected

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Raises ConnectionError, or TooLong."""
        from nats.errors import Error

        client = self._client
        if client is None or not client.is_connected:
            raise ConnectionError(f"no connection to the NATS server: {self.trouble}")
        try:
            for part, headers in parts(data, client.max_payload):
                await client.publish(subject, part, reply=reply, headers=headers)
        except (Error, OSError) as error:
            raise ConnectionError(f"the connection to the NATS server broke: {error}") from error

    async def run(self) -> None:
        """Until cancelled."""
        turn = 0
        while True:
            url = self._servers[turn % len(self._servers)]
            turn += 1
            try:
                await self._serve(url)
            except Exception as error:  # the library raises whatever its sockets and parsers do
                self._complain(url, error)
            _heed_cancel()
            await asyncio.sleep(PAUSE)

    async def _serve(self, url: str) -> None:
        """From connecting until the connection is lost."""
        lost = asyncio.Event()
        self._established = False
        client = await self._connect(url, lost)
        self._established = True
        try:
            _heed_cancel()
            await self._carry(client, url, lost)
        finally:
            self._client = None
            self._connected.clear()
            self.on_lost()
            await _close(client)

    async def _carry(self, client: Client, url: str, lost: asyncio.Event) -> None:
        for subject, handler in self._handlers.items():
            await client.subscribe(subject, cb=self._receiver(handler))
        while client.pending_data_size and client.is_connected:
            await asyncio.sleep(0)  # else the ping of the flush overtakes them, as the library does not queue it
        await client.flush(int(CONNECT_SECONDS))  # the server knows of them now
        self._client, self._trouble = client, ""
        self._connected.set()
        log.info("connected to the NATS server", extra={"server": _bare(url)})
        self.on_connected()
        _heed_cancel()
        await lost.wait()
        self._complain(url, client.last_error or ConnectionError("the connection was closed"))

    async def _connect(self, url: str, lost: asyncio.Event) -> Client:
        import nats

        async def closed() -> None:
            lost.set()

        async def trouble(error: Exception) -> None:
            # Permissions, above all: the server says which, and goes on. What keeps it from connecting is raised.
            if self._established:
                log.warning("the NATS server: %s", error)

        messaging = self._messaging
        async with asyncio.timeout(CONNECT_SECONDS):
            return await nats.connect(
                url,
                name=self._name,
                allow_reconnect=False,
                connect_timeout=int(CONNECT_SECONDS),
                ping_interval=PING_EVERY,
                max_outstanding_pings=PINGS,
                user=messaging.user or None,
                password=messaging.password or None,
                tls=self._tls,
                closed_cb=closed,
                disconnected_cb=closed,
                error_cb=trouble,
            )

    def _receiver(self, handler: Handler) -> Callable[[Msg], Awaitable[None]]:
        async def received(message: Msg) -> None:
            headers = message.headers
            status = (headers or {}).get("Status", "")
            data = self._joiner.join(message.data, headers)
            if data is None:
                return
            outcome = handler(Arrival(message.subject, message.reply, data, status))
            if outcome is not None:
                await outcome

        return received

    def _complain(self, url: str, error: Exception) -> None:
        """Once for the same trouble, however often it is met."""
        words = str(error) or type(error).__name__
        if words != self._trouble:
            log.warning("no connection to the NATS server: %s", words, extra={"server": _bare(url)})
        self._trouble = words


def _heed_cancel() -> None:
    """The library may lose a cancel that comes while it gives up a connection, and raise something else, or nothing."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await client.close()


def _bare(url: str) -> str:
    """Without a password that may stand in it."""
    return url.rpartition("@")[2]


def _tls(messaging: Messaging) -> ssl.SSLContext | None:
    """Raises Setting."""
    if not (messaging.ca_file or messaging.cert_file):
        return None
    try:
        return certificates.context(ssl.Purpose.SERVER_AUTH, messaging.ca_file, messaging.cert_file, messaging.key_file)
    except certificates.Unusable as error:
        raise Setting(f"messaging: certificates cannot be read: {error}") from None


class _Waiting(NamedTuple):
    host: str
    answer: asyncio.Future[bytes]


class NatsTransport:
    """The control plane's side: commands to agents, and what they report. `heard` is called with each report."""

    def __init__(
        self, messaging: Messaging, heard: Callable[[Report], None] | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self._messaging = messaging
        self._timeout = timeout
        self._heard = heard
        self._waiting: dict[str, _Waiting] = {}
        self._inbox = f"_INBOX.{token(messaging.prefix)}.{ids.new_id()}"
        self.link = Link(messaging, "control")
        self.link.on_lost = lambda: self._give_up(lambda _: True, "the connection to the NATS server broke")
        self.link.subscribe(f"{self._inbox}.*", self._answered)
        if heard is not None:
            self.link.subscribe(f"{messaging.prefix}.report.*", self._reported)

    async def run(self) -> None:
        await self.link.run()

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        seconds = self._timeout if timeout is None else timeout
        identity = ids.new_id()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = _Waiting(host, answer)
        try:
            async with asyncio.timeout(seconds):
                await self.link.ready(min(PATIENCE, seconds / 2))
                subject = command_subject(self._messaging, host)
                await self.link.publish(subject, messages.encode(command), f"{self._inbox}.{identity}")
                data = await answer
        except TimeoutError:
            raise HostUnreachable(host, f"no answer within {seconds:g} s") from None
        except ConnectionError as error:
            raise HostUnreachable(host, str(error)) from None
        except TooLong as error:
            raise HostFailed(host, "malformed", str(error)) from None
        finally:
            self._waiting.pop(identity, None)
        return read_reply(host, command, data)

    def restarted(self, host: str) -> None:
        """Whatever the host was asked before, nobody answers any more: ask again, which joins or repeats the work."""
        self._give_up(lambda waiting: waiting.host == host, "its agent was started anew")

    def _give_up(self, concerned: Callable[[_Waiting], bool], reason: str) -> None:
        for waiting in list(self._waiting.values()):
            if concerned(waiting) and not waiting.answer.done():
                waiting.answer.set_exception(ConnectionError(reason))

    def _answered(self, arrival: Arrival) -> None:
        waiting = self._waiting.get(arrival.subject.rpartition(".")[2])
        if waiting is None or waiting.answer.done():
            return
        if arrival.status == NO_RESPONDERS:
            waiting.answer.set_exception(ConnectionError("no agent is connected for it"))
        else:
            waiting.answer.set_result(arrival.data)

    def _reported(self, arrival: Arrival) -> None:
        try:
            report = messages.decode_report(arrival.data)
        except msgspec.DecodeError as error:
            log.warning("unreadable report on %s: %s", arrival.subject, error)
            return
        # Who may publish where is the server's to enforce, so the subject is to be trusted and not the message.
        if arrival.subject != report_subject(self._messaging, report.host):
            log.warning("a report of host %s on %s is ignored", report.host, arrival.subject)
        elif self._heard is not None:
            self._heard(report)


class NatsAgent:
    """The host's side: hands commands to the agent, each in a task of its own, and publishes reports."""

    def __init__(self, messaging: Messaging, agent: Agent) -> None:
        self._messaging = messaging
        self._agent = agent
        self._tasks: set[asyncio.Task[None]] = set()
        self.link = Link(messaging, agent.host)
        self.link.subscribe(command_subject(messaging, agent.host), self._asked)

    async def run(self) -> None:
        await self.link.run()

    async def report(self, report: Report) -> bool:
        """Whether it was sent. The next one says everything again."""
        try:
            await self.link.publish(report_subject(self._messaging, report.host), messages.encode(report))
        except ConnectionError:
            return False
        except TooLong as error:
            log.error("no report: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Takes no more answers to whoever waits. What a driver is in the middle of, it finds again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _asked(self, arrival: Arrival) -> None:
        task = asyncio.create_task(self._answer(arrival))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, arrival: Arrival) -> None:
        try:
            reply = await self._agent.handle(arrival.data)
        except NoAnswer:
            return
        try:
            await self._send(arrival.reply, reply)
        except ConnectionError as error:
            # Whoever asked asks again, and is answered from the journal.
            log.info("an answer could not be sent: %s", error)

    async def _send(self, inbox: str, reply: bytes) -> None:
        try:
            await self.link.publish(inbox, reply)
        except TooLong as error:
            await self.link.publish(inbox, messages.encode(messages.failure("driver", str(error))))
