"""The data of simulated snapshots: JSON with the id of the disk that the snapshot was taken of."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson

from kilonova import image_hash
from kilonova.hosts.drivers.base import DriverError, ImageReplaced
from kilonova.hosts.messages import GuestState, Image

# Longer data is not a simulated snapshot.
_MARK, _MAX_BYTES = "kilonova-sim disk", 4096


def content_of(guest: GuestState) -> bytes:
    return orjson.dumps({_MARK: guest.disk, "guest": guest.id})


def _hash_of(content: bytes, image: Image) -> str:
    try:
        return image_hash.of_content(content, image.hash)
    except image_hash.UnsupportedAlgorithm as error:
        raise DriverError(f"the data of image {image.id} cannot be checked: {error}") from None


async def read_disk(data: AsyncIterator[bytes], image: Image) -> str:
    """The disk that the snapshot was taken of. Data that is no simulated snapshot gives ""."""
    content = b""
    async for chunk in data:
        content += chunk
        if len(content) > _MAX_BYTES:
            return ""
    if image.hash and _hash_of(content, image) != image.hash:
        raise ImageReplaced(f"the data of image {image.id} is damaged: its hash is not {image.hash}")
    try:
        return str(orjson.loads(content)[_MARK])
    except (ValueError, KeyError, TypeError):
        return ""
