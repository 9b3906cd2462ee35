"""Messages between releases: what a reader does not know, and what nobody may read in a log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kilonova.hosts import messages
from kilonova.hosts.messages import Command, Destroy, PowerOff, Reboot, Spawn, Unreadable
from tests.hosts.support import command, guest


def loose(message: Command) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(messages.encode(message))
    return fields


@pytest.mark.parametrize(
    "verb",
    [
        Spawn(guest=guest(user_data=b"\x00\xff", metadata={"role": "web"}, config_drive=True)),
        Destroy(guest_id="g"),
        PowerOff(guest_id="g"),
        Reboot(guest_id="g", hard=True),
    ],
)
def test_a_command_arrives_as_it_was_sent(verb: messages.Change) -> None:
    sent = command(verb, round=3, epoch=7)
    assert messages.decode_command(messages.encode(sent)) == sent


def test_fields_of_a_newer_release_are_ignored() -> None:
    fields = loose(command(Spawn(guest=guest("g"))))
    fields["colour"] = "blue"
    fields["verb"]["guest"]["tpm"] = {"version": "2.0"}
    assert messages.decode_command(msgspec.msgpack.encode(fields)) == command(Spawn(guest=guest("g")))


def test_the_version_is_always_on_the_wire() -> None:
    assert loose(command(Destroy(guest_id="g")))["version"] == messages.VERSION


def test_a_verb_of_a_newer_release_is_refused_by_name() -> None:
    fields = loose(command(Destroy(guest_id="g"))) | {"verb": {"type": "teleport"}, "version": 9}
    with pytest.raises(Unreadable) as refused:
        messages.decode_command(msgspec.msgpack.encode(fields))
    assert refused.value.error.kind == "unsupported"
    assert "'teleport' of protocol version 9" in refused.value.error.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xff",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"verb": 1}),
        msgspec.msgpack.encode({"host": "h", "verb": {"type": "spawn"}}),
    ],
)
def test_rubbish_is_malformed(data: bytes) -> None:
    with pytest.raises(Unreadable) as refused:
        messages.decode_command(data)
    assert refused.value.error.kind == "malformed"


def test_no_secret_in_a_repr() -> None:
    secret = "correct horse battery staple"
    sent = command(Spawn(guest=guest(user_data=secret.encode(), metadata={"password": secret})))
    assert secret not in repr(sent)
    assert secret not in str(sent.verb)
