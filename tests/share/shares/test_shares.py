"""Shares over HTTP: create, list, change and delete."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from kilonova.share.files import ShareFiles
from tests.compute.operations.support import wait_until_finished
from tests.share.support import share_cloud
from tests.support import run
from tests.support.cloud import DEMO, OTHER
from tests.support.full_cloud import TIMEOUT_SECONDS
from tests.support.route_coverage import proves


@proves(
    "POST /share/shares",
    "GET /share/shares/{share_id}",
    "DELETE /share/shares/{share_id}",
    "GET /share/shares/{share_id}/export_locations",
    "GET /share/shares/{share_id}/export_locations/{location_id}",
)
def test_share_is_a_directory_with_an_export_location(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            share_id = await c.create(name="data", description="d", metadata={"a": "1"}, size="2")
            shown = await c.item(f"/shares/{share_id}")
            assert (shown["name"], shown["description"], shown["size"]) == ("data", "d", 2)
            assert (shown["share_proto"], shown["share_type_name"], shown["project_id"]) == ("NFS", "default", DEMO)
            assert shown["metadata"] == {"a": "1"}
            assert "host" not in shown
            assert (await c.item(f"/shares/{share_id}", as_="admin"))["host"] == "kilonova@directory#directory"
            (location,) = (await c.get(f"/shares/{share_id}/export_locations")).json()["export_locations"]
            assert location["path"] == f"{socket.gethostname()}:{c.directory / share_id}"
            one = await c.item(f"/shares/{share_id}/export_locations/{location['id']}")
            assert one["path"] == location["path"]
            (c.directory / share_id / "file").write_text("content")
            assert (c.directory.stat().st_mode & 0o777, (c.directory / share_id).stat().st_mode & 0o7777) == (
                0o700,
                0o1777,
            )
            assert (await c.delete(f"/shares/{share_id}")).status == 202
            await c.gone(f"/shares/{share_id}")
            assert [path.name for path in c.directory.iterdir()] == ["deleted"]
            assert not list((c.directory / "deleted").iterdir())

    run(scenario())


def test_shares_of_other_projects_are_not_found(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            share_id = await c.create(name="mine")
            other = await c.create(name="other", as_="other")
            for path in ("", "/export_locations", "/metadata"):
                assert (await c.get(f"/shares/{share_id}{path}", as_="other")).status == 404
            assert (await c.delete(f"/shares/{share_id}", as_="other")).status == 404
            assert (await c.allow(share_id, "10.0.0.1", as_="other")).status == 404
            assert (await c.get(f"/share-access-rules?share_id={share_id}", as_="other")).status == 404
            assert (await c.delete(f"/shares/{share_id}", as_="reader")).status == 403

            async def names(query: str, as_: str = "member") -> list[str]:
                found = (await c.get(f"/shares/detail?{query}", as_=as_)).json()["shares"]
                return [share["name"] for share in found]

            assert await names("") == ["mine"]
            assert await names("all_tenants=1") == ["mine"]
            assert sorted(await names("all_tenants=1", "admin")) == ["mine", "other"]
            assert await names(f"all_tenants=1&project_id={OTHER}", "admin") == ["other"]
            assert (await c.item(f"/shares/{other}", as_="admin"))["project_id"] == OTHER

    run(scenario())


@proves(
    "GET /share/shares",
    "GET /share/shares/detail",
)
def test_list_filters_sorts_and_pages(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            ids = [await c.create(name=f"s{number}", size=number) for number in (1, 2, 3)]

            async def found(query: str) -> list[str]:
                response = await c.get(f"/shares?{query}")
                assert response.status == 200, response.body
                return [share["name"] for share in response.json()["shares"]]

            assert await found("sort_key=size&sort_dir=asc") == ["s1", "s2", "s3"]
            assert await found("sort_key=name&sort_dir=desc&limit=1&offset=1") == ["s2"]
            assert await found("name=s3") == ["s3"]
            assert await found("name~=2") == ["s2"]
            assert await found("name~=%25") == []
            assert await found("status=creating") == []
            assert await found("share_proto=nfs&name=s1") == ["s1"]
            assert await found("share_proto=CEPHFS") == []
            assert await found("is_soft_deleted=True") == []
            assert await found(f"export_location_id={ids[0]}") == ["s1"]
            counted = (await c.get("/shares/detail?with_count=true&limit=1")).json()
            assert (counted["count"], len(counted["shares"])) == (3, 1)
            refused = await c.get("/shares?sort_key=secret")
            assert (refused.status, "sort_key" in str(refused.body)) == (400, True)

    run(scenario())


@pytest.mark.parametrize(
    ("values", "status", "named"),
    [
        ({"share_proto": "CIFS"}, 400, "CIFS"),
        ({"size": 0}, 400, "size"),
        ({"is_public": True}, 400, "is_public"),
        ({"snapshot_id": "s"}, 400, "snapshot_id"),
        ({"share_network_id": "n"}, 400, "share_network_id"),
        ({"share_type": "fast"}, 404, "fast"),
        ({"availability_zone": "moon"}, 404, "moon"),
        ({"color": "red"}, 400, "color"),
    ],
)
def test_create_refuses_what_the_service_lacks(
    values: dict[str, Any], status: int, named: str, sqlite_url: str
) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url, worker=False) as c:
            response = await c.post("/shares", {"share": {"share_proto": "NFS", "size": 1, **values}})
            assert (response.status, named in str(response.body)) == (status, True), response.body
            assert (await c.get("/shares")).json() == {"shares": []}

    run(scenario())


@proves(
    "PUT /share/shares/{share_id}",
    "GET /share/shares/{share_id}/metadata",
    "POST /share/shares/{share_id}/metadata",
    "PUT /share/shares/{share_id}/metadata",
    "GET /share/shares/{share_id}/metadata/{key}",
    "PUT /share/shares/{share_id}/metadata/{key}",
    "DELETE /share/shares/{share_id}/metadata/{key}",
)
def test_update_and_metadata(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            path = f"/shares/{await c.create(name='a')}"
            changed = await c.put(path, {"share": {"display_name": "b", "display_description": "d"}})
            assert (changed.json()["share"]["name"], changed.json()["share"]["description"]) == ("b", "d")
            both = {"name": "n", "display_name": "x", "description": "m", "display_description": "x"}
            changed = await c.put(path, {"share": both})
            assert (changed.json()["share"]["name"], changed.json()["share"]["description"]) == ("n", "m")
            assert (await c.put(path, {"share": {"is_public": True}})).status == 400
            assert (await c.post(f"{path}/metadata", {"metadata": {"k": "v", "l": "w"}})).status == 200
            assert (await c.put(f"{path}/metadata/k", {"meta": {"k": "x"}})).json() == {"meta": {"k": "x"}}
            assert (await c.put(f"{path}/metadata/k", {"meta": {"other": "x"}})).status == 400
            assert (await c.delete(f"{path}/metadata/l")).status == 200
            assert (await c.delete(f"{path}/metadata/l")).status == 404
            assert (await c.get(f"{path}/metadata/l")).status == 404
            assert await c.item(f"{path}/metadata") == {"k": "x"}
            assert await c.item(f"{path}/metadata/k") == {"k": "x"}
            assert (await c.put(f"{path}/metadata", {"metadata": {"n": "1"}})).json() == {"metadata": {"n": "1"}}
            many = {"metadata": {f"k{number}": "v" for number in range(128)}}
            assert (await c.post(f"{path}/metadata", many)).status == 400

    run(scenario())


@proves(
    "POST /share/shares/{share_id}/action#extend",
    "POST /share/shares/{share_id}/action#shrink",
)
def test_extend_and_shrink(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url, share_quota__gigabytes=5) as c:
            share_id = await c.create(size=2)
            assert (await c.act(share_id, "extend", {"new_size": 4})).status == 202
            assert (await c.act(share_id, "extend", {"new_size": 4})).status == 400
            assert (await c.act(share_id, "extend", {"new_size": 6})).status == 413
            assert (await c.act(share_id, "extend", {"new_size": 5, "force": True})).status == 403
            assert (await c.act(share_id, "extend", {"new_size": 5, "force": True}, version="2.63")).status == 400
            assert (await c.act(share_id, "shrink", {"new_size": 4})).status == 400
            assert (await c.act(share_id, "shrink", {"new_size": 1})).status == 202
            assert (await c.item(f"/shares/{share_id}"))["size"] == 1

    run(scenario())


@proves(
    "POST /share/shares/{share_id}/action#reset_status",
    "POST /share/shares/{share_id}/action#reset_task_state",
    "POST /share/shares/{share_id}/action#force_delete",
)
def test_status_is_reset_by_administrators(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            share_id = await c.create()
            reset = {"status": "error"}
            assert (await c.act(share_id, "reset_status", reset)).status == 403
            assert (await c.act(share_id, "reset_status", reset, as_="admin")).status == 202
            assert (await c.act(share_id, "reset_task_state", {"task_state": None})).status == 403
            assert (await c.act(share_id, "reset_task_state", {"task_state": None}, as_="admin")).status == 202
            migrating = {"task_state": "migration_starting"}
            assert (await c.act(share_id, "reset_task_state", migrating, as_="admin")).status == 400
            assert (await c.act(share_id, "extend", {"new_size": 4})).status == 400
            assert (await c.act(share_id, "force_delete", as_="admin")).status == 202
            await c.gone(f"/shares/{share_id}")

    run(scenario())


def test_forced_deletion_while_the_directory_is_created(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, deleted, create = threading.Event(), threading.Event(), ShareFiles.create

    def create_late(self: ShareFiles, share_id: str) -> None:
        begun.set()
        assert deleted.wait(TIMEOUT_SECONDS)
        create(self, share_id)

    monkeypatch.setattr(ShareFiles, "create", create_late)

    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            made = await c.post("/shares", {"share": {"share_proto": "NFS", "size": 1}})
            share_id = made.json()["share"]["id"]
            assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
            assert (await c.act(share_id, "force_delete", as_="admin")).status == 202
            await c.gone(f"/shares/{share_id}")
            deleted.set()
            await wait_until_finished(c.db)
            assert not (c.directory / share_id).exists()
            assert not list((c.directory / "deleted").iterdir())

    run(scenario())


def test_share_without_disk_space_is_in_error(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url, reserved_disk_gb=1e9) as c:
            made = await c.post("/shares", {"share": {"share_proto": "NFS", "size": 1}})
            path = f"/shares/{made.json()['share']['id']}"
            await c.until(path, lambda shown: shown["status"] == "error")
            assert (await c.get(f"{path}/export_locations")).json() == {"export_locations": []}
            reset = await c.post(f"{path}/action", {"reset_status": {"status": "available"}}, as_="admin")
            assert (reset.status, "has no directory" in str(reset.body)) == (400, True)
            assert (await c.delete(path)).status == 202
            await c.gone(path)

    run(scenario())


def test_older_versions_hide_what_is_newer(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            path = f"/shares/{await c.create()}"
            assert "is_soft_deleted" not in await c.item(path, version="2.68")
            assert "is_soft_deleted" in await c.item(path, version="2.69")
            assert (await c.get("/resource-locks", version="2.80")).status == 404
            assert (await c.get("/resource-locks", version="2.81")).status == 200
            lowest = await c.get(path, version=None)
            assert lowest.headers["x-openstack-manila-api-version"] == "2.55"
            refused = await c.get(path, version="2.54")
            assert refused.status == 406

    run(scenario())
