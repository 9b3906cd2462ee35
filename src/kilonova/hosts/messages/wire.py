"""How commands and replies travel, and how they are read."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kilonova.hosts.messages.base import VERSION, Message
from kilonova.hosts.messages.facts import Report
from kilonova.hosts.messages.guests import Guest
from kilonova.hosts.messages.verbs import VERBS, Change, Read, Verb


class Command(Message, frozen=True, kw_only=True):
    """One thing asked of one host. A change says for which operation, step, round and lease epoch."""

    version: int = VERSION
    host: str
    operation: str = ""
    step: str = ""
    round: int = 0
    epoch: int = 0
    verb: Change | Read


ErrorKind = Literal[
    "driver",  # the hypervisor said no
    "missing guest",
    "guest differs",  # a guest of that id is there, built otherwise
    "interrupted",  # a destroy of the same guest, or a stop of its migration, came in between
    "no such slot",
    "missing disk",
    "no guest agent",  # nobody in the guest does what is asked of it
    "not running",  # only a running guest could
    "no display",  # of the type that was asked for
    "stale epoch",
    "wrong host",
    "unsupported",  # a verb of another release
    "malformed",
    "internal",
]


class HostError(Message, frozen=True, kw_only=True):
    # Any text, not ErrorKind: an older control plane must be able to read a newer agent's kinds.
    kind: str
    message: str
    passing: bool = False


class Reply(Message, frozen=True, kw_only=True):
    """`result` stays encoded here; the caller decodes it as the type its verb promises."""

    version: int = VERSION
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: HostError | None = None


class Unreadable(Exception):
    """Bytes that are no command of this release; `error` says why."""

    def __init__(self, error: HostError) -> None:
        super().__init__(error.message)
        self.error = error


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_replies = msgspec.msgpack.Decoder(Reply)
_reports = msgspec.msgpack.Decoder(Report)
_guests = msgspec.msgpack.Decoder(Guest)
_answers: dict[type[Verb], msgspec.msgpack.Decoder[Any]] = {
    verb: msgspec.msgpack.Decoder(verb.answer) for verb in VERBS.values()
}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    """Raises Unreadable."""
    try:
        return _commands.decode(data)
    except msgspec.DecodeError as trouble:
        raise Unreadable(_why_unreadable(data, trouble)) from None


def decode_report(data: bytes) -> Report:
    """Raises msgspec.DecodeError."""
    return _reports.decode(data)


def decode_guest(data: bytes) -> Guest:
    return _guests.decode(data)


def decode_reply(data: bytes) -> Reply:
    """Raises msgspec.DecodeError."""
    return _replies.decode(data)


def decode_answer(verb: Verb, reply: Reply) -> Any:
    """Raises msgspec.DecodeError."""
    return _answers[type(verb)].decode(reply.result)


def success(result: Any) -> Reply:
    return Reply(ok=True, result=msgspec.Raw(_encoder.encode(result)))


def failure(kind: ErrorKind, message: str, *, passing: bool = False) -> Reply:
    return Reply(ok=False, error=HostError(kind=kind, message=message, passing=passing))


def _why_unreadable(data: bytes, trouble: Exception) -> HostError:
    """Tells a verb of another release from rubbish."""
    try:
        loose = msgspec.msgpack.decode(data)
        verb, version = str(loose["verb"]["type"]), loose.get("version")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return HostError(kind="malformed", message=f"not a command: {trouble}")
    if verb in VERBS:
        return HostError(kind="malformed", message=f"malformed {verb}: {trouble}")
    message = f"unknown verb {verb!r} of protocol version {version}; this agent speaks version {VERSION}"
    return HostError(kind="unsupported", message=message)
