"""The manifest of a backup: what it is of, and every file with its size and checksum."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec

from kilonova.backup.files import digest

MANIFEST = "manifest.json"
FORMAT = 1

# Names in a backup. The files of the data directory are below DATA.
DATA = "data"
DATABASES = {"sqlite": "database.db", "postgresql": "database.dump"}


class BackupError(Exception):
    """The backup cannot be made or restored. The text is for the operator."""


class BackupFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`missing`: files of images and volumes that the cloud had lost before the backup."""

    format: int
    release: str
    schema: str
    created_at: str
    database: str
    files: list[BackupFile]
    missing: list[str] = []

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def write(directory: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / MANIFEST).write_bytes(text + b"\n")


def read(directory: Path) -> Manifest:
    """Raises BackupError."""
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BackupError(f"{directory} is no backup: {MANIFEST}: {error.strerror}") from None
    try:
        found = msgspec.json.decode(content, type=_Format).format
        if found > FORMAT:
            raise BackupError(f"{path}: the format is {found}; this release reads formats up to {FORMAT}")
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{path}: {error}") from None
    for file in manifest.files:
        if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
            raise BackupError(f"{path}: the path {file.path!r} leads out of the backup")
    if manifest.database not in DATABASES or DATABASES[manifest.database] not in {file.path for file in manifest.files}:
        raise BackupError(f"{path}: there is no database in the list of files")
    return manifest


def verify(directory: Path, manifest: Manifest) -> None:
    """Compare all files with the manifest. Raises BackupError."""
    for file in manifest.files:
        path = directory / file.path
        try:
            is_intact = (path.stat().st_size, digest(path)) == (file.size, file.sha256)
        except OSError as error:
            raise BackupError(f"{path}: {error.strerror}") from None
        if not is_intact:
            raise BackupError(f"{path}: size or checksum differ from {MANIFEST}: the backup is damaged")


class _Format(msgspec.Struct):
    format: int
