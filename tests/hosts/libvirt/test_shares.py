"""File shares on a host: checks, and mount points. `tests/virt/test_shares.py` presents shares to real guests."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import preflight, programs, shares
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.messages import Share
from tests.hosts.support import guest

NFS = Share(share_id="share-1", tag="data", kind="nfs", location="[2001:db8::1]:/exports/a")


@pytest.fixture
def hypervisor(tmp_path: Path) -> Any:
    return SimpleNamespace(layout=Layout(tmp_path))


@pytest.fixture
def mounted(hypervisor: Any, tmp_path: Path) -> Iterator[Path]:
    """A directory that is mounted as the guest's share."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a directory")
    source, target = tmp_path / "source", shares.directory(hypervisor, "guest-1", NFS)
    source.mkdir()
    (source / "file").write_text("content")
    target.mkdir(parents=True)
    subprocess.run(["mount", "--bind", source, target], check=True)
    yield source
    if str(target) in shares.mount_points():
        subprocess.run(["umount", target], check=True)


def test_unmounting_keeps_the_content(hypervisor: Any, mounted: Path) -> None:
    target = shares.directory(hypervisor, "guest-1", NFS)
    assert (target / "file").read_text() == "content"
    for _ in range(2):
        asyncio.run(shares.unmount_all(hypervisor, "guest-1"))
    assert not target.exists()
    assert (mounted / "file").read_text() == "content"


def test_mounted_share_is_not_mounted_again(hypervisor: Any, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = programs.find
    monkeypatch.setattr(programs, "find", lambda program: installed(program) or f"/sbin/{program}")
    asyncio.run(shares.mount_all(hypervisor, guest("guest-1", shares=[NFS])))


def test_mount_points_are_outside_of_guests(hypervisor: Any) -> None:
    """A guest's directory is removed with everything in it."""
    path, layout = shares.directory(hypervisor, "guest-1", NFS), hypervisor.layout
    path.mkdir(parents=True)
    assert layout.guest_directory("guest-1") not in path.parents
    assert list(layout.guest_ids()) == list(layout.slots()) == []


@pytest.mark.parametrize(("program", "words"), [("mount.nfs", "mount.nfs is not installed"), ("", "virtiofsd is not")])
def test_missing_programs_are_named(program: str, words: str, hypervisor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = programs.find
    monkeypatch.setattr(programs, "find", lambda name: None if name == program else installed(name))
    if not program:
        monkeypatch.setattr(shares, "daemon", lambda: None)
    with pytest.raises(DriverError, match=words):
        asyncio.run(shares.mount_all(hypervisor, guest("guest-1", shares=[NFS])))


def test_preflight_notes_a_missing_virtiofsd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "daemon", lambda: None)
    assert any("virtiofsd is missing" in line for line in preflight.notes(Config()))
