"""Paths of guests' files on the host: a directory per guest, one per slot, and one for base images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError

# File names in a guest's directory.
SPEC = "spec"
OWNER = "owner"
DISK = "disk"
SWAP = "disk.swap"
CONFIG_DRIVE = "disk.config"
RESCUE_DISK = "disk.rescue"
RESCUE_CONFIG_DRIVE = "disk.config.rescue"
# Exists while the guest is in rescue.
RESCUE_MODE = "rescue"
CONSOLE_LOG = "console.log"
ENCRYPTED_PASSWORD = "password"
# Variables of the UEFI firmware.
NVRAM = "nvram"
# Bus addresses of tagged devices.
DEVICE_ADDRESSES = "devices"

_BASE = "_base"
_SHARES = "_shares"
_MOUNTS = "_mounts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")


class InvalidFileName(DriverError):
    kind = "malformed"


class Layout:
    """`root`: the directory for the guests of this host, or of all hosts that share the storage."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def base(self) -> Path:
        """The directory of the image cache."""
        return self.root / _BASE

    @property
    def shares(self) -> Path:
        """The directory of mounted shares: outside of guests' directories, which are removed with all they contain."""
        return self.root / _SHARES

    @property
    def mounts(self) -> Path:
        """The directory of mounted file systems with volumes."""
        return self.root / _MOUNTS

    def guest_directory(self, guest_id: str) -> Path:
        return self.root / _checked(guest_id)

    def directory(self, guest_id: str, slot: str = "") -> Path:
        return self.slot_directory(guest_id, slot) if slot else self.guest_directory(guest_id)

    def slot_directory(self, guest_id: str, slot: str) -> Path:
        return self.root / f"{_checked(guest_id)}@{_checked(slot)}"

    def file(self, guest_id: str, name: str) -> Path:
        return self.guest_directory(guest_id) / _checked(name)

    def guest_ids(self) -> Iterator[str]:
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
    """Names come from other hosts and users, and must not escape the directory."""
    if not _NAME.fullmatch(name):
        raise InvalidFileName(f"{name!r} is not a valid file name")
    return name
