"""Tickets: only an unchanged ticket of the same kind and keys is accepted, until it expires."""

from __future__ import annotations

import pytest
from msgspec import Struct

from kilonova import clock
from kilonova.identity.token_keys import ConfiguredKeys, KeyFile, KeyRing, new_key
from kilonova.tickets import ExpiredTicket, InvalidTicket, Tickets

KEY = new_key()


class Door(Struct, frozen=True):
    room: str


def tickets(*keys: str, kind: str = "door") -> Tickets[Door]:
    return Tickets(kind, Door, ConfiguredKeys(keys or (KEY,)))


def test_ticket_gives_its_content() -> None:
    text = tickets().issue(Door("ä/1"), 60)
    assert tickets().check(text) == Door("ä/1")
    assert text.isascii()
    assert text.isprintable()


def test_changed_ticket_is_refused() -> None:
    text = tickets().issue(Door("kitchen"), 60)
    payload, signature = text.split(".")
    other_payload, _ = tickets().issue(Door("vault"), 60).split(".")
    for at in range(len(text)):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        with pytest.raises(InvalidTicket):
            tickets().check(changed)
    for wrong in ("", ".", payload, f"{payload}.", f".{signature}", f"{other_payload}.{signature}", f"{text}=", "é.ü"):
        with pytest.raises(InvalidTicket):
            tickets().check(wrong)


def test_ticket_of_another_kind_or_key_is_refused() -> None:
    text = tickets().issue(Door("kitchen"), 60)
    for others in (tickets(kind="window"), tickets(new_key())):
        with pytest.raises(InvalidTicket):
            others.check(text)
    assert KeyRing(ConfiguredKeys([KEY])).decrypt(text) is None


def test_ticket_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    text = tickets().issue(Door("kitchen"), 60)
    monkeypatch.setattr(clock, "now", lambda: now + 59.9)
    assert tickets().check(text) == Door("kitchen")
    monkeypatch.setattr(clock, "now", lambda: now + 60)
    with pytest.raises(ExpiredTicket):
        tickets().check(text)


def test_tickets_survive_rotation_of_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys")
    issuer, checker = Tickets("door", Door, file), Tickets("door", Door, KeyFile(file.path))
    before = issuer.issue(Door("kitchen"), 60)
    assert checker.check(before) == Door("kitchen")
    KeyFile(file.path).rotate(3600.0)
    after = issuer.issue(Door("kitchen"), 60)
    assert [checker.check(text) for text in (before, after)] == [Door("kitchen")] * 2
    with pytest.raises(InvalidTicket):
        tickets(file.read()[-1]).check(after)
