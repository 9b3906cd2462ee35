"""Image data: up, down, broken off, too much, barred, and what a crash leaves."""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kilonova import clock
from kilonova.http.client import InProcess, Unreachable
from kilonova.image import model
from kilonova.image.client import ImageClient, ImageError
from kilonova.image.recovery import recover
from kilonova.image.seed import CONTENT, seed
from tests.image.support import RAW, Images, images
from tests.support.cloud import ADMIN

MIB = 2**20


def test_up_and_down(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            path = f"/images/{image['id']}"
            assert (await cloud.call("GET", f"{path}/file")).status == 204
            content = os.urandom(3 * MIB + 17)
            assert (await cloud.upload(image["id"], content)).status == 204
            shown = await cloud.show(image["id"])
            assert (shown["status"], shown["size"], shown["virtual_size"]) == ("active", len(content), len(content))
            assert shown["checksum"] == hashlib.md5(content, usedforsecurity=False).hexdigest()
            assert shown["os_hash_algo"] == "sha512"
            assert shown["os_hash_value"] == hashlib.sha512(content).hexdigest()
            answer = await cloud.call("GET", f"{path}/file")
            assert answer.body == content
            assert answer.headers["content-length"] == str(len(content))
            assert answer.headers["content-md5"] == shown["checksum"]
            assert (await cloud.upload(image["id"], b"again")).status == 409
            assert len(cloud.on_disk()) == 1
            await cloud.ok("DELETE", path)
            assert cloud.on_disk() == []

    asyncio.run(scenario())


def test_zeros_take_no_room(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            image = await cloud.make()
            content = bytes(8 * MIB) + os.urandom(MIB) + bytes(8 * MIB + 17)
            assert (await cloud.upload(image["id"], content)).status == 204
            assert (await cloud.call("GET", f"/images/{image['id']}/file")).body == content
            (found,) = tmp_path.rglob(image["id"] + "*")
            assert found.stat().st_size == len(content)
            assert found.stat().st_blocks * 512 < 4 * MIB

    asyncio.run(scenario())


def test_the_head_of_a_qcow2_tells_its_size(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            image = await cloud.make(disk_format="qcow2")
            head = b"QFI\xfb" + struct.pack(">IQIIQ", 3, 0, 0, 16, 5 * 2**30) + bytes(100)
            assert (await cloud.upload(image["id"], head)).status == 204
            assert (await cloud.show(image["id"]))["virtual_size"] == 5 * 2**30
            strange = await cloud.make(disk_format="qcow2")
            assert (await cloud.upload(strange["id"], b"")).status == 204
            shown = await cloud.show(strange["id"])
            assert (shown["size"], shown["virtual_size"]) == (0, None)

    asyncio.run(scenario())


def test_what_cannot_be_uploaded(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path, max_bytes=1000) as cloud:
            bare = (await cloud.call("POST", "/images", {"name": "no formats"})).json()
            assert (await cloud.upload(bare["id"], b"x")).status == 400
            image = await cloud.make()
            path = f"/images/{image['id']}/file"
            assert (await cloud.call("PUT", path, content=b"x")).status == 415
            assert (await cloud.call("PUT", path, {"x": 1})).status == 415
            size = "X-OpenStack-Image-Size"
            for headers in ({size: "7"}, {size: "x"}, {size: "9" * 30}):
                assert (await cloud.upload(image["id"], b"x", **headers)).status == 400
            assert (await cloud.upload(image["id"], b"x", **{size: "1001"})).status == 413
            assert (await cloud.upload(image["id"], bytes(1001))).status == 413
            assert (await cloud.show(image["id"]))["status"] == "queued"
            assert cloud.on_disk() == []
            assert (await cloud.upload(image["id"], bytes(1000), **{size: "1000"})).status == 204

    asyncio.run(scenario())


class BreaksOff(Exception):
    pass


async def broken(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise BreaksOff


def test_an_upload_that_breaks_off_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            with pytest.raises(BreaksOff):
                await cloud.upload(image["id"], broken(bytes(2 * MIB)))
            shown = await cloud.show(image["id"])
            assert (shown["status"], shown["size"], shown["checksum"]) == ("queued", None, None)
            assert cloud.on_disk() == []
            await _hang_up(cloud, image["id"])
            assert (await cloud.show(image["id"]))["status"] == "queued"
            assert cloud.on_disk() == []
            assert (await cloud.upload(image["id"], b"whole")).status == 204

    asyncio.run(scenario())


async def _hang_up(cloud: Images, image_id: str) -> None:
    """As a server tells of a client that went away in the middle."""
    messages = [
        {"type": "http.request", "body": bytes(MIB), "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []

    async def receive() -> object:
        return messages.pop(0)

    async def send(message: object) -> None:
        sent.append(message)

    path = f"/image/v2/images/{image_id}/file"
    headers = [(b"x-auth-token", b"member"), (b"content-type", b"application/octet-stream")]
    scope = {"type": "http", "method": "PUT", "path": path, "query_string": b"", "headers": headers}
    await cloud.app(scope, receive, send)
    assert messages == []


def test_a_download_ends_with_its_reader(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            image = await cloud.make()
            await cloud.upload(image["id"], bytes(32 * MIB))
            left, asked, sent = asyncio.Event(), [0], [0]

            async def receive() -> object:
                asked[0] += 1
                if asked[0] == 1:
                    return {"type": "http.request", "body": b"", "more_body": False}
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message: dict[str, bytes]) -> None:
                sent[0] += len(message.get("body", b""))
                if sent[0]:
                    left.set()

            path = f"/image/v2/images/{image['id']}/file"
            headers = [(b"x-auth-token", b"member")]
            scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
            await cloud.app(scope, receive, send)
            assert 0 < sent[0] < 8 * MIB

    asyncio.run(scenario())


def test_one_image_two_uploads_and_a_deletion(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield bytes(2 * MIB)
                begun.set()
                await go_on.wait()
                yield b"end"

            first = asyncio.create_task(cloud.upload(image["id"], slowly()))
            await begun.wait()
            assert (await cloud.show(image["id"]))["status"] == "saving"
            assert (await cloud.call("GET", f"/images/{image['id']}/file")).status == 204
            assert (await cloud.upload(image["id"], b"other")).status == 409
            await recover(cloud.db, cloud.files)
            assert (await cloud.show(image["id"]))["status"] == "saving"
            await cloud.ok("DELETE", f"/images/{image['id']}")
            again = await cloud.make(id=image["id"])
            assert (await cloud.upload(again["id"], b"new")).status == 204
            go_on.set()
            assert (await first).status == 410
            assert (await cloud.call("GET", f"/images/{image['id']}/file")).body == b"new"
            assert len(cloud.on_disk()) == 1

    asyncio.run(scenario())


def test_a_crash_at_any_moment_is_put_in_order(database_url: str, tmp_path: Path) -> None:
    """What a killed process leaves: a part, a whole file nobody knows, a deleted image's file, an image in `saving`."""

    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            kept = await cloud.make(name="kept")
            await cloud.upload(kept["id"], b"kept")
            for whole in (False, True):
                image = await cloud.make(name="dead")
                upload = cloud.files.begin(image["id"], "dead", "raw")
                async with cloud.db.transaction() as tx:
                    assert await model.begin_upload(tx, image["id"], "dead", clock.now())
                await upload.write(b"half")
                if whole:
                    await upload.finish()
                upload.close()
            stray = cloud.files.root / "stray.file"
            stray.write_bytes(b"x")
            os.utime(stray, (1, 1))
            assert len(cloud.on_disk()) == 4
            await recover(cloud.db, cloud.files)
            assert sorted(await cloud.names({"status": "queued"})) == ["dead", "dead"]
            assert len(cloud.on_disk()) == 1
            assert (await cloud.call("GET", f"/images/{kept['id']}/file")).body == b"kept"

    asyncio.run(scenario())


def test_an_upload_takes_over_from_a_dead_one(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            async with cloud.db.transaction() as tx:
                await model.begin_upload(tx, image["id"], "dead", clock.now())
            assert (await cloud.upload(image["id"], b"alive")).status == 204
            assert (await cloud.call("GET", f"/images/{image['id']}/file")).body == b"alive"

    asyncio.run(scenario())


def test_deactivation(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            path = f"/images/{image['id']}"
            assert await cloud.status("POST", f"{path}/actions/deactivate") == 403
            await cloud.upload(image["id"], b"data")
            for _ in range(2):
                assert await cloud.status("POST", f"{path}/actions/deactivate") == 204
            assert (await cloud.show(image["id"]))["status"] == "deactivated"
            assert await cloud.status("GET", f"{path}/file") == 403
            assert (await cloud.call("GET", f"{path}/file", as_="admin")).body == b"data"
            assert await cloud.status("POST", f"{path}/actions/reactivate", as_="other") == 404
            assert await cloud.status("POST", f"{path}/actions/reactivate") == 204
            assert (await cloud.call("GET", f"{path}/file")).body == b"data"

    asyncio.run(scenario())


def test_large_data_never_lies_in_memory(sqlite_url: str, tmp_path: Path) -> None:
    size = 64 * MIB
    block = os.urandom(64 * 1024)

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(size // len(block)):
            yield block

    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            client = ImageClient(InProcess(cloud.app, "/image"))
            image = await client.create({"name": "large", **RAW}, "member")
            tracemalloc.start()
            await client.upload(image["id"], blocks(), "member")
            received = hashlib.sha512()
            async with client.download(image["id"], "member") as chunks:
                async for chunk in chunks:
                    received.update(chunk)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            shown = await client.show(image["id"], "member")
            assert shown is not None
            assert (shown["size"], shown["os_hash_value"]) == (size, received.hexdigest())
            assert peak < 16 * MIB, f"{peak / MIB:.1f} MiB at most were held"

    asyncio.run(scenario())


def test_the_client(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            client = ImageClient(InProcess(cloud.app, "/image"))
            assert await client.show("6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53", "member") is None
            made = [await client.create({"name": str(n), **RAW}, "member") for n in range(5)]
            assert len(await client.list("member")) == 5
            assert len(await client.list("member", {"limit": "2"})) == 5
            assert len(await client.list("member", limit=3)) == 3
            assert [image["name"] for image in await client.list("member", {"name": "3"})] == ["3"]
            changed = await client.patch(made[0]["id"], [{"op": "add", "path": "/a", "value": "b"}], "member")
            assert changed["a"] == "b"
            async with client.download(made[0]["id"], "member") as chunks:
                assert [chunk async for chunk in chunks] == []
            await client.upload(made[0]["id"], b"data", "member")
            with pytest.raises(ImageError) as refused:
                await client.upload(made[0]["id"], b"data", "member")
            assert refused.value.status == 409
            assert "saving" in str(refused.value)
            await client.delete(made[0]["id"], "member")
            await client.delete(made[0]["id"], "member")
            with pytest.raises(ImageError) as gone:
                async with client.download(made[0]["id"], "member"):
                    pass
            assert gone.value.status == 404
            await cloud.db.close()
            with pytest.raises(Unreachable):
                await client.show(made[1]["id"], "member")

    asyncio.run(scenario())


def test_the_seed_is_made_once(database_url: str, tmp_path: Path) -> None:
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
