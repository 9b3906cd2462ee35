"""User messages: written by failed operations, listed, filtered and expired."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import clock
from kilonova.compute.periodic import tasks
from kilonova.ids import new_id
from kilonova.operations import Failed
from kilonova.store import Database
from kilonova.store.insert import insert_row
from kilonova.volume.files import VolumeFiles
from kilonova.volume.messages import model
from kilonova.volume.periodic import expire_messages
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.support.route_coverage import proves
from tests.volume.operations.test_content import act, all_ended, image, make, path_of, play, snapshot
from tests.volume.operations.worlds import IMAGE
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

FIELDS = {
    *("id", "event_id", "message_level", "resource_type", "resource_uuid", "user_message", "request_id"),
    *("created_at", "guaranteed_until", "links"),
}
MESSAGE = {
    "event_id": "VOLUME_VOLUME_101_004",
    "level": "ERROR",
    "resource_type": "VOLUME",
    "text": "create volume: no.",
    "request_id": "req-1",
    "created_at": 1.0,
    "expires_at": 2.0,
}


async def put_message(db: Database, **values: Any) -> str:
    row = {"id": new_id(), "project_id": DEMO, "resource_id": new_id(), **MESSAGE, **values}
    async with db.transaction() as tx:
        await insert_row(tx, "volume_messages", row)
    return str(row["id"])


async def messages(c: VolumeCloud, query: str = "", **options: Any) -> list[dict[str, Any]]:
    response = await c.get(f"/messages{query}", **options)
    assert response.status == 200, response.body
    found: list[dict[str, Any]] = response.json()["messages"]
    return found


async def message_about(c: VolumeCloud, ident: str) -> dict[str, Any]:
    """The only message about the resource."""
    (found,) = await messages(c, f"?resource_uuid={ident}")
    return found


@proves("GET /volume/messages", "GET /volume/messages/{message_id}", "DELETE /volume/messages/{message_id}")
def test_list_show_and_delete_message(database_url: str) -> None:
    async def scene(c: VolumeCloud) -> None:
        volume_id = await make(c, "error", imageRef=await image(c, IMAGE, disk_format="qcow2"))
        (listed,) = await messages(c)
        assert set(listed) == FIELDS
        assert listed["user_message"] == (
            "create volume: The content could not be written: the content is not qcow2, as its disk format says."
        )
        assert (listed["resource_type"], listed["resource_uuid"]) == ("VOLUME", volume_id)
        assert (listed["message_level"], listed["event_id"]) == ("ERROR", "VOLUME_VOLUME_101_004")
        assert listed["request_id"].startswith("req-")
        kept = clock.parse(listed["guaranteed_until"]) - clock.parse(listed["created_at"])
        assert kept == pytest.approx(30 * 86400)
        path = f"/messages/{listed['id']}"
        assert listed["links"][0]["href"].endswith(path)
        assert await c.item(path) == listed
        # The message outlives the volume.
        await c.delete(f"/volumes/{volume_id}")
        await c.gone(f"/volumes/{volume_id}")
        assert (await c.delete(path)).status == 204
        assert fault(await c.get(path)) == (404, "itemNotFound", f"Message {listed['id']} could not be found.")
        assert (await c.delete(path)).status == 404
        assert await messages(c) == []

    play(database_url, scene)


def test_messages_of_other_projects_are_hidden(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            own, others = await put_message(c.db), await put_message(c.db, project_id=OTHER)
            assert [each["id"] for each in await messages(c)] == [own]
            assert [each["id"] for each in await messages(c, "?all_tenants=1")] == [own]
            assert [each["id"] for each in await messages(c, f"?project_id={OTHER}", version="3.30")] == [own]
            assert (await c.get(f"/messages?project_id={OTHER}")).status == 400
            for method in ("GET", "DELETE"):
                assert (await c.request(method, f"/messages/{others}")).status == 404
            assert (await c.get(f"/messages/{own}", as_="reader")).status == 200
            assert (await c.delete(f"/messages/{own}", as_="reader")).status == 403
            # Administrators list the messages of their own project, of all projects, or of one project.
            assert await messages(c, as_="admin") == []
            assert len(await messages(c, "?all_tenants=1", as_="admin")) == 2
            assert [each["id"] for each in await messages(c, f"?project_id={OTHER}", as_="admin")] == [others]
            assert (await c.delete(f"/messages/{others}", as_="admin")).status == 204

    run(scenario())


def test_messages_are_filtered_sorted_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            ids = [await put_message(c.db, created_at=float(at), request_id=f"req-{at}") for at in range(3)]
            wanted = await c.item(f"/messages/{ids[1]}")
            for key in ("resource_uuid", "request_id"):
                assert await messages(c, f"?{key}={wanted[key]}") == [wanted]
            for key in ("resource_type", "event_id", "message_level"):
                assert len(await messages(c, f"?{key}={wanted[key]}")) == 3
                assert await messages(c, f"?{key}=x") == []
            assert [each["id"] for each in await messages(c)] == ids[::-1]
            assert [each["id"] for each in await messages(c, "?sort=created_at:asc")] == ids
            page = (await c.get("/messages?limit=2&sort_key=request_id&sort_dir=asc")).json()
            assert [each["id"] for each in page["messages"]] == ids[:2]
            assert f"marker={ids[1]}" in page["messages_links"][0]["href"]
            assert [each["id"] for each in await messages(c, f"?marker={ids[1]}&sort=request_id:asc")] == ids[2:]
            assert (await c.get(f"/messages?marker={new_id()}")).status == 404
            assert (await c.get("/messages?sort=text")).status == 400
            assert (await c.get("/messages?colour=blue")).status == 400
            # Before 3.5 the query is ignored.
            old = await messages(c, f"?limit=1&request_id=req-1&marker={new_id()}", version="3.4")
            assert [each["id"] for each in old] == ids[::-1]
            assert (await c.get("/messages", version="3.2")).status == 404
            assert (await c.get(f"/messages/{ids[0]}", version="3.2")).status == 404

    run(scenario())


def test_expired_messages_are_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await put_message(c.db)
            kept = await put_message(c.db, expires_at=clock.now() + 60)
            await expire_messages.run(c.services)
            assert [each["id"] for each in await messages(c)] == [kept]

    assert expire_messages in tasks()
    run(scenario())


@pytest.mark.parametrize(("days", "seconds"), [(0.5, 43200), (-1, 36500 * 86400)])
def test_lifetime_of_messages_is_configured(sqlite_url: str, days: float, seconds: float) -> None:
    async def scene(c: VolumeCloud) -> None:
        message = await message_about(c, await make(c, "error", imageRef=await image(c, IMAGE, disk_format="qcow2")))
        assert clock.parse(message["guaranteed_until"]) - clock.parse(message["created_at"]) == pytest.approx(seconds)

    play(sqlite_url, scene, retention__message_days=days)


def test_failed_operations_write_messages(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any) -> None:
        raise RuntimeError("/secret/place")

    async def scene(c: VolumeCloud) -> None:
        volume_id = await make(c)
        kept = await snapshot(c, volume_id)
        (await path_of(c, volume_id)).unlink()
        created = await c.post("/snapshots", {"snapshot": {"volume_id": volume_id}})
        failed = created.json()["snapshot"]["id"]
        await c.until(f"/snapshots/{failed}", lambda one: one["status"] == "error")
        message = await message_about(c, failed)
        assert (message["resource_type"], message["event_id"]) == ("VOLUME_SNAPSHOT", "VOLUME_VOLUME_SNAPSHOT_107_004")
        assert message["user_message"] == "create snapshot: The content of the volume is missing."
        await c.delete(f"/snapshots/{failed}")
        await c.gone(f"/snapshots/{failed}")

        for action, words, keys in (
            ("os-volume_upload_image", "copy volume to image: ", {"image_name": "u"}),
            ("os-extend", "extend volume: ", {"new_size": 2}),
        ):
            await act(c, volume_id, action, **keys)
            await all_ended(c)
            assert (await messages(c))[0]["user_message"] == f"{words}The content of the volume is missing."
            await c.post(f"/volumes/{volume_id}/action", {"os-reset_status": {"status": "available"}}, as_="admin")
        await act(c, volume_id, "os-reimage", image_id=await image(c, IMAGE, disk_format="qcow2"))
        assert "is not qcow2" in (await messages(c))[0]["user_message"]
        await c.post(f"/volumes/{volume_id}/action", {"os-reset_status": {"status": "available"}}, as_="admin")
        next(VolumeFiles.of(c.services.config).root.rglob(f"{kept}.*")).unlink()
        await act(c, volume_id, "revert", snapshot_id=kept)
        assert (await messages(c))[0]["user_message"].startswith("revert volume to snapshot: ")

        with monkeypatch.context() as patched:
            patched.setattr(VolumeFiles, "remove", broken)
            await c.delete(f"/snapshots/{kept}")
            await c.until(f"/snapshots/{kept}", lambda one: one["status"] == "error_deleting")
            assert (await message_about(c, kept))["event_id"] == "VOLUME_VOLUME_SNAPSHOT_108_001"
            other = await put_volume(c.db)
            await c.delete(f"/volumes/{other}")
            await c.until(f"/volumes/{other}", lambda one: one["status"] == "error_deleting")
            message = await message_about(c, other)
        assert message["user_message"] == "delete volume: Unexpected RuntimeError in step 'remove content'"
        # Successful operations write no message.
        fine = await make(c)
        assert await messages(c, f"?resource_uuid={fine}") == []

    play(database_url, scene)


def test_message_belongs_to_owner_of_volume(sqlite_url: str) -> None:
    async def scene(c: VolumeCloud) -> None:
        volume_id = await put_volume(c.db, project_id=OTHER)
        requested = {"os-extend": {"new_size": 2}}
        assert (await c.post(f"/volumes/{volume_id}/action", requested, as_="admin")).status == 202
        await all_ended(c)
        assert await messages(c, as_="admin") == []
        assert [each["resource_uuid"] for each in await messages(c, as_="other")] == [volume_id]

    play(sqlite_url, scene)


@pytest.mark.parametrize(
    "text, message",
    [
        ("cannot open '/data/volumes/a.b' (/etc/x): no", "cannot open '…' (…): no"),
        ("sent 1/2 of http://host/path and/or volume-1", "sent 1/2 of http://host/path and/or volume-1"),
    ],
)
def test_message_text_has_no_paths(text: str, message: str) -> None:
    assert model.user_text(Failed(text)) == message


@pytest.mark.parametrize(
    "specs, met",
    [
        ({"storage_protocol": "iSCSI"}, False),
        ({"capabilities:vendor_name": "Nobody"}, False),
        ({"replication_enabled": "<is> True"}, False),
        ({"storage_protocol": "<or> iSCSI <or> kilonova_file", "vendor_name": "Kilonova"}, True),
        ({"multiattach": "<is> True", "replication_enabled": "<is> False", "RESKEY:availability_zones": "x"}, True),
    ],
)
def test_unmet_extra_specs_write_message(sqlite_url: str, specs: dict[str, str], met: bool) -> None:
    async def scene(c: VolumeCloud) -> None:
        kind = {"volume_type": {"name": "odd", "extra_specs": specs}}
        assert (await c.post("/types", kind, as_="admin")).status == 200
        volume_id = await make(c, "available" if met else "error", volume_type="odd")
        if not met:
            message = await message_about(c, volume_id)
            assert message["event_id"] == "VOLUME_VOLUME_001_002"
            assert message["user_message"] == (
                "schedule allocate volume: Could not find any available weighted backend: no back end meets the"
                " extra specs of type odd."
            )
            kept = await c.db.fetch_value("SELECT error FROM operations WHERE state = 'failed'")
            assert "unmet extra specs: " in kept, "operators see more"

    play(sqlite_url, scene)
