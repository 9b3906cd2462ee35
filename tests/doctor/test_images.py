"""Findings about snapshots whose operation has ended."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kilonova import ids
from kilonova.compute.operations.steps.images import snapshot_id
from kilonova.doctor import Finding, examine
from kilonova.doctor.images import read_from_api
from kilonova.image.client import ImageClient
from kilonova.store import Database
from tests.doctor.support import Opener, add_consistent_server, add_operation, guest, insert
from tests.support import run
from tests.support.full_cloud import full_cloud

OPERATION = "00000000-0000-4000-8000-00000000000a"
IMAGE = snapshot_id(OPERATION)
ENDED = {"id": OPERATION, "kind": "create_image", "state": "done", "finished_at": 1.0}


def findings(database: Opener, prepare: Any) -> list[tuple[str, str]]:
    async def collect() -> list[Finding]:
        async with database() as db:
            await add_consistent_server(db)
            await prepare(db)
            return await examine(db, [guest()])

    return [(finding.kind, finding.subject) for finding in run(collect())]


@pytest.mark.parametrize(
    "image, operation, found",
    [
        ({"status": "queued"}, {}, True),
        ({"status": "saving"}, {"kind": "shelve", "state": "undone"}, True),
        ({"status": "active"}, {}, False),
        ({"status": "queued"}, {"state": "running", "finished_at": None}, False),
        ({"status": "queued"}, {"kind": "boot"}, False),
        # An image that a user creates waits for the user's data.
        ({"status": "queued", "id": "another"}, {}, False),
    ],
)
def test_snapshots_without_data(
    database: Opener, image: dict[str, Any], operation: dict[str, Any], found: bool
) -> None:
    async def prepare(db: Database) -> None:
        await insert(db, "images", **{"id": IMAGE, "size": None, **image})
        await add_operation(db, **{**ENDED, **operation})

    assert findings(database, prepare) == ([("image stuck", IMAGE)] if found else [])


def test_service_is_read_by_its_api(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            client = ImageClient(c.services.image._caller)
            operation_id = ids.new_id()
            for image_id in (snapshot_id(operation_id), ids.new_id()):
                image = {"id": image_id, "disk_format": "raw", "container_format": "bare", "visibility": "private"}
                await client.create(image, "admin")
            await add_operation(c.db, **{**ENDED, "id": operation_id})
            (finding,) = await examine(c.db, None, read_images=partial(read_from_api, client, "admin"))
            assert (finding.kind, finding.subject) == ("image stuck", snapshot_id(operation_id))
            assert finding.detail == f"it is queued, and its operation {operation_id} has ended"

    run(scenario())
