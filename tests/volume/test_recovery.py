"""Unknown files are removed at the start."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kilonova.ids import new_id
from kilonova.volume import files as module
from kilonova.volume.files import VolumeFiles
from kilonova.volume.operations.replace_content import CreateVolume
from kilonova.volume.recovery import recover
from tests.support import run
from tests.support.databases import opened
from tests.volume.operations.worlds import start
from tests.volume.support import TYPE, put_snapshot, put_type, put_volume


def test_only_unknown_files_are_removed(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_AGE_SECONDS", -1.0)
    files = VolumeFiles(tmp_path)

    async def scenario() -> None:
        async with opened(database_url) as db:
            await put_type(db, TYPE, "__DEFAULT__")
            volume_id = await put_volume(db, data_id="data")
            snapshot_id = await put_snapshot(db, volume_id, status="creating")
            async with db.transaction() as tx:
                await tx.execute("UPDATE volume_snapshots SET data_id = 'data'")
                working = await start(tx, CreateVolume, volume_id=volume_id, source=None)
            async with files.temporary("being.written", 1):
                kept = [
                    files.volume(volume_id, "data"),
                    files.snapshot(snapshot_id, "data"),
                    files.volume(volume_id, f"{working}-1"),
                    files.parts / f"{volume_id}.{working}-2",
                ]
                removed = [
                    files.volume(volume_id, "older"),
                    files.snapshot(new_id(), "data"),
                    files.parts / f"{volume_id}.{new_id()}-1",
                ]
                files.snapshots.mkdir()
                for path in (*kept, *removed):
                    path.touch()
                await recover(db, files)
                assert [path.exists() for path in kept] == [True] * len(kept)
                assert [path.exists() for path in removed] == [False] * len(removed)
                assert os.listdir(files.parts) != []
                assert (files.parts / "being.written").exists()

    run(scenario())


def test_young_files_are_not_removed(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            young = VolumeFiles(tmp_path).volume(new_id(), "data")
            await asyncio.to_thread(young.touch)
            await recover(db, VolumeFiles(tmp_path))
            assert young.exists()

    run(scenario())
