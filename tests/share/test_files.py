"""The directories of shares. Their content comes from guests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kilonova.share import files as module
from kilonova.share.files import ShareFiles


def make_deep(directory: Path, levels: int) -> None:
    """Directories in each other, deeper than a path or a recursion can be."""
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.mark.parametrize("seconds", [-1.0, 60.0])
def test_removal_follows_no_links_and_may_be_interrupted(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    files = ShareFiles(tmp_path / "shares")
    for share_id in ("one", "two"):
        files.create(share_id)
        below = files.root / share_id / "a/b"
        below.mkdir(parents=True)
        for number in range(20):
            (below / str(number)).touch()
        (below / "link").symlink_to(outside)
        (below.parent / "file link").symlink_to(outside / "file")

    make_deep(files.root / "one", 3000)

    async def scenario() -> None:
        monkeypatch.setattr(module, "_PART_SECONDS", seconds)
        if seconds < 0:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await files.remove("one")
            assert not (files.root / "one").exists()
            monkeypatch.setattr(module, "_PART_SECONDS", 60.0)
        for _ in range(2):
            await files.remove("one")

    asyncio.run(scenario())
    assert not list(files.deleted.iterdir())
    assert (outside / "file").read_text() == "kept"
    assert len(list((files.root / "two/a/b").iterdir())) == 21
