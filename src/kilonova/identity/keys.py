"""The keys that tokens are encrypted with: the first one encrypts, all of them decrypt."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

    from kilonova.config import Config

# Of a rotation's older keys so many stay: they serve tokens issued before it.
OLDER_KEYS = 2


class KeySource(Protocol):
    def read(self) -> Sequence[str]: ...

    def changed(self) -> bool: ...


class GivenKeys:
    """Keys from the configuration, for several API processes that share no disk."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)

    def read(self) -> Sequence[str]:
        return self._keys

    def changed(self) -> bool:
        return False


class KeyFile:
    """Keys in a private file, one a line, newest first; made when missing and read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None

    def read(self) -> Sequence[str]:
        if not self.path.exists():
            _write_new(self.path, [new_key()])
        self._seen = self._stamp()
        return self.path.read_text().split()

    def changed(self) -> bool:
        return self.path.exists() and self._seen != self._stamp()

    def rotate(self) -> None:
        """A new key for new tokens; tokens of the last few keys stay valid until they expire."""
        _replace(self.path, [new_key(), *self.read()][: OLDER_KEYS + 1])

    def _stamp(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_ino


class KeyRing:
    """Encrypts and decrypts with the keys of a source, following its changes."""

    def __init__(self, source: KeySource) -> None:
        self.source = source
        self._fernet: MultiFernet | None = None

    def encrypt(self, raw: bytes) -> str:
        return self._current().encrypt(raw).rstrip(b"=").decode()

    def decrypt(self, text: str) -> bytes | None:
        """None for what none of the keys has encrypted."""
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
    """By the keys of the configuration, else by those kept in the data directory. Raises ValueError for a bad key."""
    given = config.identity.token_keys
    for place, key in enumerate(given):
        if not _is_key(key):
            raise ValueError(f"identity.token_keys: key {place + 1} is not 32 bytes in URL-safe base64")
    return KeyRing(GivenKeys(given) if given else KeyFile(config.data_dir / "fernet.keys"))


def _is_key(text: str) -> bool:
    try:
        return len(urlsafe_b64decode(text)) == 32
    except ValueError:
        return False


def new_key() -> str:
    return urlsafe_b64encode(os.urandom(32)).decode()


def _write_new(path: Path, keys: Sequence[str]) -> None:
    """Whole or not at all; where two processes start at once, the first one's keys stay."""
    made = _private(path, keys)
    try:
        os.link(made, path)
    except FileExistsError:
        pass
    finally:
        made.unlink()


def _replace(path: Path, keys: Sequence[str]) -> None:
    _private(path, keys).replace(path)


def _private(path: Path, keys: Sequence[str]) -> Path:
    made = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("".join(f"{key}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    return made
