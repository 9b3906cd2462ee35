"""Volumes: create, show, update and delete; visibility and checks."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.support.route_coverage import proves
from tests.volume.support import TYPE, VolumeCloud, put_snapshot, put_type, put_volume, volume_cloud

LINK = "http://localhost/volume/v3/volumes/"
ENDED = ("available", "error")


async def create(c: VolumeCloud, version: str = "3.71", as_: str = "member", **keys: Any) -> ClientResponse:
    return await c.post("/volumes", {"volume": keys}, version=version, as_=as_)


async def create_ready(c: VolumeCloud, **keys: Any) -> dict[str, Any]:
    """Create a volume and wait until it is ready."""
    response = await create(c, **keys)
    assert response.status == 202, response.body
    return await c.until(f"/volumes/{response.json()['volume']['id']}", lambda volume: volume["status"] in ENDED)


async def put_image(c: VolumeCloud, content: bytes = bytes(1024), **keys: Any) -> str:
    body = {"name": "i", "disk_format": "raw", "container_format": "bare", **keys}
    image = (await c.request("POST", "/images", root="/image/v2", json=body)).json()
    path = f"/images/{image['id']}/file"
    headers = {"Content-Type": "application/octet-stream"}
    response = await c.request("PUT", path, root="/image/v2", content=content, headers=headers)
    assert response.status == 204, response.body
    return str(image["id"])


@proves(
    "POST /volume/volumes",
    "GET /volume/volumes/{volume_id}",
    "PUT /volume/volumes/{volume_id}",
    "DELETE /volume/volumes/{volume_id}",
)
def test_create_show_update_and_delete_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            response = await create(c, size=2, name="data", description="mine", metadata={"a": "b"})
            assert response.status == 202
            shown = response.json()["volume"]
            path = f"/volumes/{shown['id']}"
            assert shown == {
                "id": shown["id"],
                "status": "creating",
                "size": 2,
                "name": "data",
                "description": "mine",
                "metadata": {"a": "b"},
                "availability_zone": "nova",
                "created_at": shown["created_at"],
                "updated_at": None,
                "volume_type": "__DEFAULT__",
                "volume_type_id": TYPE,
                "user_id": "member-id",
                "snapshot_id": None,
                "source_volid": None,
                "bootable": "false",
                "encrypted": False,
                "replication_status": None,
                "consistencygroup_id": None,
                "multiattach": False,
                "attachments": [],
                "migration_status": None,
                "group_id": None,
                "service_uuid": None,
                "shared_targets": False,
                "consumes_quota": True,
                "links": [
                    {"rel": "self", "href": LINK + shown["id"]},
                    {"rel": "bookmark", "href": "http://localhost/volume/volumes/" + shown["id"]},
                ],
            }
            ready = await c.until(path, lambda volume: volume["status"] == "available")
            assert ready["os-vol-tenant-attr:tenant_id"] == DEMO
            assert "os-vol-host-attr:host" not in ready
            assert (await c.item(path, as_="admin"))["os-vol-host-attr:host"] == "kilonova@files#files"

            response = await c.put(path, {"volume": {"name": "", "description": None, "metadata": {"c": "d"}}})
            assert response.status == 200
            changed = response.json()["volume"]
            assert (changed["name"], changed["description"], changed["metadata"]) == ("", None, {"c": "d"})
            response = await c.put(path, {"volume": {"display_name": "old way"}})
            assert (response.json()["volume"]["name"], response.json()["volume"]["metadata"]) == ("old way", {"c": "d"})
            assert (await c.item(path))["name"] == "old way"

            assert (await c.delete(path)).status == 202
            await c.gone(path)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volume_metadata") == 0

    run(scenario())


def test_users_see_only_volumes_of_their_project(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            path = f"/volumes/{await put_volume(c.db)}"
            change = {"volume": {"name": "x"}}
            for as_, seen, changed in (("other", 404, 404), ("reader", 200, 403), ("member", 200, 200)):
                assert (await c.get(path, as_=as_)).status == seen
                assert (await c.put(path, change, as_=as_)).status == changed
                assert (await c.put(path + "/metadata", {"metadata": {}}, as_=as_)).status == changed
            assert (await c.delete(path, as_="reader")).status == 403
            assert fault(await c.delete(path, as_="other"))[2] == f"Volume {path[9:]} could not be found."
            assert (await c.get(path, as_="admin")).status == 200
            assert (await create(c, as_="reader", size=1)).status == 403
            assert (await create(c, as_="system", size=1)).status == 403
            for wrong in ("/volumes/none", f"/volumes/{new_id()}"):
                assert (await c.get(wrong)).status == 404

    run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "Volume size 'None' must be an integer"),
        *(({"size": size}, 400, "size") for size in ("", "0", "-1", "#$%", 0, -1, 1.5, 2**40, True)),
        ({"size": 1, "name": "n" * 256}, 400, "name"),
        ({"size": 1, "name": 5}, 400, "name"),
        ({"size": 1, "metadata": {"": "v"}}, 400, "metadata"),
        ({"size": 1, "metadata": {"k": "v" * 256}}, 400, "metadata"),
        ({"size": 1, "colour": "blue"}, 400, "colour"),
        ({"size": 1, "availability_zone": "mars"}, 400, "Availability zone 'mars' is invalid"),
        ({"size": 1, "multiattach": True}, 400, "multiattach enabled volume type"),
        ({"size": 1, "volume_type": "gold"}, 404, "Volume type with name gold could not be found"),
        ({"size": 1, "snapshot_id": DEMO}, 404, f"Snapshot {DEMO} could not be found"),
        ({"size": 1, "source_volid": DEMO}, 404, f"Volume {DEMO} could not be found"),
        ({"size": 1, "source_volid": "x"}, 400, "source_volid"),
        ({"size": 1, "backup_id": DEMO}, 404, f"Backup {DEMO} could not be found"),
        ({"size": 1, "group_id": DEMO}, 404, f"Group {DEMO} could not be found"),
        ({"size": 1, "imageRef": DEMO}, 400, "Invalid image identifier"),
        ({"size": 1, "imageRef": DEMO, "snapshot_id": DEMO}, 400, "only one of imageRef"),
    ],
    ids=repr,
)
def test_invalid_create_requests_are_refused(body: dict[str, Any], status: int, text: str, sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            response = await create(c, **body)
            assert response.status == status, response.body
            assert text in fault(response)[2]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 0

    run(scenario())


def test_create_volume_from_image(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            await put_type(c.db, new_id(), "fast")
            image_id = await put_image(c, min_disk=2, cinder_img_volume_type="fast")
            response = await create(c, size=1, imageRef=image_id)
            assert fault(response) == (
                400,
                "badRequest",
                "Invalid input received: Volume size 1GB cannot be smaller than the image minDisk size 2GB.",
            )
            assert "must be an integer" in fault(await create(c, imageRef=image_id))[2]
            volume = await create_ready(c, size=2, imageRef=image_id)
            assert (volume["status"], volume["bootable"], volume["volume_type"]) == ("available", "true", "fast")
            assert volume["volume_image_metadata"]["image_id"] == image_id
            listed = (await c.get(f"/volumes?glance_metadata={{'image_id': '{image_id}'}}")).json()["volumes"]
            assert [each["id"] for each in listed] == [volume["id"]]
            assert (await c.get("/volumes?glance_metadata={'image_id': 'x'}")).json()["volumes"] == []

            await c.request("POST", f"/images/{image_id}/actions/deactivate", root="/image/v2", as_="admin")
            assert "is not active" in fault(await create(c, size=2, imageRef=image_id))[2]

    run(scenario())


def test_copy_inherits_size_and_type_of_its_source(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            type_id = new_id()
            await put_type(c.db, type_id, "shared", '{"multiattach": "<is> True"}')
            source = await create_ready(c, size=2, volume_type="shared")
            assert source["multiattach"] is True
            copy = await create_ready(c, source_volid=source["id"])
            assert (copy["size"], copy["source_volid"], copy["status"]) == (2, source["id"], "available")
            assert (copy["volume_type_id"], copy["multiattach"]) == (type_id, True)
            snapshot_id = await put_snapshot(c.db, source["id"], size=2)
            for key, ident in (("source_volid", source["id"]), ("snapshot_id", snapshot_id)):
                response = await create(c, size=1, **{key: ident})
                assert response.status == 400
                assert "cannot be smaller than original" in fault(response)[2]
                assert (await create(c, as_="other", size=2, **{key: ident})).status == 404
            other = await create(c, snapshot_id=snapshot_id, volume_type=TYPE, size=3)
            shown = other.json()["volume"]
            assert (shown["size"], shown["snapshot_id"], shown["multiattach"]) == (3, snapshot_id, False)

            deleting = await put_volume(c.db, status="deleting")
            response = await create(c, source_volid=deleting)
            assert "must be available or in-use to copy, but the current status is: deleting" in fault(response)[2]
            creating = await put_snapshot(c.db, source["id"], status="creating")
            assert "Invalid snapshot" in fault(await create(c, snapshot_id=creating))[2]

    run(scenario())


def test_volume_from_image_of_volume_backed_server_uses_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            snapshot_id = await put_snapshot(c.db, await put_volume(c.db, size=3), size=3)
            device = f'[{{"boot_index": 0, "snapshot_id": "{snapshot_id}", "source_type": "snapshot"}}]'
            image_id = await put_image(c, b"", block_device_mapping=device)
            shown = (await create(c, imageRef=image_id, version="3.46")).json()["volume"]
            assert (shown["snapshot_id"], shown["size"]) == (snapshot_id, 3)
            refused = await create(c, imageRef=image_id, size=3, version="3.45")
            assert (refused.status, "has no data" in fault(refused)[2]) == (400, True)

    run(scenario())


def test_create_beyond_quota_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        flags = {"volume_quota__gigabytes": 3, "volume_quota__per_volume_gigabytes": 2}
        async with volume_cloud(database_url, worker=False, **flags) as c:
            await put_volume(c.db, size=2)
            for size in (2, 3):
                assert fault(await create(c, size=size))[:2] == (413, "overLimit")
            assert (await create(c, size=1)).status == 202
            assert (await create(c, size=2, as_="other")).status == 202

    run(scenario())


def test_delete_refuses_attached_and_copied_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            for status in ("creating", "in-use", "reserved", "deleting", "extending", "awaiting-transfer"):
                path = f"/volumes/{await put_volume(c.db, status=status)}"
                assert f"but the current status is: {status}." in fault(await c.delete(path))[2]
                assert (await c.delete(path + "?force=true")).status == 403
            assert (await c.delete(path + "?force=true", as_="admin", version="3.22")).status == 400
            assert (await c.delete(path + "?force=true", as_="admin", version="3.23")).status == 202
            await c.gone(path)

            copied = await put_volume(c.db)
            await put_volume(c.db, status="creating", source_volume_id=copied)
            assert "is being copied" in fault(await c.delete(f"/volumes/{copied}"))[2]

            attached = await put_volume(c.db, status="error")
            requested = {"volume_uuid": attached, "instance_uuid": new_id()}
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'available' WHERE id = $1", attached)
            assert (await c.post("/attachments", {"attachment": requested}, as_="kilonova")).status == 200
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'error' WHERE id = $1", attached)
            for query in ("", "?force=true"):
                assert "still attached" in fault(await c.delete(f"/volumes/{attached}{query}", as_="admin"))[2]

    run(scenario())


def test_delete_with_cascade_deletes_snapshots(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            volume_id = await put_volume(c.db)
            path = f"/volumes/{volume_id}"
            for status in ("available", "creating"):
                snapshot_id = await put_snapshot(c.db, volume_id, status=status)
            assert "still has 2 dependent snapshots" in fault(await c.delete(path))[2]
            assert "are being created or deleted" in fault(await c.delete(path + "?cascade=true"))[2]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volume_snapshots SET status = 'error' WHERE id = $1", snapshot_id)
            assert (await c.delete(path + "?cascade=true")).status == 202
            copied = await c.post("/volumes", {"volume": {"snapshot_id": snapshot_id}})
            assert copied.status in (400, 404)  # it is deleted too
            await c.gone(path)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volume_snapshots") == 0

    run(scenario())


def test_project_in_path_is_optional(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            shown = await c.item(f"/{DEMO}/volumes/{volume_id}", version="3.0")
            assert shown["links"][0]["href"] == f"http://localhost/volume/v3/{DEMO}/volumes/{volume_id}"
            assert (await c.get(f"/{OTHER}/volumes/{volume_id}")).status == 400

    run(scenario())
