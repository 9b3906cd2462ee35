"""Where what belongs to guests lies on a host: a directory per guest, one per slot, and the cache of images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError

# What is in a guest's directory.
SPEC = "spec"
OWNER = "owner"
DISK = "disk"
SWAP = "disk.swap"
CONFIG_DRIVE = "disk.config"
RESCUE = "disk.rescue"
RESCUE_CONFIG_DRIVE = "disk.config.rescue"
# That the guest is in rescue, and how.
RESCUE_MODE = "rescue"
CONSOLE = "console.log"
# Which the guest has given away, encrypted.
PASSWORD = "password"
# What its firmware remembers.
NVRAM = "nvram"
# Where its devices are on its buses.
DEVICES = "devices"

_BASE = "_base"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


class Layout:
    """`root` holds the guests of this host, or of several that share the storage."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def base(self) -> Path:
        """Images as they were fetched, which disks of guests are laid over."""
        return self.root / _BASE

    def guest(self, guest_id: str) -> Path:
        return self.root / _checked(guest_id)

    def slot(self, guest_id: str, slot: str) -> Path:
        return self.root / f"{_checked(guest_id)}@{_checked(slot)}"

    def file(self, guest_id: str, name: str) -> Path:
        return self.guest(guest_id) / _checked(name)

    def ephemeral(self, number: int) -> str:
        return f"{DISK}.eph{number}"

    def guests(self) -> Iterator[str]:
        """The ids of guests that have a directory."""
        for name in self._names():
            if "@" not in name:
                yield name

    def slots(self) -> Iterator[tuple[str, str]]:
        """(guest id, slot)"""
        for name in self._names():
            guest_id, at, slot = name.partition("@")
            if at:
                yield guest_id, slot

    def _names(self) -> list[str]:
        try:
            entries = list(os.scandir(self.root))
        except FileNotFoundError:
            return []
        return sorted(
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and all(_NAME.fullmatch(part) for part in entry.name.split("@", 1))
        )


def _checked(name: str) -> str:
    """Names come from outside: none may lead out of the directory."""
    if not _NAME.fullmatch(name):
        raise DriverError(f"{name!r} cannot be the name of a file", kind="malformed")
    return name
