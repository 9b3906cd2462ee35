"""The data directory: its lock, the passwords, and the files with endpoints and credentials for clients."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

LOCK = "lock"
SECRETS = "secrets.json"
CLOUDS = "clouds.yaml"
ENDPOINTS = "endpoints.json"
# In both files, the path of the authority that clients need to verify the cloud.
CACERT = "cacert"
_UNKNOWN_PASSWORD = (
    f"# The user has changed the password. Give it in OS_PASSWORD, or write it into {SECRETS} and restart."
)
# A restore is under way, or was interrupted, while this directory exists.
RESTORING = ".restoring"
# Start of the name of a directory with what a restore has replaced.
REPLACED = "replaced-"


class DirectoryInUse(Exception):
    """Another process uses the directory."""

    def __init__(self, directory: Path, pid: str) -> None:
        user = f"process {pid}" if pid else "another process"
        super().__init__(f"{directory} is in use by {user}; stop it first, or choose another directory with --data")


def prepare(directory: Path) -> None:
    """Create the directory, accessible to its owner only. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A directory with other content keeps its mode: every file written here is private anyway.
    if not any(directory.iterdir()) or (directory / LOCK).exists():
        directory.chmod(0o700)


@contextmanager
def lock(directory: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock the directory. The kernel releases the lock when the process ends. Raises DirectoryInUse."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUse(directory, os.pread(descriptor, 32, 0).decode().strip()) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a private file atomically: a reader sees the old or the new content, also after a power cut."""
    _write_temporary(path, content).replace(path)


def _write_temporary(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return temporary


def has_passwords(directory: Path) -> bool:
    return (directory / SECRETS).exists()


def load_passwords(directory: Path, users: Iterable[str]) -> dict[str, str]:
    """Return the users' passwords, which the first start generates. Raises ValueError if the file is malformed."""
    from secrets import token_urlsafe

    path = directory / SECRETS
    if not path.exists():
        generated = {"passwords": {user: token_urlsafe(24) for user in users}}
        temporary = _write_temporary(path, orjson.dumps(generated, option=orjson.OPT_INDENT_2) + b"\n")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another process of the same cloud was faster: its passwords are used
        finally:
            temporary.unlink()
    try:
        stored: dict[str, str] = orjson.loads(path.read_bytes())["passwords"]
        return {user: stored[user] for user in users}
    except (KeyError, TypeError) as error:
        raise ValueError(f'expected a password of each user under "passwords" ({error})') from None


def write_endpoints(directory: Path, endpoints: Mapping[str, str], cacert: str) -> None:
    """Write endpoints.json. `cacert` is the file with the authority of their certificate; empty: the system's."""
    content = {**endpoints, **({CACERT: cacert} if cacert else {})}
    replace_file(directory / ENDPOINTS, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def write_clouds(
    directory: Path,
    auth_url: str,
    region: str,
    clouds: Mapping[str, tuple[Mapping[str, str], str | None]],
    cacert: str,
) -> Path:
    """Write clouds.yaml. `clouds` has the `auth` of each cloud without the URL, and the password if it is known.

    JSON strings are valid YAML.
    """
    lines = ["clouds:"]
    for name, (auth, password) in clouds.items():
        lines += [f"  {name}:", "    auth_type: password", "    auth:"]
        lines += [f"      {key}: {_quoted(value)}" for key, value in {"auth_url": auth_url, **auth}.items()]
        lines.append(f"      {_UNKNOWN_PASSWORD if password is None else f'password: {_quoted(password)}'}")
        lines += [f"    region_name: {_quoted(region)}", "    identity_api_version: 3", "    interface: public"]
        if cacert:
            lines.append(f"    {CACERT}: {_quoted(cacert)}")
    path = directory / CLOUDS
    replace_file(path, ("\n".join(lines) + "\n").encode())
    return path


def _quoted(value: Any) -> str:
    return orjson.dumps(value).decode()
