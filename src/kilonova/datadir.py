"""The data directory: whose it is at the moment, its passwords, and the files that lead clients to the process."""

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


class InUse(Exception):
    """Another process works on the directory."""

    def __init__(self, directory: Path, pid: str) -> None:
        whose = f"process {pid}" if pid else "another process"
        super().__init__(f"{directory} is in use by {whose}; stop it first, or choose another directory with --data")


def prepare(directory: Path) -> None:
    """Make the directory, for its owner alone. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Somebody else's directory, given by mistake or on purpose, keeps its mode: what lies in it is private anyway.
    if not any(directory.iterdir()) or (directory / LOCK).exists():
        directory.chmod(0o700)


@contextmanager
def locked(directory: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the directory, alone or with others that share it. The kernel frees it with the process. Raises InUse."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(directory, os.pread(descriptor, 32, 0).decode().strip()) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Replace a private file whole: a reader sees the old one or the new one, also after a power cut."""
    _scratch(path, content).replace(path)


def _scratch(path: Path, content: bytes) -> Path:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return scratch


def has_passwords(directory: Path) -> bool:
    return (directory / SECRETS).exists()


def passwords(directory: Path, users: Iterable[str]) -> dict[str, str]:
    """The passwords of these users, made at the first start and kept. Raises ValueError if the file is spoilt."""
    from secrets import token_urlsafe

    path = directory / SECRETS
    if not path.exists():
        made = {"passwords": {user: token_urlsafe(24) for user in users}}
        scratch = _scratch(path, orjson.dumps(made, option=orjson.OPT_INDENT_2) + b"\n")
        try:
            os.link(scratch, path)
        except FileExistsError:
            pass  # another process of the same cloud was faster: its passwords count
        finally:
            scratch.unlink()
    try:
        kept: dict[str, str] = orjson.loads(path.read_bytes())["passwords"]
        return {user: kept[user] for user in users}
    except (KeyError, TypeError) as error:
        raise ValueError(f"no passwords as expected ({error})") from None


def write_endpoints(directory: Path, endpoints: Mapping[str, str]) -> None:
    write(directory / ENDPOINTS, orjson.dumps(dict(endpoints), option=orjson.OPT_INDENT_2) + b"\n")


def write_clouds(directory: Path, auth_url: str, region: str, clouds: Mapping[str, Mapping[str, str]]) -> Path:
    """`clouds` gives each cloud's own part of `auth`. Strings in JSON's spelling are YAML too."""
    lines = ["clouds:"]
    for name, auth in clouds.items():
        lines += [f"  {name}:", "    auth_type: password", "    auth:"]
        lines += [f"      {key}: {_quoted(value)}" for key, value in {"auth_url": auth_url, **auth}.items()]
        lines += [f"    region_name: {_quoted(region)}", "    identity_api_version: 3", "    interface: public"]
    path = directory / CLOUDS
    write(path, ("\n".join(lines) + "\n").encode())
    return path


def _quoted(value: Any) -> str:
    return orjson.dumps(value).decode()
