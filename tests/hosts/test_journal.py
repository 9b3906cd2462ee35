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
from kilonova.store.incarnation import Mark
from tests.support import run

KEY = Key("sim-001", "op-1", "start guest", 0, "spawn", "guest-1")


def test_journal_survives_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        assert journal.find(KEY) == (None, None)
        await journal.raise_epoch(KEY, 3, Mark())
        await journal.finish(KEY, b"reply")
        journal.close()
        assert Journal(tmp_path / "agents.db").find(KEY) == (3, b"reply")

    run(scenario())


def test_epoch_never_decreases(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        await journal.raise_epoch(KEY, 3, Mark())
        await journal.raise_epoch(KEY, 2, Mark())
        assert journal.find(KEY) == (3, None)

    run(scenario())


def test_epoch_counts_before_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        raised = [journal.raise_epoch(KEY, epoch, Mark()) for epoch in (5, 4)]
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
            *(journal.raise_epoch(key, 1, Mark()) for key in keys), *(journal.finish(key, b"") for key in keys)
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
            await journal.raise_epoch(KEY, 1, Mark())
        assert journal.find(KEY) == (None, None)
        journal._writer.set_commit_hook(None)
        await journal.raise_epoch(KEY, 2, Mark())
        assert journal.find(KEY) == (2, None)

    run(scenario())


def test_entries_are_per_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        await journal.raise_epoch(KEY, 3, Mark())
        await journal.finish(KEY, b"reply")
        assert journal.find(KEY._replace(host="sim-002")) == (None, None)

    run(scenario())


def test_journal_file_is_private(tmp_path: Path) -> None:
    async def scenario() -> None:
        await Journal(tmp_path / "agents.db").raise_epoch(KEY, 1, Mark())
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}

    run(scenario())


def test_prune_deletes_old_entries_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        began = clock.now()
        keys = [KEY._replace(operation=f"op-{number}") for number in range(1200)]
        monkeypatch.setattr(clock, "now", lambda: began - 100)
        await asyncio.gather(
            *(journal.raise_epoch(key, 1, Mark()) for key in keys), *(journal.finish(key, b"reply") for key in keys)
        )
        monkeypatch.setattr(clock, "now", lambda: began)
        await journal.finish(keys[0]._replace(step="settle"), b"young")
        assert journal.prune(keep_seconds=50) == 1200 + 1199
        assert journal.find(keys[1]) == (None, None)
        assert journal.find(keys[0]) == (1, None), "the epoch stays as long as any entry of the operation"
        assert journal.find(keys[0]._replace(step="settle")) == (1, b"young")

    run(scenario())


def test_new_incarnation_forgets_entries_of_its_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        other = KEY._replace(host="sim-002")
        for key in (KEY, other):
            await journal.raise_epoch(key, 3, Mark(1, 7))
            await journal.finish(key, b"reply")
        journal.begin_incarnation(KEY.host, Mark(2, 0))
        assert journal.mark(KEY.host) == Mark(2, 0), "commands of older incarnations are refused at once"
        await journal.begun(KEY.host)
        assert journal.find(KEY) == (None, None)
        assert journal.find(other) == (3, b"reply")
        journal.close()
        reopened = Journal(tmp_path / "agents.db")
        assert (reopened.mark(KEY.host), reopened.mark(other.host)) == (Mark(2, 0), Mark(1, 7))

    run(scenario())


def test_incarnation_that_cannot_be_written_is_begun_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        await journal.raise_epoch(KEY, 3, Mark(1, 7))
        journal._writer.set_commit_hook(lambda: True)
        journal.begin_incarnation(KEY.host, Mark(2, 0))
        with pytest.raises(apsw.ConstraintError):
            await journal.begun(KEY.host)
        assert (journal.mark(KEY.host), journal.find(KEY)) == (Mark(1, 7), (3, None))
        journal._writer.set_commit_hook(None)
        journal.begin_incarnation(KEY.host, Mark(2, 0))
        await journal.begun(KEY.host)
        assert (journal.mark(KEY.host), journal.find(KEY)) == (Mark(2, 0), (None, None))

    run(scenario())


def test_mark_never_decreases(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "agents.db")
        assert journal.mark(KEY.host) == Mark(0, 0)
        for epoch, mark, highest in (
            (1, Mark(1, 7), Mark(1, 7)),
            (2, Mark(1, 6), Mark(1, 7)),
            (3, Mark(2, 1), Mark(2, 1)),
        ):
            await journal.raise_epoch(KEY, epoch, mark)
            assert journal.mark(KEY.host) == Journal(tmp_path / "agents.db").mark(KEY.host) == highest

    run(scenario())
