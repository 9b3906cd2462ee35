"""The tiny image that a new cloud with libvirt gets."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kilonova import seeds, tiny
from kilonova.config import Config
from kilonova.identity.seed import seed, user_names
from kilonova.image import seed as image_seed
from kilonova.services import Services
from kilonova.store import Row
from tests.support.databases import opened

QCOW2 = b"QFI\xfb" + bytes(508)


def seeded(url: str, directory: Path, *, times: int = 1) -> list[Row]:
    """The images of a new cloud."""

    async def go() -> list[Row]:
        async with opened(url) as db:
            services = Services()
            services.db = db
            services.config = Config(data=str(directory), driver="libvirt")
            await seed(db, dict.fromkeys(user_names(), "secret"))
            for _ in range(times):
                await seeds.seed(services)
                await seeds.seed_tiny_image(services)
            return await db.fetch("SELECT name, status, disk_format, visibility, size FROM images")

    return asyncio.run(go())


def test_tiny_image_is_built_once(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def build(target: Path) -> None:
        built.append(target)
        target.write_bytes(QCOW2)

    monkeypatch.setattr(tiny, "build", build)
    (image,) = seeded(sqlite_url, tmp_path, times=2)
    assert (image["name"], image["status"], image["disk_format"]) == ("tiny", "active", "qcow2")
    assert (image["visibility"], image["size"]) == ("public", len(QCOW2))
    assert image["name"] != image_seed.IMAGE_NAME
    assert len(built) == 1
    assert not built[0].parent.exists()


def test_failed_build_leaves_no_image(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(target: Path) -> None:
        raise tiny.CannotBuild("syslinux is missing: apt install syslinux")

    monkeypatch.setattr(tiny, "build", build)
    assert seeded(sqlite_url, tmp_path) == []
    assert "apt install syslinux" in caplog.text


def test_shutdown_does_not_wait_for_the_build(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def build(target: Path) -> None:
        begun.set()
        go_on.wait(300)

    async def go() -> None:
        async with opened(sqlite_url) as db:
            services = Services()
            services.db = db
            services.config = Config(data=str(tmp_path), driver="libvirt")
            task = asyncio.create_task(seeds.seed_tiny_image(services))
            await asyncio.to_thread(begun.wait)
            task.cancel()
            async with asyncio.timeout(60):
                await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(tiny, "build", build)
    asyncio.run(go())
    go_on.set()
