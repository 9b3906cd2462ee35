"""Snapshots: routes, visibility, quota and microversions."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from kilonova.volume.files import GIB, VolumeFiles
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, fault
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

PROGRESS = "os-extended-snapshot-attributes:progress"
PROJECT = "os-extended-snapshot-attributes:project_id"


async def filled(c: VolumeCloud, content: bytes = b"", **values: Any) -> str:
    """Create a volume that starts with these bytes."""
    volume_id, data_id = new_id(), new_id()
    path = VolumeFiles.of(c.services.config).volume(volume_id, data_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with path.open("r+b") as file:
        file.truncate(GIB)
    return await put_volume(c.db, id=volume_id, data_id=data_id, **values)


async def create(
    c: VolumeCloud, volume_id: str | None, *, options: dict[str, Any] | None = None, **keys: Any
) -> ClientResponse:
    return await c.post("/snapshots", {"snapshot": {"volume_id": volume_id, **keys}}, **(options or {}))


async def create_ready(
    c: VolumeCloud, volume_id: str, *, options: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    response = await create(c, volume_id, options=options, **keys)
    assert response.status == 202, response.body
    snapshot: dict[str, Any] = response.json()["snapshot"]
    return snapshot


async def until_available(c: VolumeCloud, snapshot_id: str, **options: Any) -> dict[str, Any]:
    return await c.until(f"/snapshots/{snapshot_id}", lambda shown: shown["status"] != "creating", **options)


async def act(c: VolumeCloud, snapshot_id: str, action: dict[str, Any], as_: str = "admin") -> ClientResponse:
    return await c.post(f"/snapshots/{snapshot_id}/action", action, as_=as_)


async def listed(c: VolumeCloud, query: str = "", *, path: str = "/snapshots", **options: Any) -> list[str]:
    response = await c.get(f"{path}?{query}", **options)
    assert response.status == 200, response.body
    return [one["name"] for one in response.json()["snapshots"]]


def test_create_show_update_and_delete_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            volume_id = await filled(c, b"these bytes")
            new = await create_ready(c, volume_id, name="s", description="d", metadata={"a": "1"})
            path = f"/snapshots/{new['id']}"
            assert new == {
                "id": new["id"],
                "name": "s",
                "description": "d",
                "status": "creating",
                "size": 1,
                "volume_id": volume_id,
                "created_at": new["created_at"],
                "updated_at": None,
                "metadata": {"a": "1"},
            }
            shown = await until_available(c, new["id"])
            assert shown == {
                **new,
                "status": "available",
                "updated_at": shown["updated_at"],
                PROGRESS: "100%",
                PROJECT: DEMO,
                "group_snapshot_id": None,
                "user_id": "member-id",
                "consumes_quota": True,
            }
            row = await c.db.fetch_one("SELECT * FROM volume_snapshots")
            assert row is not None
            file = VolumeFiles.of(c.services.config).snapshot(row["id"], row["data_id"])
            assert file.stat().st_size == GIB
            with file.open("rb") as copied:
                assert copied.read(11) == b"these bytes"

            response = await c.put(path, {"snapshot": {"name": "t", "display_name": "old", "description": None}})
            assert response.status == 200, response.body
            changed = response.json()["snapshot"]
            assert (changed["name"], changed["description"], changed["metadata"]) == ("t", None, {"a": "1"})
            assert (await c.item(path))["name"] == "t"

            assert (await c.delete(path)).status == 202
            await c.gone(path)
            assert not file.exists()

    run(scenario())


def test_snapshot_of_volume_in_use(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            volume_id = await filled(c, status="in-use")
            old = {"version": "3.65"}
            refused = await create(c, volume_id, options=old)
            assert fault(refused)[:2] == (400, "badRequest")
            assert "in-use" in fault(refused)[2]
            assert (await create(c, volume_id, options=old, force=False)).status == 400
            assert (await create(c, volume_id, options=old, force="True")).status == 202
            assert (await create(c, volume_id)).status == 202
            assert (await create(c, volume_id, force=True)).status == 202
            assert fault(await create(c, volume_id, force=False))[0] == 400
            assert await c.db.fetch_value("SELECT status FROM volumes") == "in-use"

    run(scenario())


@pytest.mark.parametrize("status", ["creating", "error", "deleting", "awaiting-transfer"])
def test_snapshot_depends_on_volume_status(sqlite_url: str, status: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            assert fault(await create(c, await put_volume(c.db, status=status), force=True))[0] == 400

    run(scenario())


def test_invalid_snapshot_requests_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            assert fault(await create(c, None))[0] == 404
            assert fault(await create(c, new_id()))[0] == 404
            assert fault(await create(c, volume_id, name="x" * 256))[0] == 400
            assert fault(await create(c, volume_id, metadata={"": "empty"}))[0] == 400
            assert fault(await create(c, volume_id, more=1))[0] == 400
            assert fault(await c.post("/snapshots", {"snapshot": {}}))[0] == 400
            new = await create_ready(c, volume_id)
            assert fault(await c.put(f"/snapshots/{new['id']}", {"snapshot": {}}))[0] == 400
            for query in ("limit=x", "sort_key=nonsense", "sort=name:up", "metadata=nonsense"):
                assert fault(await c.get(f"/snapshots?{query}"))[0] == 400, query
            assert fault(await c.get(f"/snapshots?marker={new_id()}"))[0] == 404

    run(scenario())


def test_busy_snapshot_cannot_be_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            new = await create_ready(c, await put_volume(c.db))
            path = f"/snapshots/{new['id']}"
            assert "current status is: creating" in fault(await c.delete(path))[2]
            await act(c, new["id"], {"os-reset_status": {"status": "available"}})
            copy = await put_volume(c.db, snapshot_id=new["id"], status="creating")
            assert copy in fault(await c.delete(path))[2]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'available' WHERE id = $1", copy)
            assert (await c.delete(path)).status == 202
            assert (await c.item(path))["status"] == "deleting"
            assert fault(await c.delete(path))[0] == 400

    run(scenario())


def test_snapshot_actions(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url) as c:
            new = await create_ready(c, await filled(c))
            path = f"/snapshots/{new['id']}"
            await until_available(c, new["id"])
            reset = {"os-reset_status": {"status": "creating"}}
            assert fault(await act(c, new["id"], reset, as_="member"))[0] == 403
            assert fault(await act(c, new["id"], {"os-reset_status": {"status": "whole"}}))[0] == 400
            assert (await act(c, new["id"], reset)).status == 202
            report = {"os-update_snapshot_status": {"status": "error", "progress": "80%"}}
            assert (await act(c, new["id"], report, as_="member")).status == 202
            shown = await c.item(path)
            assert (shown["status"], shown[PROGRESS]) == ("error", "80%")
            assert fault(await act(c, new["id"], report))[0] == 400
            assert (await act(c, new["id"], {"os-reset_status": {"status": "deleting"}})).status == 202
            wrong = {"os-update_snapshot_status": {"status": "available"}}
            assert fault(await act(c, new["id"], wrong))[0] == 400
            assert fault(await act(c, new["id"], {"os-force_delete": {}}, as_="member"))[0] == 403
            assert (await act(c, new["id"], {"os-force_delete": None})).status == 202
            await c.gone(path)

    run(scenario())


def test_snapshot_metadata(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            new = await create_ready(c, await put_volume(c.db), metadata={"a": "1"})
            path = f"/snapshots/{new['id']}/metadata"
            response = await c.post(path, {"metadata": {"b": "2"}})
            assert (response.status, response.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
            assert (await c.put(path, {"metadata": {"c": "3", "d": "4"}})).status == 200
            assert await c.item(path) == {"c": "3", "d": "4"}
            assert (await c.put(f"{path}/c", {"meta": {"c": "5"}})).json() == {"meta": {"c": "5"}}
            assert (await c.get(f"{path}/c")).json() == {"meta": {"c": "5"}}
            assert fault(await c.put(f"{path}/c", {"meta": {"d": "5"}}))[0] == 400
            assert (await c.delete(f"{path}/d")).status == 200
            assert fault(await c.delete(f"{path}/d"))[0] == 404
            assert fault(await c.get(f"{path}/d"))[0] == 404
            assert (await c.item(f"/snapshots/{new['id']}"))["metadata"] == {"c": "5"}
            assert fault(await c.put(path, {"metadata": {}}, as_="reader"))[0] == 403
            assert fault(await c.get(path, as_="other"))[0] == 404
            assert (await c.put(path, {"metadata": {}})).status == 200
            assert await c.item(path) == {}

    run(scenario())


def test_snapshots_are_filtered_sorted_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            for name in ("b", "c", "a"):
                await create_ready(c, volume_id, name=name, metadata={"of": name})
            foreign = await put_volume(c.db, project_id=ADMIN)
            await create_ready(c, foreign, name="x", options={"as_": "admin"})

            assert await listed(c) == ["a", "c", "b"]
            assert await listed(c, path="/snapshots/detail") == ["a", "c", "b"]
            assert await listed(c, "sort_key=display_name&sort_dir=asc") == ["a", "b", "c"]
            assert await listed(c, "sort=name:desc") == ["c", "b", "a"]
            assert await listed(c, "name=c") == ["c"]
            assert await listed(c, "status=available") == []
            assert await listed(c, f"volume_id={volume_id}&limit=2") == ["a", "c"]
            assert await listed(c, "offset=2&limit=3") == ["b"]
            assert await listed(c, "limit=0") == []
            assert await listed(c, "metadata={'of': 'b'}".replace(" ", "%20")) == ["b"]
            assert await listed(c, "all_tenants=1") == ["a", "c", "b"]
            assert await listed(c, "all_tenants=1", as_="admin") == ["x", "a", "c", "b"]
            assert await listed(c, f"all_tenants=1&project_id={DEMO}", as_="admin") == ["a", "c", "b"]

            page = (await c.get("/snapshots?limit=2&sort=name:asc")).json()
            assert [one["name"] for one in page["snapshots"]] == ["a", "b"]
            (link,) = page["snapshots_links"]
            assert await listed(c, link["href"].partition("?")[2]) == ["c"]
            counted = (await c.get("/snapshots?limit=1&with_count=true")).json()
            assert (counted["count"], len(counted["snapshots"])) == (3, 1)

    run(scenario())


def test_other_projects_cannot_see_or_change_snapshots(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            path = f"/snapshots/{(await create_ready(c, volume_id))['id']}"
            assert fault(await create(c, volume_id, options={"as_": "other"}))[0] == 404
            assert fault(await create(c, volume_id, options={"as_": "reader"}))[0] == 403
            assert fault(await c.get(path, as_="other"))[0] == 404
            assert fault(await c.put(path, {"snapshot": {"name": "n"}}, as_="other"))[0] == 404
            assert fault(await c.delete(path, as_="reader"))[0] == 403
            assert (await c.get(path, as_="reader")).status == 200
            assert await listed(c, as_="other") == []

    run(scenario())


def test_snapshot_quota(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False, volume_quota__snapshots=1, volume_quota__gigabytes=9) as c:
            large = await put_volume(c.db, size=5)
            assert fault(await create(c, large))[:2] == (413, "overLimit")
            volume_id = await put_volume(c.db)
            await create_ready(c, volume_id)
            assert "snapshots" in fault(await create(c, volume_id))[2]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volume_snapshots") == 1

    run(scenario())


def test_snapshot_fields_by_microversion(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            new = await create_ready(c, await put_volume(c.db), metadata={"a": "1"}, name="s")
            begins = {"group_snapshot_id": 14, "user_id": 41, "consumes_quota": 65}
            for field, minor in begins.items():
                assert field not in await c.item(f"/snapshots/{new['id']}", version=f"3.{minor - 1}")
                assert field in await c.item(f"/snapshots/{new['id']}", version=f"3.{minor}")
            wrong = "metadata={'a':'2'}"
            assert await listed(c, wrong, version="3.21") == ["s"]
            assert await listed(c, wrong, version="3.22") == []
            assert "count" not in (await c.get("/snapshots?with_count=true", version="3.44")).json()
            assert await listed(c, "name~=xx", version="3.33") == ["s"]
            assert await listed(c, "name~=xx", version="3.34") == []

    run(scenario())
