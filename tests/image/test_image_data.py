"""Image data: upload, download, deactivation and cleanup."""

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
from kilonova.http.client import InProcess
from kilonova.image.client import ImageClient
from kilonova.image.images import model
from kilonova.image.upload_cleanup import clean_up_uploads
from tests.image.support import RAW, Images, images
from tests.support.small_disk import free_bytes, small_disk

MIB = 2**20


def test_upload_and_download(database_url: str, tmp_path: Path) -> None:
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
            response = await cloud.call("GET", f"{path}/file")
            assert response.body == content
            assert response.headers["content-length"] == str(len(content))
            assert response.headers["content-md5"] == shown["checksum"]
            assert (await cloud.upload(image["id"], b"again")).status == 409
            assert len(cloud.on_disk()) == 1
            await cloud.ok("DELETE", path)
            assert cloud.on_disk() == []

    asyncio.run(scenario())


def test_zeros_are_stored_sparse(sqlite_url: str, tmp_path: Path) -> None:
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


def test_virtual_size_of_qcow2(sqlite_url: str, tmp_path: Path) -> None:
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


def test_invalid_uploads_are_refused(database_url: str, tmp_path: Path) -> None:
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


class Interrupted(Exception):
    pass


async def interrupted_stream(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise Interrupted


def test_interrupted_upload_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            with pytest.raises(Interrupted):
                await cloud.upload(image["id"], interrupted_stream(bytes(2 * MIB)))
            shown = await cloud.show(image["id"])
            assert (shown["status"], shown["size"], shown["checksum"]) == ("queued", None, None)
            assert cloud.on_disk() == []
            await _disconnect_during_upload(cloud, image["id"])
            assert (await cloud.show(image["id"]))["status"] == "queued"
            assert cloud.on_disk() == []
            assert (await cloud.upload(image["id"], b"whole")).status == 204

    asyncio.run(scenario())


async def _disconnect_during_upload(cloud: Images, image_id: str) -> None:
    """Upload with a client that disconnects in the middle."""
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


def test_download_stops_when_client_disconnects(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path) as cloud:
            image = await cloud.make()
            await cloud.upload(image["id"], bytes(32 * MIB))
            left, received, sent = asyncio.Event(), [0], [0]

            async def receive() -> object:
                received[0] += 1
                if received[0] == 1:
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


def test_concurrent_uploads_and_deletion_of_image(database_url: str, tmp_path: Path) -> None:
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
            await clean_up_uploads(cloud.db, cloud.files)
            assert (await cloud.show(image["id"]))["status"] == "saving"
            await cloud.ok("DELETE", f"/images/{image['id']}")
            go_on.set()
            assert (await first).status == 410
            assert cloud.on_disk() == []

    asyncio.run(scenario())


def test_cleanup_after_crash(database_url: str, tmp_path: Path) -> None:
    """A killed process leaves a partial file, files of unknown or deleted images, or an image in `saving`."""

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
            await clean_up_uploads(cloud.db, cloud.files)
            assert sorted(await cloud.names({"status": "queued"})) == ["dead", "dead"]
            assert len(cloud.on_disk()) == 1
            assert (await cloud.call("GET", f"/images/{kept['id']}/file")).body == b"kept"

    asyncio.run(scenario())


def test_upload_replaces_upload_of_dead_process(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(database_url, tmp_path) as cloud:
            image = await cloud.make()
            async with cloud.db.transaction() as tx:
                await model.begin_upload(tx, image["id"], "dead", clock.now())
            assert (await cloud.upload(image["id"], b"alive")).status == 204
            assert (await cloud.call("GET", f"/images/{image['id']}/file")).body == b"alive"

    asyncio.run(scenario())


def test_deactivated_image_is_only_for_administrators(database_url: str, tmp_path: Path) -> None:
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


def test_upload_and_download_use_bounded_memory(sqlite_url: str, tmp_path: Path) -> None:
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
            await client.upload(image.id, blocks(), "member")
            received = hashlib.sha512()
            async with client.download(image.id, "member") as chunks:
                async for chunk in chunks:
                    received.update(chunk)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            stored = await model.get(cloud.db, image.id)
            assert stored is not None
            assert (stored.size, stored.hash_value) == (size, received.hexdigest())
            assert peak < 16 * MIB, f"{peak / MIB:.1f} MiB at most were held"

    asyncio.run(scenario())


def test_upload_leaves_the_reserve_of_the_disk_free(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        with small_disk(data, 16):
            async with images(sqlite_url, data, reserved_disk_gb=8 / 1024) as cloud:
                stored, refused, sparse = [await cloud.make() for _ in range(3)]
                assert (await cloud.upload(stored["id"], b"x" * 4 * MIB)).status == 204

                async def endless() -> AsyncIterator[bytes]:
                    while True:
                        yield b"x" * MIB

                answers = [await cloud.upload(refused["id"], content) for content in (endless(), b"x" * 5 * MIB)]
                for answer in answers:
                    assert answer.status == 413
                    assert "not enough disk space" in answer.json()["message"]
                assert (await cloud.show(refused["id"]))["status"] == "queued"
                assert len(cloud.on_disk()) == 1
                assert 11 * MIB < free_bytes(data) <= 12 * MIB
                # Zeros need no space.
                assert (await cloud.upload(sparse["id"], bytes(32 * MIB))).status == 204
                assert (await cloud.upload(refused["id"], b"x" * 3 * MIB)).status == 204
                assert free_bytes(data) >= 8 * MIB

    asyncio.run(scenario())


def test_upload_to_disk_without_reserve_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with images(sqlite_url, tmp_path, reserved_disk_gb=1e9) as cloud:
            image = await cloud.make()
            assert (await cloud.upload(image["id"], b"x")).status == 413
            assert cloud.on_disk() == []

    asyncio.run(scenario())
