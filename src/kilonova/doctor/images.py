"""Checks that no snapshot waits for data after its operation has ended."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.config import Config
from kilonova.doctor.external_services import reading
from kilonova.doctor.facts import Facts, Finding, UnfilledImage
from kilonova.image.client import ImageClient
from kilonova.store import Reader

_STATUSES = ("queued", "saving")


def findings(facts: Facts) -> Iterator[Finding]:
    for image, operation_id in facts.unfilled:
        if operation_id not in facts.busy:
            yield Finding("image stuck", image.id, f"it is {image.status}, and its operation {operation_id} has ended")


async def read_built_in(db: Reader) -> list[UnfilledImage]:
    """Read the built-in image service from the database; works also while no process serves it."""
    rows = await db.fetch("SELECT id, status FROM images WHERE status = ANY($1) ORDER BY id", list(_STATUSES))
    return [UnfilledImage(row["id"], row["status"]) for row in rows]


async def read_external(config: Config) -> list[UnfilledImage]:
    """Read an external image service with a token of the service user. Raises Unavailable."""
    async with reading(config, "image") as (caller, auth):
        return await read_from_api(ImageClient(caller), auth.token)


async def read_from_api(client: ImageClient, token: str) -> list[UnfilledImage]:
    listed = await client.list(token, {"status": f"in:{','.join(_STATUSES)}"})
    return [UnfilledImage(image.id, image.status) for image in listed]
