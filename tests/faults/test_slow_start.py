"""Start on a slow machine: the time to load modules does not count towards the database's timeout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support import run

from kilonova import config, datadir
from kilonova.process import Process, running
from kilonova.startup_checks import Roles


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_database_connection_starts_after_modules_are_loaded(
    tmp_path: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    make_app, connect = Process._make_app, asyncpg.connect

    def load(process: Process) -> None:
        make_app(process)
        order.append("loaded")

    async def recorded_connect(*args: Any, **options: Any) -> Any:
        order.append("connected")
        return await connect(*args, **options)

    monkeypatch.setattr(Process, "_make_app", load)
    monkeypatch.setattr(asyncpg, "connect", recorded_connect)

    async def scenario() -> None:
        settings = config.load(environ={}, flags={"data": str(tmp_path / "data"), "database": empty_url})
        datadir.prepare(settings.data_dir)
        async with running(settings, Roles(worker=False)) as process:
            assert process.ready

    run(scenario())
    assert order[:2] == ["loaded", "connected"]
