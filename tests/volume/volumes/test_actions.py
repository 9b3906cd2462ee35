"""Actions on volumes: who may do what, in which status, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.http.client import Response
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.volume.content.test_content import ended, image, make, snapshot
from tests.volume.operations.worlds import Told, put_attachment
from tests.volume.support import VolumeCloud, put_type, put_volume, volume_cloud

ACTION = "POST /volume/volumes/{volume_id}/action#"
SERVER = new_id()


async def act(
    c: VolumeCloud, volume_id: str, name: str, body: Any = None, as_: str = "member", **options: Any
) -> Response:
    return await c.post(f"/volumes/{volume_id}/action", {name: body or {}}, as_=as_, **options)


async def told(c: VolumeCloud) -> Told:
    """Compute that only listens, in place of none."""
    listening = Told()
    c.services.compute = listening  # type: ignore[assignment]
    return listening


async def heard(c: VolumeCloud, listening: Told) -> list[tuple[str, str, bool]]:
    """What compute was told, once all is told."""

    async with asyncio.timeout(60):
        while await c.db.fetch("SELECT 1 FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)
    return listening.events


@proves(ACTION + "os-extend")
def test_extending(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, volume_quota__gigabytes=5) as c:
            listening = await told(c)
            volume_id = await make(c)
            await put_attachment(c.db, volume_id, SERVER, "attached")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'in-use'")
            for body, version, as_, answered in (
                ({"new_size": 1}, "3.42", "member", 400),
                ({"new_size": "many"}, "3.42", "member", 400),
                ({"new_size": 3}, "3.41", "member", 400),
                ({"new_size": 6}, "3.42", "member", 413),
                ({"new_size": 3}, "3.42", "reader", 403),
                ({"new_size": 3}, "3.42", "other", 404),
            ):
                answer = await act(c, volume_id, "os-extend", body, as_, version=version)
                assert answer.status == answered, answer.body
                shown = await c.item(f"/volumes/{volume_id}")
                assert (shown["size"], shown["status"]) == (1, "in-use")
            assert (await act(c, volume_id, "os-extend", {"new_size": "3"}, version="3.42")).status == 202
            shown = await ended(c, volume_id)
            assert (shown["size"], shown["status"]) == (3, "in-use")
            assert await heard(c, listening) == [("volume-extended", SERVER, True)]

    run(scenario())


def test_what_is_not_offered_is_said(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            for name, body in (("os-extend_volume_completion", {"error": False}), ("os-migrate_volume", {"host": "h"})):
                assert (await act(c, volume_id, name, body)).status == 403
                assert fault(await act(c, volume_id, name, body, "admin"))[:2] == (400, "badRequest")
            assert (await act(c, volume_id, "os-extend_volume_completion", {}, "admin", version="3.70")).status == 404

    run(scenario())


@proves(ACTION + "os-reimage")
def test_reimaging_a_reserved_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            listening = await told(c)
            volume_id = await make(c)
            await put_attachment(c.db, volume_id, SERVER, "reserved")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'reserved'")
            image_id = await image(c, b"content")
            large = await image(c, b"content", min_disk=2)
            wrong = await image(c, b"content", disk_format="qcow2")
            for body, version, answered in (
                ({"image_id": image_id}, "3.68", 400),
                ({"image_id": image_id, "reimage_reserved": True}, "3.67", 404),
                ({"image_id": new_id(), "reimage_reserved": True}, "3.68", 400),
                ({"image_id": large, "reimage_reserved": True}, "3.68", 400),
            ):
                answer = await act(c, volume_id, "os-reimage", body, version=version)
                assert answer.status == answered, answer.body
            for which, after, ok in ((wrong, "error", False), (image_id, "reserved", True)):
                answer = await act(c, volume_id, "os-reimage", {"image_id": which, "reimage_reserved": True})
                assert answer.status == 202, answer.body
                assert (await ended(c, volume_id))["status"] == after
                assert (await heard(c, listening))[-1] == ("volume-reimaged", SERVER, ok)
            await put_attachment(c.db, volume_id, SERVER, "attaching")
            answer = await act(c, volume_id, "os-reimage", {"image_id": image_id, "reimage_reserved": True})
            assert "connected to a host" in fault(answer)[2]

    run(scenario())


@proves(ACTION + "os-volume_upload_image")
def test_an_uploaded_image_is_there_at_once(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            known = orjson.dumps({"image_id": new_id(), "min_ram": "64", "min_disk": "x", "status": "?", "os": "linux"})
            volume_id = await put_volume(c.db, image_metadata=known.decode())
            asked: dict[str, Any] = {"image_name": "u", "visibility": "public"}
            assert (await act(c, volume_id, "os-volume_upload_image", asked)).status == 403
            assert (await act(c, volume_id, "os-volume_upload_image", asked, version="3.0")).status == 400
            asked = {"image_name": "u", "visibility": "shared", "protected": True, "disk_format": "qcow2"}
            answer = await act(c, volume_id, "os-volume_upload_image", asked)
            assert answer.status == 202, answer.body
            shown = answer.json()["os-volume_upload_image"]
            assert (shown["status"], shown["volume_type"]["name"]) == ("uploading", "__DEFAULT__")
            assert (shown["visibility"], shown["protected"]) == ("shared", True)
            made = await c.services.image.show(shown["image_id"], "member")
            assert made is not None
            facts = ("status", "name", "protected", "min_ram", "min_disk", "os", "disk_format")
            assert [made[fact] for fact in facts] == ["queued", "u", True, 64, 0, "linux", "qcow2"]
            assert (await act(c, volume_id, "os-volume_upload_image", {"image_name": "u"})).status == 400
            other = await put_volume(c.db)
            answer = await act(c, other, "os-volume_upload_image", {"image_name": "u"}, version="3.0")
            assert "visibility" not in answer.json()["os-volume_upload_image"]

    run(scenario())


@proves(ACTION + "revert")
def test_only_the_newest_snapshot_can_be_reverted_to(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url) as c:
            volume_id, other = await make(c), await make(c)
            older, newer = await snapshot(c, volume_id), await snapshot(c, volume_id)
            assert "not the latest" in fault(await act(c, volume_id, "revert", {"snapshot_id": older}))[2]
            assert "is not of volume" in fault(await act(c, other, "revert", {"snapshot_id": newer}))[2]
            assert (await act(c, volume_id, "revert", {"snapshot_id": new_id()})).status == 404
            assert (await act(c, volume_id, "revert", {"snapshot_id": newer}, version="3.39")).status == 404
            assert (await act(c, volume_id, "revert", {"snapshot_id": newer})).status == 202
            assert (await ended(c, volume_id))["status"] == "available"

    run(scenario())


@proves(ACTION + "os-retype")
def test_retyping(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            shared = new_id()
            await put_type(c.db, shared, "shared", orjson.dumps({"multiattach": "<is> True"}).decode())
            await put_type(c.db, new_id(), "elsewhere", orjson.dumps({"volume_backend_name": "lvm"}).decode())
            await put_type(c.db, new_id(), "quick", orjson.dumps({"capabilities:QoS_support": "<is> True"}).decode())
            refused = [("__DEFAULT__", 400), ("elsewhere", 400), ("quick", 400), ("none", 404)]
            for name, answered in (*refused, (shared, 202)):
                answer = await act(c, volume_id, "os-retype", {"new_type": name, "migration_policy": "never"})
                assert answer.status == answered, answer.body
            shown = await c.item(f"/volumes/{volume_id}")
            assert (shown["volume_type"], shown["multiattach"], shown["status"]) == ("shared", True, "available")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'in-use'")
            assert (await act(c, volume_id, "os-retype", {"new_type": "__DEFAULT__"})).status == 400

    run(scenario())


@proves(ACTION + "os-reset_status", ACTION + "os-force_delete")
def test_an_administrator_sets_the_status_and_deletes_in_any(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            volume_id = await make(c)
            for body, as_, answered in (
                ({"status": "error"}, "member", 403),
                ({"status": "curious"}, "admin", 400),
                ({}, "admin", 400),
                ({"attach_status": "attached"}, "admin", 400),
                ({"status": "creating"}, "admin", 202),
            ):
                answer = await act(c, volume_id, "os-reset_status", body, as_)
                assert answer.status == answered, answer.body
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "creating"
            assert (await act(c, volume_id, "os-force_delete")).status == 403
            assert (await act(c, volume_id, "os-force_delete", as_="admin")).status == 202
            await c.gone(f"/volumes/{volume_id}")

    run(scenario())


@proves(ACTION + "os-set_bootable", ACTION + "os-update_readonly_flag")
def test_flags(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            assert (await act(c, volume_id, "os-set_bootable", {"bootable": "true"})).status == 200
            assert (await act(c, volume_id, "os-set_bootable", {"bootable": "perhaps"})).status == 400
            assert (await act(c, volume_id, "os-update_readonly_flag", {"readonly": True})).status == 202
            shown = await c.item(f"/volumes/{volume_id}")
            assert (shown["bootable"], shown["metadata"]) == ("true", {"readonly": "True"})
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'in-use'")
            assert (await act(c, volume_id, "os-update_readonly_flag", {"readonly": False})).status == 400

    run(scenario())


@proves(ACTION + "os-set_image_metadata", ACTION + "os-unset_image_metadata", ACTION + "os-show_image_metadata")
def test_what_is_known_of_the_image(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            answer = await act(c, volume_id, "os-set_image_metadata", {"metadata": {"a": "1", "b": "2"}})
            assert (answer.status, answer.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
            for name, answered in (("a", 200), ("a", 404)):
                assert (await act(c, volume_id, "os-unset_image_metadata", {"key": name})).status == answered
            answer = await act(c, volume_id, "os-show_image_metadata", as_="reader")
            assert answer.json() == {"metadata": {"b": "2"}}
            assert (await c.item(f"/volumes/{volume_id}"))["volume_image_metadata"] == {"b": "2"}

    run(scenario())


@proves(ACTION + "os-initialize_connection", ACTION + "os-terminate_connection")
@pytest.mark.parametrize(("readonly", "mode"), [(False, "rw"), (True, "ro")])
def test_the_way_to_a_volume(sqlite_url: str, readonly: bool, mode: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, data_id="d", readonly=readonly)
            answer = await act(c, volume_id, "os-initialize_connection", {"connector": {"host": "h"}})
            way = answer.json()["connection_info"]
            assert (answer.status, way["driver_volume_type"], way["data"]["access_mode"]) == (
                200,
                "kilonova_file",
                mode,
            )
            assert way["data"]["device_path"] == str(c.services.config.data_dir / "volumes" / f"{volume_id}.d")
            assert (await act(c, volume_id, "os-terminate_connection", {"connector": {"host": "h"}})).status == 202

    run(scenario())
