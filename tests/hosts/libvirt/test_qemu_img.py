"""Calls of qemu-img."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import qemu_img
from tests.hosts.libvirt.support import require_tools


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tools("prlimit", "qemu-img")


def test_error_contains_the_output_of_qemu_img(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"qemu-img info failed: .*No such file"):
        asyncio.run(qemu_img.info(tmp_path / "nothing", "raw"))


def test_relative_paths_and_urls_are_refused() -> None:
    for path in ("disk", "json:{}", "nbd://host/x"):
        with pytest.raises(ValueError, match="absolute"):
            asyncio.run(qemu_img.info(Path(path), "raw"))
