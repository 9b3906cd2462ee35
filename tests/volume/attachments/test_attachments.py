"""Attachments: the states of a volume follow them, one server has it, and everybody sees only what is theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.http.client import Response
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, fault
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

CONNECTOR = {"host": "host1", "platform": "x86_64", "mountpoint": "/dev/vdb"}
SERVER, OTHER_SERVER = new_id(), new_id()


async def attach(
    c: VolumeCloud, volume_id: str, server_id: str | None = SERVER, *, as_: str = "member", **keys: Any
) -> Response:
    asked = {"volume_uuid": volume_id, "instance_uuid": server_id, **keys}
    return await c.post("/attachments", {"attachment": asked}, as_=as_)


async def attached(c: VolumeCloud, volume_id: str, server_id: str | None = SERVER, **keys: Any) -> dict[str, Any]:
    answer = await attach(c, volume_id, server_id, **keys)
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json()["attachment"]
    return made


async def status(c: VolumeCloud, volume_id: str) -> str:
    found: str = await c.db.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id)
    return found


async def complete(c: VolumeCloud, attachment_id: str, version: str = "3.44") -> Response:
    return await c.post(f"/attachments/{attachment_id}/action", {"os-complete": {}}, version=version)


def test_a_volume_is_reserved_connected_completed_and_given_back(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            data_id = new_id()
            volume_id = await put_volume(c.db, size=7, data_id=data_id)
            made = await attached(c, volume_id)
            path = f"/attachments/{made['id']}"
            assert made == {
                "id": made["id"],
                "volume_id": volume_id,
                "instance": SERVER,
                "status": "reserved",
                "attach_mode": "rw",
                "attached_at": None,
                "detached_at": None,
                "connection_info": {},
            }
            assert await status(c, volume_id) == "reserved"

            answer = await c.put(path, {"attachment": {"connector": CONNECTOR}})
            assert answer.status == 200, answer.body
            connected = answer.json()["attachment"]
            way = connected["connection_info"]
            assert connected["status"] == "attaching"
            assert way["device_path"] == str(c.services.config.data_dir / "volumes" / f"{volume_id}.{data_id}")
            assert (way["driver_volume_type"], way["format"], way["access_mode"]) == ("kilonova_file", "raw", "rw")
            assert (way["size"], way["volume_id"], way["attachment_id"]) == (7, volume_id, made["id"])
            assert await status(c, volume_id) == "attaching"

            assert (await complete(c, made["id"])).status == 204
            assert (await complete(c, made["id"])).status == 204
            shown = await c.item(path)
            assert (shown["status"], shown["connection_info"]) == ("attached", way)
            assert shown["attached_at"] is not None
            assert await status(c, volume_id) == "in-use"

            answer = await c.delete(path)
            assert (answer.status, answer.json()) == (200, {"attachments": []})
            assert await status(c, volume_id) == "available"
            assert fault(await c.get(path))[0] == 404

    run(scenario())


def test_with_a_connector_it_is_attaching_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            made = await attached(c, volume_id, connector={**CONNECTOR, "mode": "ro"})
            assert (made["status"], made["attach_mode"]) == ("attaching", "ro")
            assert made["connection_info"]["access_mode"] == "ro"
            assert await status(c, volume_id) == "attaching"
            assert (await complete(c, made["id"])).status == 204
            row = await c.db.fetch_one("SELECT host, mountpoint FROM volume_attachments")
            assert row == {"host": "host1", "mountpoint": "/dev/vdb"}

    run(scenario())


def test_of_servers_that_ask_at_once_one_gets_it(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            answers = await asyncio.gather(*(attach(c, volume_id, new_id()) for _ in range(8)))
            assert sorted(answer.status for answer in answers) == [200] + 7 * [400]
            refused = next(fault(answer) for answer in answers if answer.status == 400)
            assert refused[1] == "badRequest"
            assert volume_id in refused[2]
            assert "current status is reserved" in refused[2]

    run(scenario())


def test_a_server_that_moves_has_two_and_others_none(database_url: str) -> None:
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
def test_what_somebody_has_is_nobody_elses_whatever_its_status(database_url: str, said: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            path = f"/volumes/{volume_id}/action"
            await attached(c, volume_id, connector=CONNECTOR)
            assert (await c.post(path, {"os-reset_status": {"status": said}}, as_="admin")).status == 202
            assert (await attach(c, volume_id, OTHER_SERVER)).status == 400
            old_way = {"instance_uuid": OTHER_SERVER, "mountpoint": "/dev/vdb"}
            assert (await c.post(path, {"os-attach": old_way})).status == 400
            assert (await c.post("/volume-transfers", {"transfer": {"volume_id": volume_id}})).status == 400
            assert await status(c, volume_id) == said
            await c.post(path, {"os-unreserve": {}})
            assert (await attach(c, volume_id, OTHER_SERVER)).status == 400
            assert (await attach(c, volume_id, SERVER)).status == 200
            assert await status(c, volume_id) == "attaching"

    run(scenario())


def test_shared_volumes_are_for_several(database_url: str) -> None:
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


def test_read_only_volumes_are_attached_so(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db, readonly=True)
            assert fault(await attach(c, volume_id, mode="rw"))[0] == 400
            made = await attached(c, volume_id)
            answer = await c.put(f"/attachments/{made['id']}", {"attachment": {"connector": CONNECTOR}})
            assert answer.json()["attachment"]["connection_info"]["access_mode"] == "ro"

    run(scenario())


@pytest.mark.parametrize("wrong", ["creating", "error", "deleting", "downloading", "awaiting-transfer"])
def test_other_volumes_are_not_for_attaching(sqlite_url: str, wrong: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, status=wrong)
            assert fault(await attach(c, volume_id))[:2] == (400, "badRequest")
            assert await status(c, volume_id) == wrong

    run(scenario())


def test_an_operation_under_way_has_the_last_word(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            made = await attached(c, volume_id)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'downloading' WHERE id = $1", volume_id)
            connected = await c.put(f"/attachments/{made['id']}", {"attachment": {"connector": CONNECTOR}})
            assert fault(connected)[:2] == (400, "badRequest")
            assert (await c.delete(f"/attachments/{made['id']}")).status == 200
            assert await status(c, volume_id) == "downloading"

    run(scenario())


def test_a_server_on_no_host_has_a_volume_in_use(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            reserved = await attached(c, volume_id)
            assert (await complete(c, reserved["id"])).status == 204
            assert await status(c, volume_id) == "in-use"

    run(scenario())


def test_a_server_without_a_host_has_its_volume(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            made = await attached(c, volume_id)
            assert (await complete(c, made["id"])).status == 204
            assert await status(c, volume_id) == "in-use"
            answer = await c.put(f"/attachments/{made['id']}", {"attachment": {"connector": CONNECTOR}})
            assert answer.json()["attachment"]["status"] == "attaching"
            assert (await complete(c, made["id"])).status == 204
            assert await status(c, volume_id) == "in-use"

    run(scenario())


def test_a_volume_without_content_cannot_be_reached(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db, data_id=None)
            assert fault(await attach(c, volume_id, connector=CONNECTOR))[:2] == (400, "badRequest")
            assert await status(c, volume_id) == "available"
            assert (await attach(c, volume_id)).status == 200

    run(scenario())


def test_what_an_attachment_is_not_ready_for(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            done = await attached(c, await put_volume(c.db), connector=CONNECTOR)
            await complete(c, done["id"])
            again = await c.put(f"/attachments/{done['id']}", {"attachment": {"connector": {"host": "host2"}}})
            assert fault(again)[0] == 400
            assert fault(await complete(c, new_id()))[0] == 404

    run(scenario())


def test_lists_are_filtered_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volumes = [await put_volume(c.db) for _ in range(3)]
            made = [await attached(c, volume_id, new_id()) for volume_id in volumes]
            foreign = await attached(c, await put_volume(c.db, project_id=ADMIN), as_="admin")

            async def listed(query: str = "", as_: str = "member", path: str = "/attachments") -> list[str]:
                answer = await c.get(f"{path}?{query}", as_=as_)
                assert answer.status == 200, answer.body
                return [one["id"] for one in answer.json()["attachments"]]

            newest_first = [one["id"] for one in reversed(made)]
            assert await listed() == newest_first
            assert await listed(path="/attachments/detail") == newest_first
            assert await listed("all_tenants=1") == newest_first
            assert await listed(as_="admin") == [foreign["id"]]
            assert await listed("all_tenants=1", as_="admin") == [foreign["id"], *newest_first]
            assert await listed(f"all_tenants=1&project_id={DEMO}", as_="admin") == newest_first
            assert await listed(f"volume_id={volumes[1]}") == [made[1]["id"]]
            assert await listed(f"instance_id={made[2]['instance']}") == [made[2]["id"]]
            assert await listed("status=attached") == []
            await c.put(f"/attachments/{made[0]['id']}", {"attachment": {"connector": CONNECTOR}})
            assert await listed("status=attaching") == [made[0]["id"]]

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


def test_others_see_and_touch_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            made = await attached(c, volume_id)
            path = f"/attachments/{made['id']}"
            assert fault(await attach(c, volume_id, as_="other"))[0] == 404
            assert fault(await c.get(path, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="reader"))[0] == 403
            assert (await c.get(path, as_="reader")).status == 200
            assert (await c.delete(path, as_="admin")).status == 200

    run(scenario())


def test_versions(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            asked = {"attachment": {"volume_uuid": volume_id, "instance_uuid": SERVER}}
            assert (await c.post("/attachments", asked, version="3.26")).status == 404
            made = (await c.post("/attachments", asked, version="3.27")).json()["attachment"]
            assert (await complete(c, made["id"], version="3.43")).status == 404
            moded = {"attachment": {**asked["attachment"], "mode": "ro"}}
            assert fault(await c.post("/attachments", moded, version="3.53"))[0] == 400
            assert (await c.post("/attachments", moded, version="3.54")).status == 200

    run(scenario())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"volume_uuid": "nonsense"},
        {"volume_uuid": SERVER, "mode": "wr"},
        {"volume_uuid": SERVER, "connector": "host1"},
        {"volume_uuid": SERVER, "more": 1},
    ],
)
def test_bad_bodies(sqlite_url: str, asked: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            assert fault(await c.post("/attachments", {"attachment": asked}))[:2] == (400, "badRequest")

    run(scenario())
