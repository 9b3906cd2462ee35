"""scrypt password hashes, computed in threads: a hash takes tens of milliseconds on purpose.

Requests of clients wait in a bounded queue. Logins of services in this process have a thread of their own, so that an
attack on the login does not stop them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from kilonova.http.errors import Unavailable

# 16 MB and about 40 ms per hash. Each hash contains its parameters, so that old hashes stay valid when they change.
LOG_N, R, P = 14, 8, 1
SALT_BYTES, KEY_BYTES = 16, 32
MAX_MEMORY = 2**26
# How many hashes run or wait at a time: more than a second of work for two processors.
MAX_QUEUED = 64
# Linux gives threads priorities of their own. Others, such as the event loop's, go first.
NICENESS = 10

T = TypeVar("T")


async def hash_password(password: str) -> str:
    """`$scrypt$ln=14,r=8,p=1$salt$key`. Raises Unavailable if the queue is full."""
    return await _queue().run(_hash, password)


async def hash_passwords(passwords: Sequence[str]) -> list[str]:
    """Hash several passwords in parallel."""
    return list(await asyncio.gather(*map(hash_password, passwords)))


async def verify_password(password: str, stored: str | None, *, of_service: bool = False) -> bool:
    """Without a stored hash (unknown user, no password) always False, after the same time.

    `of_service`: a service of this process logs in. Raises Unavailable if the queue is full.
    """
    return await (_service_queue() if of_service else _queue()).run(_verify, password, stored)


class _Queue:
    """Threads of their own, so that many logins at once delay only each other and use a bounded amount of memory."""

    def __init__(self, threads: int, name: str, initializer: Callable[[], None] | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=initializer)
        self._size = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        with self._lock:
            if self._size >= MAX_QUEUED:
                raise Unavailable("Too many passwords are being checked; try again.", headers={"Retry-After": "1"})
            self._size += 1
        future = self._threads.submit(work, *arguments)
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def _leave(self, _: Future[T]) -> None:
        with self._lock:
            self._size -= 1


@cache
def _queue() -> _Queue:
    return _Queue(max(2, os.cpu_count() or 2), "passwords", _lower_priority)


@cache
def _service_queue() -> _Queue:
    return _Queue(1, "service-passwords")


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _derive(password: str, salt: bytes, log_n: int, r: int, p: int, size: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << log_n, r=r, p=p, dklen=size, maxmem=MAX_MEMORY)


def _hash(password: str) -> str:
    salt = os.urandom(SALT_BYTES)
    key = _derive(password, salt, LOG_N, R, P, KEY_BYTES)
    return f"$scrypt$ln={LOG_N},r={R},p={P}${b64encode(salt).decode()}${b64encode(key).decode()}"


# No known password has a key of zeros.
_UNKNOWN_USER_HASH = (
    f"$scrypt$ln={LOG_N},r={R},p={P}${b64encode(bytes(SALT_BYTES)).decode()}${b64encode(bytes(KEY_BYTES)).decode()}"
)


def _verify(password: str, stored: str | None) -> bool:
    _, scheme, parameters, salt, key = (stored or _UNKNOWN_USER_HASH).split("$")
    if scheme != "scrypt":
        raise ValueError(f"unknown scheme {scheme[:20]} of a password hash")
    numbers = {name: int(value) for name, _, value in (part.partition("=") for part in parameters.split(","))}
    wanted = b64decode(key)
    found = _derive(password, b64decode(salt), numbers["ln"], numbers["r"], numbers["p"], len(wanted))
    return hmac.compare_digest(found, wanted) and stored is not None
