"""Volume actions: permissions, allowed statuses and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import fault
from tests.support.route_coverage import proves
from tests.volume.operations.test_content import ended, image, make, snapshot
from tests.volume.operations.worlds import EventRecorder, put_attachment
from tests.volume.support import VolumeCloud, put_type, put_volume, volume_cloud

ACTION = "POST /volume/volumes/{volume_id}/action#"
SERVER = new_id()


async def act(
    c: VolumeCloud, volume_id: str, name: str, body: Any = None, as_: str = "member", **options: Any
) -> ClientResponse:
    return await c.post(f"/volumes/{volume_id}/action", {name: body or {}}, as_=as_, **options)


async def record_events(c: VolumeCloud) -> EventRecorder:
    """Replace the compute client by a recorder."""
    recorder = EventRecorder()
    c.services.compute = recorder  # type: ignore[assignment]
    return recorder


async def recorded(c: VolumeCloud, recorder: EventRecorder) -> list[tuple[str, str, bool]]:
    """The events, when all operations have finished."""
    async with asyncio.timeout(60):
        while await c.db.fetch("SELECT 1 FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)
    return recorder.events


@proves(ACTION + "os-extend")
def test_extend(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, volume_quota__gigabytes=5) as c:
            recorder = await record_events(c)
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
                response = await act(c, volume_id, "os-extend", body, as_, version=version)
                assert response.status == answered, response.body
                shown = await c.item(f"/volumes/{volume_id}")
                assert (shown["size"], shown["status"]) == (1, "in-use")
            assert (await act(c, volume_id, "os-extend", {"new_size": "3"}, version="3.42")).status == 202
            shown = await ended(c, volume_id)
            assert (shown["size"], shown["status"]) == (3, "in-use")
            assert await recorded(c, recorder) == [("volume-extended", SERVER, True)]

    run(scenario())


def test_unsupported_actions_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            for name, body in (("os-extend_volume_completion", {"error": False}), ("os-migrate_volume", {"host": "h"})):
                assert (await act(c, volume_id, name, body)).status == 403
                assert fault(await act(c, volume_id, name, body, "admin"))[:2] == (400, "badRequest")
            assert (await act(c, volume_id, "os-extend_volume_completion", {}, "admin", version="3.70")).status == 404

    run(scenario())


@proves(ACTION + "os-reimage")
def test_reimage_reserved_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            recorder = await record_events(c)
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
                response = await act(c, volume_id, "os-reimage", body, version=version)
                assert response.status == answered, response.body
            for which, after, ok in ((wrong, "error", False), (image_id, "reserved", True)):
                response = await act(c, volume_id, "os-reimage", {"image_id": which, "reimage_reserved": True})
                assert response.status == 202, response.body
                assert (await ended(c, volume_id))["status"] == after
                assert (await recorded(c, recorder))[-1] == ("volume-reimaged", SERVER, ok)
            await put_attachment(c.db, volume_id, SERVER, "attaching")
            response = await act(c, volume_id, "os-reimage", {"image_id": image_id, "reimage_reserved": True})
            assert "connected to a host" in fault(response)[2]

    run(scenario())


@proves(ACTION + "os-volume_upload_image")
def test_upload_creates_image_at_once(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            known = orjson.dumps({"image_id": new_id(), "min_ram": "64", "min_disk": "x", "status": "?", "os": "linux"})
            volume_id = await put_volume(c.db, image_metadata=known.decode())
            requested: dict[str, Any] = {"image_name": "u", "visibility": "public"}
            assert (await act(c, volume_id, "os-volume_upload_image", requested)).status == 403
            assert (await act(c, volume_id, "os-volume_upload_image", requested, version="3.0")).status == 400
            requested = {"image_name": "u", "visibility": "shared", "protected": True, "disk_format": "qcow2"}
            response = await act(c, volume_id, "os-volume_upload_image", requested)
            assert response.status == 202, response.body
            shown = response.json()["os-volume_upload_image"]
            assert (shown["status"], shown["volume_type"]["name"]) == ("uploading", "__DEFAULT__")
            assert (shown["visibility"], shown["protected"]) == ("shared", True)
            created = await c.services.image.show(shown["image_id"], "member")
            assert created is not None
            assert (created.status, created.name, created.protected) == ("queued", "u", True)
            assert (created.min_ram, created.min_disk, created.disk_format) == (64, 0, "qcow2")
            assert created.properties["os"] == "linux"
            assert (await act(c, volume_id, "os-volume_upload_image", {"image_name": "u"})).status == 400
            other = await put_volume(c.db)
            response = await act(c, other, "os-volume_upload_image", {"image_name": "u"}, version="3.0")
            assert "visibility" not in response.json()["os-volume_upload_image"]

    run(scenario())


def test_content_needs_free_disk_space(sqlite_url: str) -> None:
    """Less than the reserve is free on the disk."""

    async def scenario() -> None:
        async with volume_cloud(sqlite_url) as c:
            volume_id = await make(c)
            c.services.config.reserved_disk_gb = 1e9

            async def refused(ident: str) -> None:
                (message,) = (await c.get(f"/messages?resource_uuid={ident}")).json()["messages"]
                assert "there is not enough disk space" in message["user_message"]

            await refused(await make(c, "error"))
            response = await c.post("/snapshots", {"snapshot": {"volume_id": volume_id, "force": True}})
            snapshot_id = response.json()["snapshot"]["id"]
            shown = await c.until(f"/snapshots/{snapshot_id}", lambda one: one["status"] != "creating")
            assert shown["status"] == "error"
            await refused(snapshot_id)
            assert (await act(c, volume_id, "os-extend", {"new_size": 2})).status == 202
            shown = await ended(c, volume_id)
            assert (shown["size"], shown["status"]) == (1, "error_extending")
            await refused(volume_id)
            c.services.config.reserved_disk_gb = 0
            await make(c)

    run(scenario())


@pytest.mark.parametrize("resource", ["image_count_total", "image_size_total"])
def test_upload_needs_quota_for_images(sqlite_url: str, resource: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, **{f"image_quota__{resource}": 0}) as c:
            volume_id = await make(c)
            assert (await act(c, volume_id, "os-volume_upload_image", {"image_name": "u"})).status == 202
            assert (await ended(c, volume_id))["status"] == "available"
            await recorded(c, await record_events(c))
            (message,) = (await c.get(f"/messages?resource_uuid={volume_id}")).json()["messages"]
            assert f"Quota exceeded for {resource}" in message["user_message"]
            assert await c.services.image.list("member") == []

    run(scenario())


@proves(ACTION + "revert")
def test_revert_requires_newest_snapshot(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url) as c:
            volume_id, other = await make(c), await make(c)
            older, newer = await snapshot(c, volume_id), await snapshot(c, volume_id)
            assert "not the latest" in fault(await act(c, volume_id, "revert", {"snapshot_id": older}))[2]
            assert "does not belong to volume" in fault(await act(c, other, "revert", {"snapshot_id": newer}))[2]
            assert (await act(c, volume_id, "revert", {"snapshot_id": new_id()})).status == 404
            assert (await act(c, volume_id, "revert", {"snapshot_id": newer}, version="3.39")).status == 404
            assert (await act(c, volume_id, "revert", {"snapshot_id": newer})).status == 202
            assert (await ended(c, volume_id))["status"] == "available"

    run(scenario())


@proves(ACTION + "os-retype")
def test_retype(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            shared = new_id()
            await put_type(c.db, shared, "shared", orjson.dumps({"multiattach": "<is> True"}).decode())
            await put_type(c.db, new_id(), "elsewhere", orjson.dumps({"volume_backend_name": "lvm"}).decode())
            await put_type(c.db, new_id(), "quick", orjson.dumps({"capabilities:QoS_support": "<is> True"}).decode())
            refused = [("__DEFAULT__", 400), ("elsewhere", 400), ("quick", 400), ("none", 404)]
            for name, answered in (*refused, (shared, 202)):
                response = await act(c, volume_id, "os-retype", {"new_type": name, "migration_policy": "never"})
                assert response.status == answered, response.body
            shown = await c.item(f"/volumes/{volume_id}")
            assert (shown["volume_type"], shown["multiattach"], shown["status"]) == ("shared", True, "available")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'in-use'")
            assert (await act(c, volume_id, "os-retype", {"new_type": "__DEFAULT__"})).status == 400

    run(scenario())


@proves(ACTION + "os-reset_status", ACTION + "os-force_delete")
def test_reset_status_and_force_delete(database_url: str) -> None:
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
                response = await act(c, volume_id, "os-reset_status", body, as_)
                assert response.status == answered, response.body
            assert (await c.item(f"/volumes/{volume_id}"))["status"] == "creating"
            assert (await act(c, volume_id, "os-force_delete")).status == 403
            assert (await act(c, volume_id, "os-force_delete", as_="admin")).status == 202
            await c.gone(f"/volumes/{volume_id}")

    run(scenario())


@proves(ACTION + "os-set_bootable", ACTION + "os-update_readonly_flag")
def test_bootable_and_readonly_flags(database_url: str) -> None:
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
def test_image_metadata_actions(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            response = await act(c, volume_id, "os-set_image_metadata", {"metadata": {"a": "1", "b": "2"}})
            assert (response.status, response.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
            for name, answered in (("a", 200), ("a", 404)):
                assert (await act(c, volume_id, "os-unset_image_metadata", {"key": name})).status == answered
            response = await act(c, volume_id, "os-show_image_metadata", as_="reader")
            assert response.json() == {"metadata": {"b": "2"}}
            assert (await c.item(f"/volumes/{volume_id}"))["volume_image_metadata"] == {"b": "2"}

    run(scenario())


@proves(ACTION + "os-initialize_connection", ACTION + "os-terminate_connection")
@pytest.mark.parametrize(("readonly", "mode"), [(False, "rw"), (True, "ro")])
def test_initialize_connection(sqlite_url: str, readonly: bool, mode: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, data_id="d", readonly=readonly)
            refused = await act(c, volume_id, "os-initialize_connection", {"connector": {"host": "h"}})
            assert refused.status == 403
            response = await act(c, volume_id, "os-initialize_connection", {"connector": {"host": "h"}}, as_="kilonova")
            way = response.json()["connection_info"]
            assert (response.status, way["driver_volume_type"], way["data"]["access_mode"]) == (
                200,
                "kilonova_file",
                mode,
            )
            assert way["data"]["device_path"] == str(c.services.config.data_dir / "volumes" / f"{volume_id}.d")
            assert (await act(c, volume_id, "os-terminate_connection", {"connector": {"host": "h"}})).status == 202

    run(scenario())
