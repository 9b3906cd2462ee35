"""The image client against the built-in service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse, InProcess, Unreachable
from kilonova.identity.client import Auth
from kilonova.image.client import ImageClient, ImageError, is_property
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


class Glance:
    """Answers with images as a real Glance shows them. `paths` are those that were asked for."""

    def __init__(self, *bodies: object, status: int = 200) -> None:
        self.bodies = [orjson.dumps(body) for body in bodies]
        self.status = status
        self.paths: list[str] = []

    async def request(self, method: str, path: str, **options: object) -> ClientResponse:
        self.paths.append(path)
        return ClientResponse(self.status, {}, self.bodies.pop(0))

    def stream(self, method: str, path: str, **options: object) -> Any:
        raise NotImplementedError


SHOWN = {
    "id": "i",
    "status": "active",
    "size": None,
    "virtual_size": None,
    "os_hash_algo": None,
    "os_hash_value": None,
    "checksum": None,
    "stores": "fast,slow",
    "locations": [{"url": "file:///x", "metadata": {"store": "fast"}}],
    "direct_url": "file:///x",
    "os_glance_importing_to_stores": "slow",
    "os_glance_failed_import": "",
    "hw_disk_bus": "virtio",
    "kernel_id": None,
    "number": 3,
    "flag": True,
    "list": ["a", 1],
}


def test_properties_of_glance_itself_are_not_custom_properties() -> None:
    image = asyncio.run(ImageClient(Glance(SHOWN)).show("i", "token"))
    assert image is not None
    assert image.properties == {"hw_disk_bus": "virtio", "number": "3", "flag": "True", "list": '["a",1]'}
    assert (image.size, image.disk_bytes, image.hash) == (None, 0, "")
    assert not any(map(is_property, ("os_glance_anything", "stores", "locations", "direct_url", "os_hidden")))


@pytest.mark.parametrize("link", ["/v2/images?marker=i", "/image/v2/images?marker=i", "http://h:1/v2/images?marker=i"])
def test_list_follows_links_below_the_base_url(link: str) -> None:
    glance = Glance({"images": [SHOWN], "next": link}, {"images": [SHOWN]})
    assert len(asyncio.run(ImageClient(glance).list("token"))) == 2
    assert glance.paths == ["/v2/images?", "/v2/images?marker=i"]


def test_error_message_has_no_markup() -> None:
    glance = Glance({"message": "Image ID i already exists!<br /><br />\n\n", "code": "409", "title": "x"}, status=409)
    with pytest.raises(ImageError) as refused:
        asyncio.run(ImageClient(glance).create({}, "token"))
    assert (refused.value.status, str(refused.value)) == (409, "Image ID i already exists!")


def test_owner_token_is_of_the_project_at_a_real_glance_only() -> None:
    asked: list[str | None] = []

    class Identity:
        async def auth(self, project_id: str | None = None) -> Auth:
            asked.append(project_id)
            return Auth("token", project_id)

    for is_glance in (True, False):
        asyncio.run(ImageClient(Glance(), is_glance=is_glance).owner_token(Identity(), "p"))
    assert asked == ["p", None]


@pytest.mark.parametrize(
    ("algorithm", "checksum", "expected"),
    [("sha512", "m", "sha512:v"), ("unknown", "m", "md5:m"), ("unknown", None, "unknown:v"), (None, "m", "md5:m")],
)
def test_hash_of_an_unknown_algorithm(algorithm: str | None, checksum: str | None, expected: str) -> None:
    shown = {**SHOWN, "os_hash_algo": algorithm, "os_hash_value": algorithm and "v", "checksum": checksum}
    image = asyncio.run(ImageClient(Glance(shown)).show("i", "token"))
    assert image is not None
    assert image.hash == expected
