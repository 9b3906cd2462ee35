"""The NATS transport: commands to agents and their reports, over a connection that always reconnects.

    <prefix>.host.<host>     commands, answered on the inbox that they name
    <prefix>.report.<host>   reports of the host

A host's credential must allow it to subscribe to its commands, to publish its reports, and to reply to commands
(`allow_responses`). The host sends no requests and has no inbox. See docs/decisions/0017-agents-over-nats.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kilonova import certificates, encryption, ids
from kilonova.hosts import messages
from kilonova.hosts.drivers.base import NoAnswer
from kilonova.hosts.messages import Command, Report
from kilonova.hosts.messages.verbs import Answer, Verb
from kilonova.hosts.transport import DEFAULT_TIMEOUT_SECONDS, HostUnreachable, MalformedMessage, read_reply

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from kilonova.config import Messaging
    from kilonova.hosts.agent import Agent

log = logging.getLogger(__name__)

RECONNECT_PAUSE_SECONDS = 0.5
CONNECT_TIMEOUT_SECONDS = 5.0
# Pings detect a dead connection that was not closed.
PING_INTERVAL_SECONDS, MAX_OUTSTANDING_PINGS = 5, 2
# How long a command waits for a connection that is being established.
CONNECTION_WAIT_SECONDS = 2.0

PART_HEADER = "Kilonova-Part"
# Part of the server's payload limit that is reserved for subject and headers.
_HEADER_BYTES = 1024
_MAX_PARTS = 64
# Limit for parts of incomplete messages that a process holds, of all senders together.
_MAX_HELD_PARTS = 1024
NO_RESPONDERS = "503"


class SettingError(Exception):
    """A setting of `messaging` is unusable. The text is for the operator."""


def subject_token(host: str) -> str:
    """Encode a host's name as one token of a subject: without dots, spaces and wildcards."""
    return "".join(
        character if character.isascii() and (character.isalnum() or character == "-") else _escape(character)
        for character in host
    )


def _escape(character: str) -> str:
    return "".join(f"_{byte:02X}" for byte in character.encode())


def command_subject(messaging: Messaging, host: str) -> str:
    return f"{messaging.prefix}.host.{subject_token(host)}"


def report_subject(messaging: Messaging, host: str) -> str:
    return f"{messaging.prefix}.report.{subject_token(host)}"


class MessageTooLong(Exception):
    """The message exceeds the server's limit even when split into parts."""


class ReceivedMessage(NamedTuple):
    """A complete message. `status`: a status that the server sent instead of a message."""

    subject: str
    reply: str
    data: bytes
    status: str = ""


Handler = Callable[[ReceivedMessage], Awaitable[None] | None]


def split_message(data: bytes, limit: int) -> Iterator[tuple[bytes, dict[str, str] | None]]:
    """Split data into parts within the server's limit. Each part's header gives its index and the number of parts."""
    size = max(1, limit - _HEADER_BYTES)
    if len(data) <= size:
        yield data, None
        return
    number = -(-len(data) // size)
    if number > _MAX_PARTS:
        raise MessageTooLong(
            f"{len(data)} bytes exceed {_MAX_PARTS} messages of the NATS server: raise its max_payload, now {limit}"
        )
    identity = ids.new_id()
    for index in range(number):
        yield data[index * size : (index + 1) * size], {PART_HEADER: f"{identity}/{index}/{number}"}


class PartAssembler:
    """Reassembles messages from parts, which arrive in order. Discards the oldest incomplete messages."""

    def __init__(self) -> None:
        self._open: dict[str, list[bytes]] = {}

    @property
    def held(self) -> int:
        """Number of parts held for incomplete messages."""
        return sum(map(len, self._open.values()))

    def join(self, data: bytes, headers: Mapping[str, str] | None) -> bytes | None:
        """Return the whole message once its last part has arrived, else None."""
        label = (headers or {}).get(PART_HEADER)
        if label is None:
            return data
        identity, _, place = label.partition("/")
        try:
            index, number = map(int, place.split("/"))
        except ValueError:
            return None
        held = self._open.setdefault(identity, [])
        if index != len(held) or not index < number <= _MAX_PARTS:
            self._open.pop(identity)
            return None
        held.append(data)
        if len(held) == number:
            return b"".join(self._open.pop(identity))
        while self.held > _MAX_HELD_PARTS:
            self._open.pop(next(iter(self._open)))
        return None


class NatsConnection:
    """One connection to the broker. Reconnects and subscribes again whenever it breaks."""

    def __init__(self, messaging: Messaging, name: str) -> None:
        self._messaging = messaging
        self._name = name
        self._servers = [url.strip() for url in messaging.url.split(",") if url.strip()]
        self._handlers: dict[str, Handler] = {}
        self._joiner = PartAssembler()
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._established = False
        self._last_error = ""
        self.on_connected: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._tls = _tls_context(messaging)

    def subscribe(self, subject: str, handler: Handler) -> None:
        """Register a handler. Must be called before `run`."""
        self._handlers[subject] = handler

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def last_error(self) -> str:
        return self._last_error or "not connected yet"

    async def wait_connected(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        return self.connected

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Raises ConnectionError or MessageTooLong."""
        from nats.errors import Error

        client = self._client
        if client is None or not client.is_connected:
            raise ConnectionError(f"no connection to the NATS server: {self.last_error}")
        try:
            for part, headers in split_message(data, client.max_payload):
                await client.publish(subject, part, reply=reply, headers=headers)
        except (Error, OSError) as error:
            raise ConnectionError(f"the connection to the NATS server broke: {error}") from error

    async def run(self) -> None:
        """Stay connected until cancelled."""
        for attempt in itertools.count():
            url = self._servers[attempt % len(self._servers)]
            try:
                await self._serve(url)
            except Exception as error:  # the library raises any exception of its sockets and parsers
                self._log_error(url, error)
            _raise_if_cancelled()
            await asyncio.sleep(RECONNECT_PAUSE_SECONDS)

    async def _serve(self, url: str) -> None:
        """Connect, and serve the connection until it is lost."""
        lost = asyncio.Event()
        self._established = False
        client = await self._connect(url, lost)
        self._established = True
        try:
            _raise_if_cancelled()
            await self._serve_client(client, url, lost)
        finally:
            self._client = None
            self._connected.clear()
            self.on_lost()
            await _close(client)

    async def _serve_client(self, client: Client, url: str, lost: asyncio.Event) -> None:
        for subject, handler in self._handlers.items():
            await client.subscribe(subject, cb=self._receiver(handler))
        while client.pending_data_size and client.is_connected:
            await asyncio.sleep(0)  # the library does not queue the flush's ping: it would overtake the subscriptions
        await client.flush(int(CONNECT_TIMEOUT_SECONDS))  # the server knows the subscriptions afterwards
        self._client, self._last_error = client, ""
        self._connected.set()
        log.info("connected to the NATS server", extra={"server": _without_credentials(url)})
        self.on_connected()
        _raise_if_cancelled()
        await lost.wait()
        self._log_error(url, client.last_error or ConnectionError("the connection was closed"))

    async def _connect(self, url: str, lost: asyncio.Event) -> Client:
        from nats.aio.client import Client

        from kilonova.hosts.nats_client import TlsClient

        async def closed() -> None:
            lost.set()

        async def on_error(error: Exception) -> None:
            # Mostly denied permissions, after which the connection continues. Errors while connecting are raised.
            if self._established:
                log.warning("the NATS server: %s", error)

        messaging = self._messaging
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            client = Client() if self._tls is None else TlsClient()
            await client.connect(
                url,
                name=self._name,
                allow_reconnect=False,
                connect_timeout=int(CONNECT_TIMEOUT_SECONDS),
                ping_interval=PING_INTERVAL_SECONDS,
                max_outstanding_pings=MAX_OUTSTANDING_PINGS,
                user=messaging.user or None,
                password=messaging.password or None,
                tls=self._tls,
                closed_cb=closed,
                disconnected_cb=closed,
                error_cb=on_error,
            )
            return client

    def _receiver(self, handler: Handler) -> Callable[[Msg], Awaitable[None]]:
        async def received(message: Msg) -> None:
            headers = message.headers
            status = (headers or {}).get("Status", "")
            data = self._joiner.join(message.data, headers)
            if data is None:
                return
            outcome = handler(ReceivedMessage(message.subject, message.reply, data, status))
            if outcome is not None:
                await outcome

        return received

    def _log_error(self, url: str, error: Exception) -> None:
        """Log a connection error, unless the previous error was the same."""
        text = str(error) or type(error).__name__
        if text != self._last_error:
            log.warning("no connection to the NATS server: %s", text, extra={"server": _without_credentials(url)})
        self._last_error = text


def _raise_if_cancelled() -> None:
    """Raise a cancellation that the library swallowed while it closed a connection."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(client: Client) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(1.0):
            await client.close()


def _without_credentials(url: str) -> str:
    return url.rpartition("@")[2]


def _tls_context(messaging: Messaging) -> ssl.SSLContext | None:
    """The context for TLS, which is then required; None without. Raises SettingError."""
    if not encryption.uses_tls(messaging):
        return None
    try:
        return certificates.tls_context(
            ssl.Purpose.SERVER_AUTH, messaging.ca_file, messaging.cert_file, messaging.key_file
        )
    except certificates.UnusableCertificate as error:
        raise SettingError(f"messaging: certificates cannot be read: {error}") from None


class _PendingCall(NamedTuple):
    host: str
    answer: asyncio.Future[bytes]


class NatsTransport:
    """The control plane's side: sends commands to agents and passes their reports to `on_report`."""

    def __init__(
        self,
        messaging: Messaging,
        on_report: Callable[[Report], None] | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._messaging = messaging
        self._timeout = timeout
        self._on_report = on_report
        self._pending: dict[str, _PendingCall] = {}
        self._inbox = f"_INBOX.{subject_token(messaging.prefix)}.{ids.new_id()}"
        self.connection = NatsConnection(messaging, "control")
        self.connection.on_lost = lambda: self._fail_pending("the connection to the NATS server broke")
        self.connection.subscribe(f"{self._inbox}.*", self._receive_reply)
        if on_report is not None:
            self.connection.subscribe(f"{messaging.prefix}.report.*", self._receive_report)

    async def run(self) -> None:
        await self.connection.run()

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        seconds = self._timeout if timeout is None else timeout
        identity = ids.new_id()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[identity] = _PendingCall(host, answer)
        try:
            async with asyncio.timeout(seconds):
                await self.connection.wait_connected(min(CONNECTION_WAIT_SECONDS, seconds / 2))
                subject = command_subject(self._messaging, host)
                await self.connection.publish(subject, messages.encode(command), f"{self._inbox}.{identity}")
                data = await answer
        except TimeoutError:
            raise HostUnreachable(host, f"no answer within {seconds:g} s") from None
        except ConnectionError as error:
            raise HostUnreachable(host, str(error)) from None
        except MessageTooLong as error:
            raise MalformedMessage(host, str(error)) from None
        finally:
            self._pending.pop(identity, None)
        return read_reply(host, command, data)

    def agent_restarted(self, host: str) -> None:
        """Fail the host's pending calls, which the restarted agent does not answer. A repeat finds the work."""
        self._fail_pending("its agent was restarted", host)

    def _fail_pending(self, reason: str, host: str | None = None) -> None:
        for call in list(self._pending.values()):
            if host in (None, call.host) and not call.answer.done():
                call.answer.set_exception(ConnectionError(reason))

    def _receive_reply(self, message: ReceivedMessage) -> None:
        call = self._pending.get(message.subject.rpartition(".")[2])
        if call is None or call.answer.done():
            return
        if message.status == NO_RESPONDERS:
            call.answer.set_exception(ConnectionError("no agent is connected for it"))
        else:
            call.answer.set_result(message.data)

    def _receive_report(self, message: ReceivedMessage) -> None:
        try:
            report = messages.decode_report(message.data)
        except msgspec.DecodeError as error:
            log.warning("unreadable report on %s: %s", message.subject, error)
            return
        # The NATS server enforces who may publish on a subject. So the subject is trusted, the message's host is not.
        if message.subject != report_subject(self._messaging, report.host):
            log.warning("a report of host %s on %s is ignored", report.host, message.subject)
        elif self._on_report is not None:
            self._on_report(report)


class NatsAgent:
    """The host's side: passes each command to the agent in a task of its own, and publishes reports."""

    def __init__(self, messaging: Messaging, agent: Agent) -> None:
        self._messaging = messaging
        self._agent = agent
        self._tasks: set[asyncio.Task[None]] = set()
        self.connection = NatsConnection(messaging, agent.host)
        self.connection.subscribe(command_subject(messaging, agent.host), self._receive_command)

    async def run(self) -> None:
        await self.connection.run()

    async def report(self, report: Report) -> bool:
        """Return whether the report was sent. A lost report does no harm: each is complete."""
        try:
            await self.connection.publish(report_subject(self._messaging, report.host), messages.encode(report))
        except ConnectionError:
            return False
        except MessageTooLong as error:
            log.error("no report: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Send no more replies. A driver finds interrupted work again when its command is repeated."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _receive_command(self, message: ReceivedMessage) -> None:
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: ReceivedMessage) -> None:
        try:
            reply = await self._agent.handle(message.data)
        except NoAnswer:
            return
        try:
            await self._send(message.reply, reply)
        except ConnectionError as error:
            # The caller repeats the command, and the journal has the reply.
            log.info("a reply could not be sent: %s", error)

    async def _send(self, inbox: str, reply: bytes) -> None:
        try:
            await self.connection.publish(inbox, reply)
        except MessageTooLong as error:
            await self.connection.publish(inbox, messages.encode(messages.failure("driver", str(error))))
