"""The agents' journal."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kilonova import clock
from kilonova.hosts.journal import Journal, Key
from kilonova.store.incarnation import Mark

KEY = Key("sim-001", "op-1", "start guest", 0, "spawn", "guest-1")


def test_journal_survives_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "agents.db")
    assert journal.find(KEY) == (None, None)
    journal.raise_epoch(KEY, 3, Mark())
    journal.finish(KEY, b"reply")
    journal.close()
    assert Journal(tmp_path / "agents.db").find(KEY) == (3, b"reply")


def test_epoch_never_decreases(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "agents.db")
    journal.raise_epoch(KEY, 3, Mark())
    journal.raise_epoch(KEY, 2, Mark())
    assert journal.find(KEY) == (3, None)


def test_entries_are_per_host(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "agents.db")
    journal.raise_epoch(KEY, 3, Mark())
    journal.finish(KEY, b"reply")
    assert journal.find(KEY._replace(host="sim-002")) == (None, None)


def test_journal_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    Journal(path).raise_epoch(KEY, 1, Mark())
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_prune_deletes_old_entries_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "agents.db")
    began = clock.now()
    keys = [KEY._replace(operation=f"op-{number}") for number in range(1200)]
    monkeypatch.setattr(clock, "now", lambda: began - 100)
    for key in keys:
        journal.raise_epoch(key, 1, Mark())
        journal.finish(key, b"reply")
    monkeypatch.setattr(clock, "now", lambda: began)
    journal.finish(keys[0]._replace(step="settle"), b"young")
    assert journal.prune(keep_seconds=50) == 1200 + 1199
    assert journal.find(keys[1]) == (None, None)
    assert journal.find(keys[0]) == (1, None), "the epoch stays as long as any entry of the operation"
    assert journal.find(keys[0]._replace(step="settle")) == (1, b"young")


def test_new_incarnation_forgets_entries_of_its_host(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "agents.db")
    other = KEY._replace(host="sim-002")
    for key in (KEY, other):
        journal.raise_epoch(key, 3, Mark(1, 7))
        journal.finish(key, b"reply")
    journal.begin_incarnation(KEY.host, Mark(2, 0))
    assert journal.find(KEY) == (None, None)
    assert journal.find(other) == (3, b"reply")
    journal.close()
    reopened = Journal(tmp_path / "agents.db")
    assert (reopened.mark(KEY.host), reopened.mark(other.host)) == (Mark(2, 0), Mark(1, 7))


def test_mark_never_decreases(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "agents.db")
    assert journal.mark(KEY.host) == Mark(0, 0)
    journal.raise_epoch(KEY, 1, Mark(1, 7))
    journal.raise_epoch(KEY, 2, Mark(1, 6))
    assert journal.mark(KEY.host) == Mark(1, 7)
    journal.raise_epoch(KEY, 3, Mark(2, 1))
    assert journal.mark(KEY.host) == Mark(2, 1)
