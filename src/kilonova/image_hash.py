"""Hashes of images' data as text: the algorithm and the digest, such as `sha512:…`. Empty if the hash is unknown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol


class Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class UnsupportedAlgorithm(Exception):
    pass


def of_image(attributes: Mapping[str, object]) -> str:
    """The hash that the image service shows. The checksum, an MD5, is the hash of an image without another one.

    So it is if the image service uses an algorithm that Python does not have.
    """
    algorithm, value = attributes.get("os_hash_algo"), attributes.get("os_hash_value")
    checksum = attributes.get("checksum")
    if algorithm and value and (algorithm in hashlib.algorithms_available or not checksum):
        return f"{algorithm}:{value}"
    return f"md5:{checksum}" if checksum else ""


def algorithm_of(image_hash: str) -> str:
    return image_hash.partition(":")[0]


def new_hasher(image_hash: str) -> Hasher:
    """A hasher of the same algorithm; of SHA-512 for an unknown hash. Raises UnsupportedAlgorithm."""
    algorithm = algorithm_of(image_hash) or "sha512"
    try:
        return hashlib.new(algorithm, usedforsecurity=False)
    except ValueError:
        raise UnsupportedAlgorithm(f"the hash algorithm {algorithm[:40]} is not supported") from None


def of_content(content: bytes, like: str) -> str:
    """The hash of the content by the algorithm of another hash. Raises UnsupportedAlgorithm."""
    hasher = new_hasher(like)
    hasher.update(content)
    return f"{algorithm_of(like)}:{hasher.hexdigest()}"


def is_replaced(recorded: str, present: str) -> bool:
    """Whether both hashes are known and of one algorithm, and differ."""
    return algorithm_of(recorded) == algorithm_of(present) and recorded != present
