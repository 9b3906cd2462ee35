"""Lists of backups."""

from __future__ import annotations

from tests.support import run
from tests.volume.support import volume_cloud


def test_lists_of_backups_are_empty(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for path in ("/backups", "/backups/detail", "/backups/detail?sort_key=created_at&sort_dir=desc"):
                assert (await c.get(path)).json() == {"backups": []}

    run(scenario())
