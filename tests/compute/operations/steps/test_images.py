"""Steps for snapshots of servers: repeated steps, inherited properties, protected images, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.operations.create_image import CreateImage
from kilonova.compute.operations.steps import images
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, TransientError
from tests.compute.operations.steps.support import begin_leased
from tests.compute.operations.support import finish_operations
from tests.compute.servers.moves import run_move
from tests.compute.servers.shelved import boot_shelved, guest_disk, list_snapshots
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud, full_cloud


async def begin_create_image(c: FullCloud, name: str = "copy", **metadata: str) -> Operation:
    server_id = (await c.boot_active(networks="none"))["id"]
    return await begin_leased(c, CreateImage, server_id, name=name, metadata=metadata)


async def make(op: Operation) -> str:
    image_id: str = await CreateImage.table().steps[0].action(op)  # type: ignore[union-attr]
    op.results[images.MAKE.name] = image_id
    return image_id


async def protect(c: FullCloud, image_id: str, protected: bool = True) -> None:
    change = [{"op": "replace", "path": "/protected", "value": protected}]
    await c.services.image.patch(image_id, change, "member")


def test_repeated_make_finds_created_image(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_create_image(c, "n" * 300, owner="someone", status="active", colour="red")
            image_id = await make(op)
            assert await make(op) == image_id == images.snapshot_id(op.id)
            (image,) = await list_snapshots(c)
            assert (image["id"], image["status"], image["name"]) == (image_id, "queued", "n" * 255)
            assert (image["owner"], image["colour"]) == (DEMO, "red"), "metadata sets no attributes"
            for _ in range(2):
                await images.drop(op)
                assert await list_snapshots(c, "admin") == []

    run(scenario())


def test_repeated_fill_does_not_call_host_again(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_create_image(c)
            image_id = await make(op)
            assert not await images.is_filled(op, image_id)
            await images.fill(op)
            assert await images.is_filled(op, image_id)

            async def refuse(*args: Any, **options: Any) -> None:
                raise AssertionError("the host is called again")

            monkeypatch.setattr(images, "call", refuse)
            await images.fill(op)

    run(scenario())


def test_fill_accepts_image_that_was_filled_despite_error(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upload of an earlier run ends while the host refuses the repeated command."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            op = await begin_create_image(c)
            image_id = await make(op)

            async def fail(*args: Any, **options: Any) -> None:
                if uploads:
                    await c.services.image.upload(image_id, b"disk", "kilonova")
                raise Failed("The host could not snapshot")

            monkeypatch.setattr(images, "call", fail)
            uploads = False
            with pytest.raises(Failed, match="could not snapshot"):
                await images.fill(op)
            uploads = True
            await images.fill(op)
            assert await images.is_filled(op, image_id)

    run(scenario())


def test_fill_fails_if_image_was_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_create_image(c)
            image_id = await make(op)
            await c.services.image.delete(image_id, "member")
            with pytest.raises(Failed, match=f"image {image_id}, could not be found"):
                await images.fill(op)

    run(scenario())


def test_delete_keeps_protected_image_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_create_image(c)
            image_id = await make(op)
            await protect(c, image_id)
            await images.delete(op, image_id)
            assert [image["id"] for image in await list_snapshots(c)] == [image_id]
            await protect(c, image_id, False)
            for _ in range(2):
                await images.delete(op, image_id)
                assert await list_snapshots(c) == []

    run(scenario())


def test_refusals_of_image_service(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused image fails the operation. A refused deletion is retried."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            op = await begin_create_image(c)

            async def refuse(*args: Any) -> None:
                raise ImageError(status, "the words of Glance")

            for method in ("create", "delete"):
                monkeypatch.setattr(c.services.image, method, refuse)
            status = 413
            with pytest.raises(Failed, match=r"^The image service refused the image: the words of Glance$"):
                await make(op)
            status = 409
            with pytest.raises(TransientError, match=r"does not delete image .*: the words of Glance$"):
                await images.drop(op)

    run(scenario())


def test_shelve_snapshot_is_a_private_image_of_the_project(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await boot_shelved(c, name="web")
            (image,) = await list_snapshots(c)
            expected = {
                "name": "web-shelved",
                "owner": DEMO,
                "visibility": "private",
                "status": "active",
                "disk_format": "raw",
                "container_format": "bare",
                "min_disk": 1,
                "min_ram": 0,
                "image_type": "snapshot",
                "image_location": "snapshot",
                "image_state": "available",
                "instance_uuid": server["id"],
                "user_id": "member-id",
                "base_image_ref": c.image_id,
                "hw_rng_model": "virtio",
            }
            assert {key: image[key] for key in expected} == expected
            assert image["size"] > 0
            assert await list_snapshots(c, "other") == []
            second_server = await c.boot_active(name="copy", imageRef=image["id"])
            assert await guest_disk(c, second_server["id"]), "the snapshot can be booted"

    run(scenario())


def test_shelve_snapshot_inherits_only_valid_image_properties(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            base = {"disk_format": "iso", "container_format": "ova", "min_ram": 64, "min_disk": 1, "os_distro": "x"}
            signed = {"img_signature": "secret", "img_signature_hash_method": "SHA-256", "image_type": "installer"}
            base_image = await c.services.image.create(
                {"name": "base", "visibility": "public", **base, **signed}, "admin"
            )
            await c.services.image.upload(base_image.id, b"disk", "admin")
            await boot_shelved(c, imageRef=base_image.id, flavorRef="2")
            (image,) = [entry for entry in await list_snapshots(c) if entry["id"] != base_image.id]
            shown = {key: image.get(key) for key in (*base, *signed, "base_image_ref")}
            assert shown == {
                "disk_format": "raw",
                "container_format": "bare",
                "min_ram": 64,
                "min_disk": 20,
                "os_distro": "x",
                "img_signature": None,
                "img_signature_hash_method": None,
                "image_type": "snapshot",
                "base_image_ref": base_image.id,
            }

    run(scenario())


def test_unshelve_keeps_a_protected_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await boot_shelved(c))["id"]
            (image,) = await list_snapshots(c)
            change = [{"op": "replace", "path": "/protected", "value": True}]
            await c.services.image.patch(image["id"], change, "member")
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"
            await finish_operations(c)
            assert len(await list_snapshots(c)) == 1

    run(scenario())
