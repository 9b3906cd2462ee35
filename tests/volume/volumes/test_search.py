"""Lists of volumes: visibility, filters, order, pages and counts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova import clock
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.support.route_coverage import proves
from tests.volume.support import VolumeCloud, put_type, put_volume, volume_cloud

GOLD = "22222222-2222-4222-8222-222222222222"


async def names(c: VolumeCloud, as_: str = "member", version: str = "3.71", **query: Any) -> list[str]:
    response = await c.get(f"/volumes?{urlencode(query)}", as_=as_, version=version)
    assert response.status == 200, response.body
    return [volume["name"] for volume in response.json()["volumes"]]


async def refused(c: VolumeCloud, as_: str = "member", version: str = "3.71", **query: Any) -> str:
    status, kind, message = fault(await c.get(f"/volumes?{urlencode(query)}", as_=as_, version=version))
    assert (status, kind) == (400, "badRequest")
    return message


async def fill(c: VolumeCloud) -> dict[str, str]:
    """Create three volumes of one project and one of another; return their ids by name."""
    await put_type(c.db, GOLD, "gold")
    return {
        "a": await put_volume(c.db, name="a", size=3, bootable=True, description="first of all", created_at=10.5),
        "b": await put_volume(c.db, name="b", size=1, type_id=GOLD, multiattach=True, created_at=20.5),
        "c": await put_volume(c.db, name="c", size=2, status="error", created_at=30.5, updated_at=99.0),
        "z": await put_volume(c.db, name="z", project_id=OTHER, user_id="other-id", created_at=40.5),
    }


@proves(
    "GET /volume/volumes",
    "GET /volume/volumes/detail",
)
def test_list_shows_only_visible_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            ids = await fill(c)
            assert await names(c) == ["c", "b", "a"]
            assert await names(c, as_="reader", all_tenants="1") == ["c", "b", "a"]
            assert await names(c, as_="admin") == []
            assert await names(c, as_="admin", all_tenants="1") == ["z", "c", "b", "a"]
            assert await names(c, as_="admin", all_tenants="") == ["z", "c", "b", "a"]
            assert await names(c, as_="admin", all_tenants="True", project_id=OTHER) == ["z"]
            assert await names(c, as_="admin", all_tenants="True", user_id="member-id") == ["c", "b", "a"]
            assert "all_tenants" in await refused(c, as_="admin", all_tenants="perhaps")
            (brief,) = (await c.get("/volumes?name=a")).json()["volumes"]
            assert brief.keys() == {"id", "name", "links"}
            (full,) = (await c.get("/volumes/detail?name=a")).json()["volumes"]
            assert full == await c.item(f"/volumes/{ids['a']}")

    run(scenario())


def test_volume_filters(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            ids = await fill(c)
            for name, pairs in {"a": {"k": "v", "l": "w"}, "b": {"k": "v"}}.items():
                await c.post(f"/volumes/{ids[name]}/metadata", {"metadata": pairs})
            for query, found in (
                ({"name": "b"}, ["b"]),
                ({"status": "available"}, ["b", "a"]),
                ({"status": "available", "bootable": "false"}, ["b"]),
                ({"bootable": "TRUE"}, ["a"]),
                ({"multiattach": "1"}, ["b"]),
                ({"size": "2"}, ["c"]),
                ({"availability_zone": "nova"}, ["c", "b", "a"]),
                ({"availability_zone": "mars"}, []),
                ({"volume_type_id": GOLD}, ["b"]),
                ({"id": ids["c"]}, ["c"]),
                ({"metadata": "{'k': 'v'}"}, ["b", "a"]),
                ({"metadata": '{"k": "v", "l": "w"}'}, ["a"]),
                ({"metadata": "{'k': 'w'}"}, []),
                ({"description~": "of"}, ["a"]),
                ({"name~": "%"}, []),
                ({"group_id": "x"}, []),
                ({"consumes_quota": "true"}, ["c", "b", "a"]),
                ({"consumes_quota": "false"}, []),
                ({"created_at": f"gt:{clock.iso_micro(10.5)},lt:{clock.iso_micro(30.5)}"}, ["b"]),
                ({"created_at": f"gte:{clock.iso_micro(20.5)}"}, ["c", "b"]),
                ({"created_at": f"neq:{clock.iso_micro(10.5)}"}, ["c", "b"]),
                ({"updated_at": clock.iso_micro(99.0)}, ["c"]),
            ):
                assert await names(c, **query) == found, query
            admin = {"as_": "admin", "all_tenants": "1"}
            assert await names(c, **admin, volume_type="gold") == ["b"]
            assert await names(c, **admin, host="kilonova@files") == ["z", "c", "b", "a"]
            assert await names(c, **admin, host="elsewhere") == []
            assert await names(c, **admin, encrypted="true") == []
            for query, words in (
                ({"size": "large"}, "must be an integer"),
                ({"metadata": "k"}, "must be a dictionary"),
                ({"metadata": "[1]"}, "must be a dictionary"),
                ({"metadata": r"{'a': '\x00'}"}, "must be a dictionary"),
                ({"metadata": r"{'a': '\ud800'}"}, "must be a dictionary"),
                ({"metadata": "{'a': 0x" + "f" * 4000 + "}"}, "must be a dictionary"),
                ({"created_at": "about:noon"}, "is none of gt, gte"),
                ({"created_at": "gt:noon"}, "invalid time value"),
                ({"size~": "2"}, "Invalid filters size~"),
            ):
                assert words in await refused(c, **query)

    run(scenario())


def test_filters_depend_on_microversion(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await fill(c)
            everything = ["c", "b", "a"]
            for version, query in (
                ("3.3", {"glance_metadata": "{'a': 'b'}"}),
                ("3.9", {"group_id": "x"}),
                ("3.30", {"host": "elsewhere"}),
                ("3.30", {"project_id": OTHER}),
                ("3.33", {"name~": "a"}),
                ("3.59", {"created_at": "gt:noon"}),
                ("3.64", {"consumes_quota": "false"}),
            ):
                assert await names(c, version=version, **query) == everything, query
            assert await names(c, version="3.34", **{"name~": "a"}) == ["a"]
            assert "Invalid filters host, spam are found" in await refused(c, version="3.31", host="x", spam="y")
            assert await names(c, as_="admin", all_tenants="1", spam="y") == ["z", *everything]

    run(scenario())


def test_volumes_are_sorted_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            ids = await fill(c)
            for query, found in (
                ({"sort": "size:asc"}, ["b", "c", "a"]),
                ({"sort": "status,name:asc"}, ["c", "a", "b"]),
                ({"sort_key": "name", "sort_dir": "asc"}, ["a", "b", "c"]),
                ({"sort_key": "display_name"}, ["c", "b", "a"]),
                ({"sort_dir": "asc"}, ["a", "b", "c"]),
                ({"limit": "2"}, ["c", "b"]),
                ({"limit": "0"}, []),
                ({"limit": "2", "offset": "1"}, ["b", "a"]),
                ({"marker": ids["b"]}, ["a"]),
                ({"marker": ids["c"], "sort": "size:asc"}, ["a"]),
            ):
                assert await names(c, **query) == found, query
            for query, words in (
                ({"sort": "colour"}, "Sort key supplied is not valid: colour"),
                ({"sort": "name:up"}, "Unknown sort direction"),
                ({"sort_dir": "up"}, "Unknown sort direction"),
                ({"sort": "name", "sort_key": "name"}, "cannot be used with"),
                ({"sort_dir": "asc,desc"}, "sort_dir has more entries than sort_key"),
                ({"limit": "-1"}, "limit"),
                ({"offset": "x"}, "offset"),
            ):
                assert words in await refused(c, **query)
            for marker in ("none", ids["z"]):
                assert (await c.get(f"/volumes?marker={marker}")).status == 404

            seen, path = [], "/volumes/detail?limit=2&sort=name:asc"
            while path:
                page = (await c.get(path)).json()
                seen.append([volume["name"] for volume in page["volumes"]])
                links = page.get("volumes_links")
                path = links[0]["href"].removeprefix("http://localhost/volume/v3") if links else ""
            assert seen == [["a", "b"], ["c"]]

    run(scenario())


@proves(
    "GET /volume/volumes/summary",
)
def test_count_and_summary(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            ids = await fill(c)
            for name in ("a", "b"):
                await c.post(f"/volumes/{ids[name]}/metadata", {"metadata": {"k": name, "same": "v"}})
            for path in ("/volumes", "/volumes/detail"):
                page = (await c.get(f"{path}?with_count=true&limit=1&status=available")).json()
                assert (page["count"], len(page["volumes"])) == (2, 1)
                assert "count" not in (await c.get(f"{path}?with_count=true", version="3.44")).json()
                assert "count" not in (await c.get(path)).json()
            assert await c.item("/volumes/summary") == {
                "total_count": 3,
                "total_size": 6,
                "metadata": {"k": ["a", "b"], "same": ["v"]},
            }
            assert await c.item("/volumes/summary", version="3.12") == {"total_count": 3, "total_size": 6}
            assert (await c.get("/volumes/summary", version="3.11")).status == 404
            everywhere = await c.item("/volumes/summary?all_tenants=1", as_="admin")
            assert (everywhere["total_count"], everywhere["total_size"]) == (4, 7)
            assert (await c.item("/volumes/summary", as_="admin"))["total_size"] == 0

    run(scenario())


@proves(
    "GET /volume/resource_filters",
)
def test_resource_filters_are_accepted(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            offered = (await c.get("/resource_filters")).json()["resource_filters"]
            assert {each["resource"] for each in offered} == {"volume", "snapshot", "attachment", "message"}
            (volume,) = (await c.get("/resource_filters?resource=volume")).json()["resource_filters"]
            assert "bootable" in volume["filters"]
            # All of these filters are accepted.
            for key in volume["filters"]:
                value = {"metadata": "{}", "glance_metadata": "{}", "size": "1", "created_at": "2026-01-01"}.get(key)
                assert (await c.get(f"/volumes?{key}={value or '2026-01-01'}")).status == 200, key
            assert (await c.get("/resource_filters", version="3.32")).status == 404

    run(scenario())


def test_list_uses_project_of_token(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            await fill(c)
            assert await names(c, as_="project-admin") == ["c", "b", "a"]
            assert await names(c, as_="system") == []
            assert await names(c, as_="project-admin", all_tenants="1", tenant_id=DEMO) == ["c", "b", "a"]

    run(scenario())


def test_long_filters_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            for number, check in ((2000, refused), (100, names)):
                await check(c, created_at=",".join(["gt:2026-01-02T03:04:05"] * number))
                await check(c, metadata=str({f"k{n}": "v" for n in range(number)}))

    run(scenario())
