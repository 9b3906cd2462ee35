"""The seeded image of a new cloud."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kilonova.image.seed import CONTENT, seed
from tests.image.support import images
from tests.support.cloud import ADMIN

MIB = 2**20


def test_seed_creates_image_once(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image_id = await seed(cloud.db, cloud.files.root, ADMIN)
            assert await seed(cloud.db, cloud.files.root, ADMIN) == image_id
            shown = await cloud.show(image_id)
            assert (shown["name"], shown["status"], shown["visibility"]) == ("cirros-sim", "active", "public")
            assert (await cloud.call("GET", f"/images/{image_id}/file")).body == CONTENT
            assert shown["size"] == len(CONTENT) == 65536
            assert len(cloud.on_disk()) == 1

    asyncio.run(scenario())
