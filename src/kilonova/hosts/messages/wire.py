"""Commands and replies, and the encoding and decoding of messages."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, cast

import msgspec

from kilonova.hosts.messages.base import VERSION, Message
from kilonova.hosts.messages.facts import Report
from kilonova.hosts.messages.guests import Guest
from kilonova.hosts.messages.verbs import VERBS, Answer, Change, Read, Verb, answer_type

V = TypeVar("V", bound=Verb[object], covariant=True)


class Command(Message, Generic[V], frozen=True, kw_only=True):
    """A verb for one host. A change names its operation, step, round and lease epoch.

    `incarnation` and `leases` are the mark of the sender's database (`kilonova.store.incarnation`).
    """

    version: int = VERSION
    host: str
    operation: str = ""
    step: str = ""
    round: int = 0
    epoch: int = 0
    incarnation: int = 0
    leases: int = 0
    verb: V


ErrorKind = Literal[
    "driver",  # the hypervisor refused
    "missing guest",
    "guest differs",  # the host has a guest with this id and other hardware
    "interrupted",  # by a destroy of the same guest, or a stop of its migration
    "no such slot",
    "missing disk",
    "no guest agent",  # the guest runs no agent that could execute the verb
    "not running",  # the verb needs a running guest
    "no display",  # of the requested type
    "image refused",  # the image service does not store the data: a quota or limit
    "image busy",  # another upload to the image has not ended
    "image replaced",  # the image has other data than the control plane says
    "stale epoch",
    "wrong host",
    "unsupported",  # an unknown verb, of another release
    "malformed",
    "internal",
]


class HostError(Message, frozen=True, kw_only=True):
    # Not ErrorKind: an older control plane must be able to decode a newer agent's kinds.
    kind: str
    message: str
    passing: bool = False


class Reply(Message, frozen=True, kw_only=True):
    """`result` stays encoded: its type depends on the verb."""

    version: int = VERSION
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: HostError | None = None


class UnreadableCommand(Exception):
    """The bytes are not a command of this release."""

    def __init__(self, error: HostError) -> None:
        super().__init__(error.message)
        self.error = error


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command[Change | Read])
_replies = msgspec.msgpack.Decoder(Reply)
_reports = msgspec.msgpack.Decoder(Report)
_guests = msgspec.msgpack.Decoder(Guest)
_answers = {verb: msgspec.msgpack.Decoder(answer_type(verb)) for verb in VERBS.values()}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command[Change | Read]:
    """Raises UnreadableCommand."""
    try:
        return _commands.decode(data)
    except msgspec.DecodeError as error:
        raise UnreadableCommand(_describe_unreadable(data, error)) from None


def decode_report(data: bytes) -> Report:
    """Raises msgspec.DecodeError."""
    return _reports.decode(data)


def decode_guest(data: bytes) -> Guest:
    return _guests.decode(data)


def decode_reply(data: bytes) -> Reply:
    """Raises msgspec.DecodeError."""
    return _replies.decode(data)


def decode_answer(verb: Verb[Answer], reply: Reply) -> Answer:
    """Raises msgspec.DecodeError."""
    return cast("Answer", _answers[type(verb)].decode(reply.result))


def success(result: object) -> Reply:
    return Reply(ok=True, result=msgspec.Raw(_encoder.encode(result)))


def failure(kind: ErrorKind, message: str, *, passing: bool = False) -> Reply:
    return Reply(ok=False, error=HostError(kind=kind, message=message, passing=passing))


def _describe_unreadable(data: bytes, error: Exception) -> HostError:
    """Distinguish a verb of another release from malformed data."""
    try:
        untyped = msgspec.msgpack.decode(data)
        verb, version = str(untyped["verb"]["type"]), untyped.get("version")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return HostError(kind="malformed", message=f"not a command: {error}")
    if verb in VERBS:
        return HostError(kind="malformed", message=f"malformed {verb}: {error}")
    message = f"unknown verb {verb!r} of protocol version {version}; this agent speaks version {VERSION}"
    return HostError(kind="unsupported", message=message)
