"""The Fernet keys of tokens: the first key encrypts, all keys decrypt."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

    from kilonova.config import Config

# How many older keys a rotation keeps, for tokens that were issued before it.
MAX_OLDER_KEYS = 2


class KeySource(Protocol):
    def read(self) -> Sequence[str]: ...

    def changed(self) -> bool: ...


class ConfiguredKeys:
    """Keys from the configuration, for API processes that share no disk."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)

    def read(self) -> Sequence[str]:
        return self._keys

    def changed(self) -> bool:
        return False


class KeyFile:
    """Keys in a private file, one per line, newest first. A missing file is created, a changed file is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded_stamp: tuple[int, int] | None = None

    def read(self) -> Sequence[str]:
        if not self.path.exists():
            _write_new(self.path, [new_key()])
        self._loaded_stamp = self._stamp()
        return self.path.read_text().split()

    def changed(self) -> bool:
        return self.path.exists() and self._loaded_stamp != self._stamp()

    def rotate(self) -> None:
        """Add a new key for new tokens. Tokens of the kept older keys stay valid until they expire."""
        _replace(self.path, [new_key(), *self.read()][: MAX_OLDER_KEYS + 1])

    def _stamp(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_ino


class KeyRing:
    """Encrypts and decrypts with the current keys of a source."""

    def __init__(self, source: KeySource) -> None:
        self.source = source
        self._fernet: MultiFernet | None = None

    def encrypt(self, raw: bytes) -> str:
        return self._current().encrypt(raw).rstrip(b"=").decode()

    def decrypt(self, text: str) -> bytes | None:
        """None for text that was encrypted with none of the keys."""
        fernet = self._current()
        from cryptography.fernet import InvalidToken

        try:
            return fernet.decrypt((text + "=" * (-len(text) % 4)).encode())
        except InvalidToken:
            return None

    def _current(self) -> MultiFernet:
        if self._fernet is None or self.source.changed():
            self._fernet = self._load()
        return self._fernet

    def _load(self) -> MultiFernet:
        from cryptography.fernet import Fernet, MultiFernet

        return MultiFernet([Fernet(key) for key in self.source.read()])


def key_ring(config: Config) -> KeyRing:
    """The keys of the configuration, or those of the data directory. Raises ValueError for an invalid key."""
    given = config.identity.token_keys
    for index, key in enumerate(given):
        if not _is_key(key):
            raise ValueError(f"identity.token_keys: key {index + 1} is not 32 bytes in URL-safe base64")
    return KeyRing(ConfiguredKeys(given) if given else KeyFile(config.data_dir / "fernet.keys"))


def _is_key(text: str) -> bool:
    try:
        return len(urlsafe_b64decode(text)) == 32
    except ValueError:
        return False


def new_key() -> str:
    return urlsafe_b64encode(os.urandom(32)).decode()


def _write_new(path: Path, keys: Sequence[str]) -> None:
    """Create the file atomically. If two processes start at the same time, the keys of the first one stay."""
    temporary = _write_private_file(path, keys)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _replace(path: Path, keys: Sequence[str]) -> None:
    _write_private_file(path, keys).replace(path)


def _write_private_file(path: Path, keys: Sequence[str]) -> Path:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("".join(f"{key}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    return temporary
