"""Limits and usage of projects. Usage is counted from the rows of images.

Every check runs in the transaction that uses the quota, and other requests of the project wait until it ends.
"""

from __future__ import annotations

from typing import NamedTuple

from kilonova.config_companions import ImageQuota
from kilonova.http.errors import TooLarge
from kilonova.store import Reader, Transaction

MIB = 1 << 20
_USED = "SELECT COUNT(*) AS images, COALESCE(SUM(size), 0) AS bytes FROM images WHERE owner = $1"


class Usage(NamedTuple):
    images: int
    bytes: int


async def usage(reader: Reader, project_id: str | None) -> Usage:
    """An image counts from its creation, its data from the end of the upload."""
    row = await reader.fetch_one(_USED, project_id)
    assert row is not None
    return Usage(int(row["images"]), int(row["bytes"]))


async def check_count(tx: Transaction, project_id: str | None, quota: ImageQuota) -> None:
    """Refuse (413) one more image beyond the quota of its owner. An image without an owner has no quota."""
    if project_id is None or quota.image_count_total < 0:
        return
    await _hold(tx, project_id)
    used = (await usage(tx, project_id)).images
    if used + 1 > quota.image_count_total:
        raise TooLarge(
            f"Quota exceeded for image_count_total: the project has {used} images, and the limit is"
            f" {quota.image_count_total}."
        )


async def check_size(tx: Transaction, project_id: str | None, size: int, quota: ImageQuota) -> None:
    """Refuse (413) uploaded data beyond the quota of the image's owner."""
    if project_id is None or quota.image_size_total < 0:
        return
    await _hold(tx, project_id)
    check_received(await remaining_bytes(tx, project_id, quota), size, quota)


async def remaining_bytes(reader: Reader, project_id: str | None, quota: ImageQuota) -> int | None:
    """How many bytes an upload may have if no other upload ends before; None without a limit."""
    if project_id is None or quota.image_size_total < 0:
        return None
    return quota.image_size_total * MIB - (await usage(reader, project_id)).bytes


def check_received(remaining: int | None, size: int, quota: ImageQuota) -> None:
    if remaining is not None and size > max(remaining, 0):
        raise TooLarge(
            f"Quota exceeded for image_size_total: the data has at least {size} bytes, and the project may store"
            f" {max(remaining, 0)} more bytes. The limit is {quota.image_size_total} MiB."
        )


async def _hold(tx: Transaction, project_id: str) -> None:
    await tx.lock(f"image quota:{project_id}")
