"""The image client against the built-in service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.http.client import ClientResponse, InProcess, Unreachable
from kilonova.image.client import ImageClient, ImageError
from tests.image.support import RAW, images

MIB = 2**20


class Interrupted(Exception):
    pass


def test_client_manages_images_and_data(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            client = ImageClient(InProcess(cloud.app, "/image"))
            assert await client.show("6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53", "member") is None
            created = [await client.create({"name": str(n), **RAW}, "member") for n in range(5)]
            assert len(await client.list("member")) == 5
            assert len(await client.list("member", {"limit": "2"})) == 5
            assert len(await client.list("member", limit=3)) == 3
            assert [image.name for image in await client.list("member", {"name": "3"})] == ["3"]
            changed = await client.patch(created[0].id, [{"op": "add", "path": "/a", "value": "b"}], "member")
            assert changed.properties == {"a": "b"}
            async with client.download(created[0].id, "member") as chunks:
                assert [chunk async for chunk in chunks] == []
            await client.upload(created[0].id, b"data", "member")
            with pytest.raises(ImageError) as refused:
                await client.upload(created[0].id, b"data", "member")
            assert refused.value.status == 409
            assert "saving" in str(refused.value)
            await client.delete(created[0].id, "member")
            await client.delete(created[0].id, "member")
            with pytest.raises(ImageError) as gone:
                async with client.download(created[0].id, "member"):
                    pass
            assert gone.value.status == 404
            await cloud.db.close()
            with pytest.raises(Unreachable):
                await client.show(created[1].id, "member")

    asyncio.run(scenario())


def test_client_separates_properties_from_attributes(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            client = ImageClient(InProcess(cloud.app, "/image"))
            made = await client.create(
                {"name": "a", **RAW, "properties": "x", "os_distro": "y", "tags": ["t"]}, "member"
            )
            assert made.properties == {"properties": "x", "os_distro": "y"}
            assert (made.name, made.size, made.disk_bytes) == ("a", None, 0)
            assert made.properties_with("name", "size", "min_ram") == {**made.properties, "name": "a", "min_ram": "0"}
            await client.upload(made.id, b"disk", "member")
            shown = await client.show(made.id, "member")
            assert shown is not None
            assert (shown.status, shown.size, shown.disk_bytes) == ("active", 4, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"{}", b'{"id": null}', b'{"id": "i", "status": 3}'])
def test_invalid_response_is_unreachable(body: bytes) -> None:
    class FixedResponse:
        async def request(self, method: str, path: str, **options: object) -> ClientResponse:
            return ClientResponse(200, {}, body)

    with pytest.raises(Unreachable, match="the image service sent an invalid response"):
        asyncio.run(ImageClient(FixedResponse()).show("i", "token"))
