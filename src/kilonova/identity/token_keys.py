"""The Fernet keys of tokens and of stored credentials: the first key encrypts, all keys decrypt."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kilonova import clock

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

    from kilonova.config import Config

log = logging.getLogger(__name__)

FILE_NAME = "fernet.keys"
CREDENTIALS_FILE_NAME = "credential.keys"


class Key(NamedTuple):
    text: str
    created_at: float

    @property
    def id(self) -> str:
        """Names the key without revealing it."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    def __repr__(self) -> str:
        # Without the key, because a repr may be logged.
        return f"Key({self.id})"


def _created_now() -> Key:
    return Key(new_key(), float(int(clock.now())))


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
    """Keys in a private file: one per line with the time of its creation, newest first.

    A missing file is created, a changed file is read again. Several processes may use the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded_stamp: tuple[int, int] | None = None

    def read(self) -> Sequence[str]:
        return [key.text for key in self.load()]

    def load(self) -> list[Key]:
        """Raises ValueError for a malformed file, which names no key."""
        if not self.path.exists():
            with self._locked():
                if not self.path.exists():
                    self._write([_created_now()])
        found = self.path.stat()
        self._loaded_stamp = _stamp(found)
        return self._parse(self.path.read_text(), found.st_mtime)

    def changed(self) -> bool:
        try:
            return self._loaded_stamp != _stamp(self.path.stat())
        except FileNotFoundError:
            return False

    def rotate(self, lifetime_seconds: float) -> tuple[list[Key], list[Key]]:
        """Add a new key for new tokens. Returns the keys of the file and the dropped keys.

        A key was last used when the next one was created. It is dropped `lifetime_seconds` later.
        """
        with self._locked():
            old = self.load() if self.path.exists() else []
            created = _created_now()
            kept = [
                key
                for key, newer in zip(old, [created, *old], strict=False)
                if newer.created_at + lifetime_seconds > created.created_at
            ]
            keys = [created, *kept]
            self._write(keys)
        return keys, [key for key in old if key not in kept]

    def keep(self, count: int) -> None:
        """Drop all keys but the newest ones."""
        with self._locked():
            self._write(self.load()[:count])

    def _parse(self, text: str, written_at: float) -> list[Key]:
        keys: list[Key] = []
        for number, line in enumerate(text.splitlines(), 1):
            key, _, created = line.strip().partition(" ")
            if not is_key(key):
                raise ValueError(f"{self.path}: line {number} has no key of 32 bytes in URL-safe base64")
            try:
                # Files of older releases have no times.
                keys.append(Key(key, clock.parse(created) if created else written_at))
            except ValueError:
                raise ValueError(f"{self.path}: line {number} has no valid time after the key") from None
        if not keys:
            raise ValueError(f"{self.path} has no key")
        return keys

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the directory against other writers of the file."""
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write(self, keys: Sequence[Key]) -> None:
        """Replace the file atomically. Needs the lock: an interrupted writer's file is overwritten."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{key.text} {clock.iso(key.created_at)}\n" for key in keys))
            file.flush()
            if os.geteuid() == 0:
                # The administrator may run the command, but the cloud's user must read the file.
                owner = (self.path if self.path.exists() else self.path.parent).stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.fsync(descriptor)
        temporary.replace(self.path)


def _stamp(found: os.stat_result) -> tuple[int, int]:
    return found.st_mtime_ns, found.st_ino


class KeyRing:
    """Encrypts and decrypts with the current keys of a source."""

    def __init__(self, source: KeySource, purpose: str = "tokens") -> None:
        self.source = source
        self._purpose = purpose
        self._fernet: MultiFernet | None = None
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the keys have changed."""
        self._listeners.append(listener)

    def reload(self) -> None:
        """Read the keys again if they have changed. Malformed keys are reported and not used."""
        if self._fernet is None or not self.source.changed():
            return
        try:
            self._fernet = self._load()
        except (OSError, ValueError) as error:
            log.error("the keys of %s cannot be read, so the former keys stay in use: %s", self._purpose, error)
            return
        log.info("the keys of %s have changed", self._purpose)
        for listener in self._listeners:
            listener()

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
        self.reload()
        if self._fernet is None:
            self._fernet = self._load()
        return self._fernet

    def _load(self) -> MultiFernet:
        from cryptography.fernet import Fernet, MultiFernet

        return MultiFernet([Fernet(key) for key in self.source.read()])


def key_ring(config: Config) -> KeyRing:
    """The keys of the configuration, or those of the data directory. Raises ValueError for an invalid key."""
    given = _configured("token_keys", config.identity.token_keys)
    if given:
        return given
    file = KeyFile(config.data_dir / FILE_NAME)
    file.load()
    return KeyRing(file)


def credential_key_ring(config: Config) -> KeyRing | None:
    """The keys of stored credentials. The file is created when the first credential is stored.

    None if they are unknown: processes with configured token keys may share no directory, so each would make its own.
    Raises ValueError for an invalid key.
    """
    given = _configured("credential_keys", config.identity.credential_keys)
    if given or config.identity.token_keys:
        return given
    file = KeyFile(config.data_dir / CREDENTIALS_FILE_NAME)
    if file.path.exists():
        file.load()
    return KeyRing(file, "credentials")


def _configured(setting: str, keys: Sequence[str]) -> KeyRing | None:
    for index, key in enumerate(keys):
        if not is_key(key):
            raise ValueError(f"identity.{setting}: key {index + 1} is not 32 bytes in URL-safe base64")
    return KeyRing(ConfiguredKeys(keys)) if keys else None


def is_key(text: str) -> bool:
    try:
        return len(urlsafe_b64decode(text)) == 32
    except ValueError:
        return False


def new_key() -> str:
    return urlsafe_b64encode(os.urandom(32)).decode()
