"""Proxy for images (before 2.36) and their metadata (before 2.39)."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.actions.test_create_image import create_image
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import make_image

VERSION = "2.35"


async def get_json(c: FullCloud, path: str, **options: Any) -> dict[str, Any]:
    answer = await c.get(path, **{"version": VERSION, **options})
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.json()
    return body


@proves("GET /images", "GET /images/detail", "GET /images/{image_id}")
def test_show_list_and_filter(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            said = {"name": "other", "os_distro": "plan9", "min_disk": 1, "auto_disk_config": "True"}
            other = await make_image(c, b"x" * 100, **said)
            server = await c.boot_active(networks="none")
            copy = await create_image(c, server["id"])
            await c.wait_until_settled(server["id"])
            waiting = (await c.post("/images", {"name": "empty"}, root="/image/v2")).json()["id"]

            shown = (await get_json(c, f"/images/{other}"))["image"]
            assert {key: shown[key] for key in ("id", "name", "status", "progress", "minDisk", "minRam")} == {
                "id": other,
                "name": "other",
                "status": "ACTIVE",
                "progress": 100,
                "minDisk": 1,
                "minRam": 0,
            }
            assert shown["metadata"] == {"os_distro": "plan9", "auto_disk_config": "True"}
            assert (shown["OS-EXT-IMG-SIZE:size"], shown["OS-DCF:diskConfig"]) == (100, "AUTO")
            assert "server" not in shown
            assert [link["rel"] for link in shown["links"]] == ["self", "bookmark", "alternate"]
            made = (await get_json(c, f"/images/{copy}"))["image"]
            assert (made["server"]["id"], made["metadata"]["image_type"]) == (server["id"], "snapshot")
            assert (await get_json(c, f"/images/{waiting}"))["image"]["status"] == "SAVING"

            async def found(query: str) -> set[str]:
                brief = (await get_json(c, f"/images?{query}"))["images"]
                details = (await get_json(c, f"/images/detail?{query}"))["images"]
                assert [one["id"] for one in brief] == [one["id"] for one in details]
                assert all(one.keys() == {"id", "name", "links"} for one in brief)
                return {one["id"] for one in brief}

            assert await found("") == {c.image_id, other, copy, waiting}
            assert await found("status=ACTIVE") == {c.image_id, other, copy}
            assert await found("status=saving") == {waiting}
            assert await found("status=DELETED") == await found("status=nonsense") == set()
            assert await found("name=other") == await found("minDisk=1&name=other") == {other}
            assert await found("property-os_distro=plan9&unknown=1") == {other}
            assert await found("type=snapshot") == await found(f"server={server['id']}") == {copy}
            assert await found(f"server=http://localhost/v2.1/servers/{server['id']}") == {copy}
            assert await found(f"changes-since={shown['created']}") >= {other, copy, waiting}
            assert await found("changes-since=2100-01-01T00:00:00Z") == set()
            pages, path = [], "/images?limit=3"
            while path:
                body = await get_json(c, path)
                pages.append([one["id"] for one in body["images"]])
                path = body["images_links"][0]["href"].partition("/v2.1")[2] if "images_links" in body else ""
            assert [len(page) for page in pages] == [3, 1]
            assert {one for page in pages for one in page} == {c.image_id, other, copy, waiting}

    run(scenario())


@proves("DELETE /images/{image_id}")
def test_only_owners_delete_images(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            own = (await c.post("/images", {"name": "mine"}, root="/image/v2")).json()["id"]
            assert (await c.delete(f"/images/{own}", as_="other", version=VERSION)).status == 404
            assert (await c.delete(f"/images/{c.image_id}", version=VERSION)).status == 403
            assert (await c.delete(f"/images/{own}", version=VERSION)).status == 204
            assert (await c.get(f"/images/{own}", version=VERSION)).status == 404
            assert (await c.delete(f"/images/{own}", version=VERSION)).status == 404
            assert (await c.delete("/images/nothing", version=VERSION)).status == 404

    run(scenario())


@proves(
    "GET /images/{image_id}/metadata",
    "POST /images/{image_id}/metadata",
    "PUT /images/{image_id}/metadata",
    "GET /images/{image_id}/metadata/{key}",
    "PUT /images/{image_id}/metadata/{key}",
    "DELETE /images/{image_id}/metadata/{key}",
)
def test_metadata_of_images(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, quota__metadata_items=3) as c:
            own = (await c.post("/images", {"name": "mine", "a": "1"}, root="/image/v2")).json()["id"]
            path = f"/images/{own}/metadata"

            async def request(method: str, below: str, body: Any = None, **options: Any) -> tuple[int, Any]:
                answer = await c.request(method, path + below, json=body, **{"version": "2.38", **options})
                return answer.status, answer.json() if answer.body else None

            assert await request("GET", "") == (200, {"metadata": {"a": "1"}})
            both = {"metadata": {"a": "2", "b.c": "3"}}
            assert await request("POST", "", {"metadata": {"a": "2", "b.c": "3"}}) == (200, both)
            assert await request("GET", "/b.c") == (200, {"meta": {"b.c": "3"}})
            assert await request("PUT", "/b.c", {"meta": {"b.c": "4"}}) == (200, {"meta": {"b.c": "4"}})
            assert await request("DELETE", "/a") == (204, None)
            assert (await request("DELETE", "/a"))[0] == (await request("GET", "/a"))[0] == 404
            assert await request("GET", "") == (200, {"metadata": {"b.c": "4"}})
            assert await request("PUT", "", {"metadata": {"d": "5"}}) == (200, {"metadata": {"d": "5"}})
            assert await request("GET", "") == (200, {"metadata": {"d": "5"}})
            wrong: list[Any] = [{"meta": {"other": "x"}}, {"meta": {"e": "x", "f": "y"}}, {"meta": {}}, {}]
            for body in wrong:
                assert (await request("PUT", "/e", body))[0] == 400, body
            for key in ("", "name", "visibility", "min_disk"):
                assert (await request("POST", "", {"metadata": {key: "x"}}))[0] == 400, key
            assert (await request("POST", "", {"metadata": {"x": "1", "y": "2", "z": "3"}}))[0] == 403
            assert (await request("POST", "", {"metadata": {"x": "1"}}, as_="other"))[0] == 404
            assert (await request("GET", "", version="2.39"))[0] == 404
            assert await request("GET", "") == (200, {"metadata": {"d": "5"}})

    run(scenario())


def test_routes_end_with_2_36_and_2_39(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            for path in ("/images", "/images/detail", f"/images/{c.image_id}"):
                assert (await c.get(path, version="2.35")).status == 200
                assert (await c.get(path, version="2.36")).status == 404
            assert (await c.delete(f"/images/{c.image_id}", as_="admin", version="2.36")).status == 404

    run(scenario())
