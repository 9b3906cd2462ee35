"""scrypt password hashes, computed in threads: a hash takes tens of milliseconds on purpose."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

# 16 MB and about 40 ms per hash. Each hash contains its parameters, so that old hashes stay valid when they change.
LOG_N, R, P = 14, 8, 1
SALT_BYTES, KEY_BYTES = 16, 32
MAX_MEMORY = 2**26


async def hash_password(password: str) -> str:
    """`$scrypt$ln=14,r=8,p=1$salt$key`"""
    return await asyncio.get_running_loop().run_in_executor(_pool(), _hash, password)


async def hash_passwords(passwords: Sequence[str]) -> list[str]:
    """Hash several passwords in parallel."""
    return list(await asyncio.gather(*map(hash_password, passwords)))


async def verify_password(password: str, stored: str | None) -> bool:
    """Without a stored hash (unknown user, no password) always False, after the same time."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), _verify, password, stored)


@cache
def _pool() -> ThreadPoolExecutor:
    """A separate pool, so that many logins at once delay only each other and use a bounded amount of memory."""
    return ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="passwords")


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
