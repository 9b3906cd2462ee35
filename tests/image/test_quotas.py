"""Quotas of projects for images: exact, also for concurrent requests, and uploads beyond them leave nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.image.support import RAW, Images, images
from tests.support.cloud import DEMO

MIB = 1 << 20


async def refusal(cloud: Images, image_id: str, content: Any, **headers: str) -> str:
    answer = await cloud.upload(image_id, content, **headers)
    assert answer.status == 413, answer.body
    message: str = answer.json()["message"]
    return message


def test_count_of_images_is_limited(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path, image_count_total=3) as cloud:
            answers = await asyncio.gather(*(cloud.call("POST", "/images", RAW) for _ in range(8)))
            assert Counter(answer.status for answer in answers) == {201: 3, 413: 5}
            (message,) = {answer.json()["message"] for answer in answers if answer.status == 413}
            assert "Quota exceeded for image_count_total" in message
            assert len(await cloud.names()) == 3
            # Services create images for projects.
            assert await cloud.status("POST", "/images", {"owner": DEMO, **RAW}, as_="kilonova") == 413
            assert await cloud.status("POST", "/images", RAW, as_="other") == 201
            first = next(answer.json() for answer in answers if answer.status == 201)
            await cloud.ok("DELETE", f"/images/{first['id']}")
            await cloud.make()

    asyncio.run(scenario())


def test_upload_beyond_the_quota_stops_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path, image_size_total=4) as cloud:
            first, second = [await cloud.make() for _ in range(2)]
            assert (await cloud.upload(first["id"], b"x" * 3 * MIB)).status == 204
            sent = 0

            async def endless() -> AsyncIterator[bytes]:
                nonlocal sent
                while True:
                    sent += 1
                    yield b"x" * 64 * 1024

            assert "Quota exceeded for image_size_total" in await refusal(cloud, second["id"], endless())
            assert sent == 17
            for headers in ({}, {"Content-Length": str(MIB + 1)}, {"X-OpenStack-Image-Size": str(MIB + 1)}):
                assert "Quota exceeded" in await refusal(cloud, second["id"], b"x" * (MIB + 1), **headers)
            shown = await cloud.show(second["id"])
            assert (shown["status"], shown["size"]) == ("queued", None)
            assert len(cloud.on_disk()) == 1
            assert (await cloud.upload(second["id"], b"x" * MIB)).status == 204
            third = await cloud.make()
            assert "Quota exceeded" in await refusal(cloud, third["id"], b"x")
            assert (await cloud.upload(third["id"], b"")).status == 204
            await cloud.ok("DELETE", f"/images/{first['id']}")
            assert (await cloud.upload((await cloud.make())["id"], b"x" * 3 * MIB)).status == 204

    asyncio.run(scenario())


def test_concurrent_uploads_stay_within_the_quota(database_url: str, tmp_path: Path) -> None:
    """Each upload alone is within the quota. All have sent their data when the first one ends."""

    async def scenario() -> None:
        async with images(database_url, tmp_path, image_size_total=3) as cloud:
            made = [await cloud.make() for _ in range(6)]
            waiting, go_on = 0, asyncio.Event()

            async def content() -> AsyncIterator[bytes]:
                nonlocal waiting
                yield b"x" * MIB
                waiting += 1
                if waiting == len(made):
                    go_on.set()
                await go_on.wait()

            answers = await asyncio.gather(*(cloud.upload(image["id"], content()) for image in made))
            assert Counter(answer.status for answer in answers) == {204: 3, 413: 3}
            shown = [(await cloud.show(image["id"]))["status"] for image in made]
            assert Counter(shown) == {"active": 3, "queued": 3}
            assert len(cloud.on_disk()) == 3

    asyncio.run(scenario())


def test_unlimited_quota_and_usage(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path, image_size_total=-1, image_count_total=2) as cloud:
            image = await cloud.make()
            assert (await cloud.upload(image["id"], b"x" * (2 * MIB + 7))).status == 204
            await cloud.make("other")
            assert (await cloud.ok("GET", "/info/usage"))["usage"] == {
                "image_size_total": {"limit": -1, "usage": 2},
                "image_count_total": {"limit": 2, "usage": 1},
            }
            assert await cloud.status("GET", "/info/usage", as_=None) == 401

    asyncio.run(scenario())
