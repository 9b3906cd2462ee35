"""Attachments: lifecycle, exclusive use, visibility and microversions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, fault
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

CONNECTOR = {"host": "host1", "platform": "x86_64", "mountpoint": "/dev/vdb"}
SERVER, OTHER_SERVER = new_id(), new_id()


async def attach(
    c: VolumeCloud, volume_id: str, server_id: str | None = SERVER, *, as_: str = "kilonova", **keys: Any
) -> ClientResponse:
    requested = {"volume_uuid": volume_id, "instance_uuid": server_id, **keys}
    return await c.post("/attachments", {"attachment": requested}, as_=as_)


async def attached(c: VolumeCloud, volume_id: str, server_id: str | None = SERVER, **keys: Any) -> dict[str, Any]:
    response = await attach(c, volume_id, server_id, **keys)
    assert response.status == 200, response.body
    created: dict[str, Any] = response.json()["attachment"]
    return created


async def status(c: VolumeCloud, volume_id: str) -> str:
    found: str = await c.db.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id)
    return found


async def complete(c: VolumeCloud, attachment_id: str, version: str = "3.44") -> ClientResponse:
    return await c.post(f"/attachments/{attachment_id}/action", {"os-complete": {}}, version=version)


def test_attachment_lifecycle(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            data_id = new_id()
            volume_id = await put_volume(c.db, size=7, data_id=data_id)
            created = await attached(c, volume_id)
            path = f"/attachments/{created['id']}"
            assert created == {
                "id": created["id"],
                "volume_id": volume_id,
                "instance": SERVER,
                "status": "reserved",
                "attach_mode": "rw",
                "attached_at": None,
                "detached_at": None,
                "connection_info": {},
            }
            assert await status(c, volume_id) == "reserved"

            response = await c.put(path, {"attachment": {"connector": CONNECTOR}}, as_="kilonova")
            assert response.status == 200, response.body
            connected = response.json()["attachment"]
            way = connected["connection_info"]
            assert connected["status"] == "attaching"
            assert way["device_path"] == str(c.services.config.data_dir / "volumes" / f"{volume_id}.{data_id}")
            assert (way["driver_volume_type"], way["format"], way["access_mode"]) == ("kilonova_file", "raw", "rw")
            assert (way["size"], way["volume_id"], way["attachment_id"]) == (7, volume_id, created["id"])
            assert await status(c, volume_id) == "attaching"

            assert (await complete(c, created["id"])).status == 204
            assert (await complete(c, created["id"])).status == 204
            shown = await c.item(path, as_="kilonova")
            assert (shown["status"], shown["connection_info"]) == ("attached", way)
            assert (await c.item(path, as_="member")) == {**shown, "connection_info": {}}
            assert shown["attached_at"] is not None
            assert await status(c, volume_id) == "in-use"

            response = await c.delete(path)
            assert (response.status, response.json()) == (200, {"attachments": []})
            assert await status(c, volume_id) == "available"
            assert fault(await c.get(path))[0] == 404

    run(scenario())


def test_create_with_connector_sets_attaching(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            created = await attached(c, volume_id, connector={**CONNECTOR, "mode": "ro"})
            assert (created["status"], created["attach_mode"]) == ("attaching", "ro")
            assert created["connection_info"]["access_mode"] == "ro"
            assert await status(c, volume_id) == "attaching"
            assert (await complete(c, created["id"])).status == 204
            row = await c.db.fetch_one("SELECT host, mountpoint FROM volume_attachments")
            assert row == {"host": "host1", "mountpoint": "/dev/vdb"}

    run(scenario())


def test_one_of_concurrent_servers_gets_the_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            responses = await asyncio.gather(*(attach(c, volume_id, new_id()) for _ in range(8)))
            assert sorted(response.status for response in responses) == [200] + 7 * [400]
            refused = next(fault(response) for response in responses if response.status == 400)
            assert refused[1] == "badRequest"
            assert volume_id in refused[2]
            assert "current status is reserved" in refused[2]

    run(scenario())


def test_server_may_have_two_attachments_and_others_none(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            old = await attached(c, volume_id, connector=CONNECTOR)
            await complete(c, old["id"])
            new = await attached(c, volume_id, connector={"host": "host2"})
            assert await status(c, volume_id) == "in-use"
            assert (await attach(c, volume_id, OTHER_SERVER)).status == 400
            assert (await attach(c, volume_id, None)).status == 400
            left = (await c.delete(f"/attachments/{old['id']}")).json()["attachments"]
            assert left == [{"id": new["id"], "volume_id": volume_id, "instance": SERVER, "status": "attaching"}]
            assert await status(c, volume_id) == "attaching"

    run(scenario())


@pytest.mark.parametrize("said", ["available", "attaching"])
def test_attached_volume_is_exclusive_in_any_status(database_url: str, said: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            path = f"/volumes/{volume_id}/action"
            await attached(c, volume_id, connector=CONNECTOR)
            assert (await c.post(path, {"os-reset_status": {"status": said}}, as_="admin")).status == 202
            assert (await attach(c, volume_id, OTHER_SERVER)).status == 400
            old_way = {"instance_uuid": OTHER_SERVER, "mountpoint": "/dev/vdb"}
            assert (await c.post(path, {"os-attach": old_way}, as_="kilonova")).status == 400
            assert (await c.post("/volume-transfers", {"transfer": {"volume_id": volume_id}})).status == 400
            assert await status(c, volume_id) == said
            await c.post(path, {"os-unreserve": {}})
            assert (await attach(c, volume_id, OTHER_SERVER)).status == 400
            assert (await attach(c, volume_id, SERVER)).status == 200
            assert await status(c, volume_id) == "attaching"

    run(scenario())


def test_multiattach_volume_has_several_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db, multiattach=True)
            first = await attached(c, volume_id, connector=CONNECTOR)
            await complete(c, first["id"])
            second = await attached(c, volume_id, OTHER_SERVER, mode="ro", connector=CONNECTOR)
            assert second["attach_mode"] == "ro"
            assert second["connection_info"]["multiattach"] is True
            await c.delete(f"/attachments/{second['id']}")
            assert await status(c, volume_id) == "in-use"

    run(scenario())


def test_read_only_volume_is_attached_read_only(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db, readonly=True)
            assert fault(await attach(c, volume_id, mode="rw"))[0] == 400
            created = await attached(c, volume_id)
            connected = {"attachment": {"connector": CONNECTOR}}
            response = await c.put(f"/attachments/{created['id']}", connected, as_="kilonova")
            assert response.json()["attachment"]["connection_info"]["access_mode"] == "ro"

    run(scenario())


@pytest.mark.parametrize("wrong", ["creating", "error", "deleting", "downloading", "awaiting-transfer"])
def test_attach_refuses_other_statuses(sqlite_url: str, wrong: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, status=wrong)
            assert fault(await attach(c, volume_id))[:2] == (400, "badRequest")
            assert await status(c, volume_id) == wrong

    run(scenario())


def test_attachments_do_not_change_status_of_running_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            created = await attached(c, volume_id)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'downloading' WHERE id = $1", volume_id)
            connected = await c.put(f"/attachments/{created['id']}", {"attachment": {"connector": CONNECTOR}})
            assert fault(connected)[:2] == (400, "badRequest")
            assert (await c.delete(f"/attachments/{created['id']}")).status == 200
            assert await status(c, volume_id) == "downloading"

    run(scenario())


def test_complete_without_connector_sets_in_use(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            reserved = await attached(c, volume_id)
            assert (await complete(c, reserved["id"])).status == 204
            assert await status(c, volume_id) == "in-use"

    run(scenario())


def test_completed_attachment_can_be_connected(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            created = await attached(c, volume_id)
            assert (await complete(c, created["id"])).status == 204
            assert await status(c, volume_id) == "in-use"
            response = await c.put(f"/attachments/{created['id']}", {"attachment": {"connector": CONNECTOR}})
            assert response.json()["attachment"]["status"] == "attaching"
            assert (await complete(c, created["id"])).status == 204
            assert await status(c, volume_id) == "in-use"

    run(scenario())


def test_volume_without_content_cannot_be_connected(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, data_id=None)
            assert fault(await attach(c, volume_id, connector=CONNECTOR))[:2] == (400, "badRequest")
            assert await status(c, volume_id) == "available"
            assert (await attach(c, volume_id)).status == 200

    run(scenario())


def test_completed_attachment_cannot_be_connected_again(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            done = await attached(c, await put_volume(c.db), connector=CONNECTOR)
            await complete(c, done["id"])
            again = await c.put(f"/attachments/{done['id']}", {"attachment": {"connector": {"host": "host2"}}})
            assert fault(again)[0] == 400
            assert fault(await complete(c, new_id()))[0] == 404

    run(scenario())


def test_attachments_are_filtered_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volumes = [await put_volume(c.db) for _ in range(3)]
            created = [await attached(c, volume_id, new_id()) for volume_id in volumes]
            foreign = await attached(c, await put_volume(c.db, project_id=ADMIN), as_="admin")

            async def listed(query: str = "", as_: str = "member", path: str = "/attachments") -> list[str]:
                response = await c.get(f"{path}?{query}", as_=as_)
                assert response.status == 200, response.body
                return [one["id"] for one in response.json()["attachments"]]

            newest_first = [one["id"] for one in reversed(created)]
            assert await listed() == newest_first
            assert await listed(path="/attachments/detail") == newest_first
            assert await listed("all_tenants=1") == newest_first
            assert await listed(as_="admin") == [foreign["id"]]
            assert await listed("all_tenants=1", as_="admin") == [foreign["id"], *newest_first]
            assert await listed(f"all_tenants=1&project_id={DEMO}", as_="admin") == newest_first
            assert await listed(f"volume_id={volumes[1]}") == [created[1]["id"]]
            assert await listed(f"instance_id={created[2]['instance']}") == [created[2]["id"]]
            assert await listed("status=attached") == []
            await c.put(f"/attachments/{created[0]['id']}", {"attachment": {"connector": CONNECTOR}})
            assert await listed("status=attaching") == [created[0]["id"]]

            first = (await c.get("/attachments?limit=2")).json()
            assert [one["id"] for one in first["attachments"]] == newest_first[:2]
            (link,) = first["attachments_links"]
            assert link["rel"] == "next"
            rest = (await c.get(link["href"].partition("/volume/v3")[2])).json()
            assert [one["id"] for one in rest["attachments"]] == newest_first[2:]
            assert "attachments_links" not in rest
            assert fault(await c.get(f"/attachments?marker={new_id()}"))[0] == 404
            assert set(first["attachments"][0]) == {"id", "volume_id", "instance", "status"}

    run(scenario())


def test_other_projects_cannot_see_or_change_attachments(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            created = await attached(c, volume_id)
            path = f"/attachments/{created['id']}"
            assert fault(await attach(c, volume_id, as_="other"))[0] == 404
            assert fault(await c.get(path, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="reader"))[0] == 403
            assert (await c.get(path, as_="reader")).status == 200
            assert (await c.delete(path, as_="admin")).status == 200

    run(scenario())


def test_attachment_fields_by_microversion(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            requested = {"attachment": {"volume_uuid": volume_id, "instance_uuid": SERVER}}
            assert (await c.post("/attachments", requested, version="3.26")).status == 404
            created = (await c.post("/attachments", requested, version="3.27", as_="kilonova")).json()["attachment"]
            assert (await complete(c, created["id"], version="3.43")).status == 404
            moded = {"attachment": {**requested["attachment"], "mode": "ro"}}
            assert fault(await c.post("/attachments", moded, version="3.53"))[0] == 400
            assert (await c.post("/attachments", moded, version="3.54", as_="kilonova")).status == 200

    run(scenario())


@pytest.mark.parametrize(
    "requested",
    [
        {},
        {"volume_uuid": "nonsense"},
        {"volume_uuid": SERVER, "mode": "wr"},
        {"volume_uuid": SERVER, "connector": "host1"},
        {"volume_uuid": SERVER, "more": 1},
    ],
)
def test_invalid_attachment_bodies_are_refused(sqlite_url: str, requested: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            assert fault(await c.post("/attachments", {"attachment": requested}))[:2] == (400, "badRequest")

    run(scenario())
