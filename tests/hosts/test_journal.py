"""The agents' journal."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import apsw
import pytest

from kilonova import clock
from kilonova.hosts.journal import Journal, Key
from tests.support import run

KEY = Key("sim-001", "op-1", "start guest", 0, "spawn", "guest-1")


def test_journal_survives_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        assert journal.find(KEY) == (None, None)
        await journal.raise_epoch(KEY, 3)
        await journal.finish(KEY, b"reply")
        journal.close()
        assert Journal(tmp_path / "agents.db").find(KEY) == (3, b"reply")

    run(scenario())


def test_epoch_never_decreases(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        await journal.raise_epoch(KEY, 3)
        await journal.raise_epoch(KEY, 2)
        assert journal.find(KEY) == (3, None)

    run(scenario())


def test_epoch_counts_before_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        raised = [journal.raise_epoch(KEY, epoch) for epoch in (5, 4)]
        assert journal.find(KEY) == (5, None)
        assert Journal(tmp_path / "agents.db").find(KEY) == (None, None)
        await asyncio.gather(*raised)
        assert journal.find(KEY) == Journal(tmp_path / "agents.db").find(KEY) == (5, None)

    run(scenario())


def test_commits_survive_a_power_cut_and_are_shared(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        committed: list[str] = []
        journal._writer.set_commit_hook(lambda: committed.append(threading.current_thread().name) or False)
        keys = [KEY._replace(operation=f"op-{number}") for number in range(50)]
        await asyncio.gather(
            *(journal.raise_epoch(key, 1) for key in keys), *(journal.finish(key, b"") for key in keys)
        )
        assert 1 <= len(committed) <= 3
        assert threading.main_thread().name not in committed, "the event loop does not wait for the disk"
        full = 2
        assert journal._writer.pragma("synchronous") == full

    run(scenario())


def test_write_that_fails_is_reported_and_later_ones_work(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        journal._writer.set_commit_hook(lambda: True)
        with pytest.raises(apsw.ConstraintError):
            await journal.raise_epoch(KEY, 1)
        assert journal.find(KEY) == (None, None)
        journal._writer.set_commit_hook(None)
        await journal.raise_epoch(KEY, 2)
        assert journal.find(KEY) == (2, None)

    run(scenario())


def test_entries_are_per_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        await journal.raise_epoch(KEY, 3)
        await journal.finish(KEY, b"reply")
        assert journal.find(KEY._replace(host="sim-002")) == (None, None)

    run(scenario())


def test_journal_file_is_private(tmp_path: Path) -> None:
    async def scenario() -> None:
        await Journal(tmp_path / "agents.db").raise_epoch(KEY, 1)
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}

    run(scenario())


def test_prune_deletes_old_entries_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        began = clock.now()
        keys = [KEY._replace(operation=f"op-{number}") for number in range(1200)]
        monkeypatch.setattr(clock, "now", lambda: began - 100)
        await asyncio.gather(
            *(journal.raise_epoch(key, 1) for key in keys), *(journal.finish(key, b"reply") for key in keys)
        )
        monkeypatch.setattr(clock, "now", lambda: began)
        await journal.finish(keys[0]._replace(step="settle"), b"young")
        assert journal.prune(keep_seconds=50) == 1200 + 1199
        assert journal.find(keys[1]) == (None, None)
        assert journal.find(keys[0]) == (1, None), "the epoch stays as long as any entry of the operation"
        assert journal.find(keys[0]._replace(step="settle")) == (1, b"young")

    run(scenario())
