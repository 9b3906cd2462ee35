"""Flavors: list, create, describe and delete them, in all versions; and flavor access."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.flavors import model
from tests.support import run
from tests.support.cloud import DEMO, OTHER, Cloud, cloud, fault
from tests.support.route_coverage import proves

NEW: dict[str, Any] = {"name": "big", "id": "big-1", "ram": 4096, "vcpus": 2, "disk": 10}


async def create(c: Cloud, version: str = "latest", **values: Any) -> dict[str, Any]:
    answer = await c.post("/flavors", {"flavor": {**NEW, **values}}, as_="admin", version=version)
    assert answer.status == 200, answer.body
    flavor: dict[str, Any] = answer.json()["flavor"]
    return flavor


async def names(c: Cloud, query: str = "", **options: Any) -> list[str]:
    answer = await c.get(f"/flavors{query}", **options)
    assert answer.status == 200, answer.body
    return [flavor["name"] for flavor in answer.json()["flavors"]]


@proves("GET /flavors", "GET /flavors/detail", "GET /flavors/{flavor_id}")
def test_default_flavors(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            shown = (await c.get("/flavors/detail", version="latest")).json()["flavors"]
            sizes = {f["name"]: (f["id"], f["vcpus"], f["ram"], f["disk"]) for f in shown}
            assert sizes == {
                "m1.tiny": ("1", 1, 512, 1),
                "m1.small": ("2", 1, 2048, 20),
                "m1.medium": ("3", 2, 4096, 40),
                "m1.large": ("4", 4, 8192, 80),
                "m1.xlarge": ("5", 8, 16384, 160),
            }
            assert await names(c) == list(sizes)
            assert (await c.get("/flavors/4", version="latest")).json()["flavor"]["name"] == "m1.large"
            assert fault(await c.get("/flavors/nope"))[:2] == (404, "itemNotFound")

    run(scenario())


def test_fields_by_version(database_url: str) -> None:
    base = {
        *("id", "name", "ram", "disk", "vcpus", "swap", "OS-FLV-EXT-DATA:ephemeral", "os-flavor-access:is_public"),
        "links",
    }
    old = {"rxtx_factor", "OS-FLV-DISABLED:disabled"}
    expected = {
        "2.1": (base | old, {"id", "name", "links"}, ""),
        "2.54": (base | old, {"id", "name", "links"}, ""),
        "2.55": (base | old | {"description"}, {"id", "name", "links", "description"}, ""),
        "2.61": (base | old | {"description", "extra_specs"}, {"id", "name", "links", "description"}, ""),
        "2.75": (base | old | {"description", "extra_specs"}, {"id", "name", "links", "description"}, 0),
        "2.102": (base | {"description", "extra_specs"}, {"id", "name", "links", "description"}, 0),
    }

    async def scenario() -> None:
        async with cloud(database_url) as c:
            for version, (full, short, swap) in expected.items():
                flavor = (await c.get("/flavors/1", version=version)).json()["flavor"]
                assert set(flavor) == full, version
                assert flavor["swap"] == swap, version
                assert set((await c.get("/flavors", version=version)).json()["flavors"][0]) == short, version
                with_details = (await c.get("/flavors/detail", version=version)).json()["flavors"][0]
                assert set(with_details) == full, version

    run(scenario())


def test_links_have_version_and_project_of_the_request(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            links = (await c.get(f"/{DEMO}/flavors/1")).json()["flavor"]["links"]
            assert links == [
                {"rel": "self", "href": f"http://localhost/compute/v2.1/{DEMO}/flavors/1"},
                {"rel": "bookmark", "href": f"http://localhost/compute/{DEMO}/flavors/1"},
            ]

    run(scenario())


def test_pages_in_both_sort_directions(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await create(c, name="twin", id="z", ram=512, disk=1, vcpus=1)
            for order in ("flavorid", "memory_mb", "description", "updated_at", "is_public", "created_at"):
                for way in ("asc", "desc"):
                    query = f"?sort_key={order}&sort_dir={way}"
                    whole = await names(c, query)
                    path, walked = f"/flavors{query}&limit=2", []
                    while path:
                        body = (await c.get(path)).json()
                        walked += [flavor["name"] for flavor in body["flavors"]]
                        links = body.get("flavors_links", [])
                        path = links[0]["href"].partition("/v2.1")[2] if links else ""
                    assert walked == whole, query
                    assert len(set(walked)) == 6
            assert await names(c, "?sort_key=memory_mb&sort_dir=desc&limit=1") == ["m1.xlarge"]
            assert await names(c, "?limit=0") == []
            assert "marker [no] not found" in fault(await c.get("/flavors?marker=no"))[2]

    run(scenario())


@pytest.mark.parametrize(
    "query, expected",
    [
        ("?minRam=4096", ["m1.medium", "m1.large", "m1.xlarge"]),
        ("?minDisk=81", ["m1.xlarge"]),
        ("?minRam=4096&minDisk=41", ["m1.large", "m1.xlarge"]),
        ("?minRam=-1", ["m1.tiny", "m1.small", "m1.medium", "m1.large", "m1.xlarge"]),
    ],
)
def test_min_ram_and_min_disk_filters(sqlite_url: str, query: str, expected: list[str]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert await names(c, query) == expected

    run(scenario())


def test_name_filter_from_2_102_is_a_pattern(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await create(c, name="ci.m1.small", id="ci")
            both, large = ["m1.small", "ci.m1.small"], ["m1.large", "m1.xlarge"]
            for query, expected in (
                ("m1.small", both),
                ("%5Em1.small%24", ["m1.small"]),
                ("large", large),
                ("x%3Flarge%24&minRam=4096", large),
                ("M1", []),
                ("%5Em1%24", []),
                ("tiny&name=%5Eci", ["ci.m1.small"]),
            ):
                assert await names(c, f"?name={query}", version="2.102") == expected, query
            pages = "?name=small&limit=1"
            assert await names(c, pages, version="2.102") == both[:1]
            assert await names(c, f"{pages}&marker=2", version="2.102") == both[1:]
            detail = (await c.get("/flavors/detail?name=small", version="2.102")).json()["flavors"]
            assert [flavor["name"] for flavor in detail] == both
            refused = fault(await c.get("/flavors?name=%28", version="2.102"))
            assert refused[0] == 400
            assert "name" in refused[2]
            assert len(await names(c, "?name=m1.small", version="2.74")) == 6
            assert (await c.get("/flavors?name=m1.small", version="2.101")).status == 400

    run(scenario())


@pytest.mark.parametrize(
    "path, version, status",
    [
        ("/flavors?colour=red", "2.74", 200),
        ("/flavors?colour=red", "2.75", 400),
        ("/flavors/1?colour=red", "2.101", 200),
        ("/flavors/1?colour=red", "2.102", 400),
        ("/flavors?minRam=much", "2.1", 400),
        ("/flavors?limit=-1", "2.1", 400),
        ("/flavors?sort_key=colour", "2.1", 400),
        ("/flavors?sort_key=rxtx_factor", "2.101", 200),
        ("/flavors?sort_key=rxtx_factor", "2.102", 400),
        ("/flavors?sort_dir=up", "2.1", 400),
    ],
)
def test_invalid_query_keys_are_refused(sqlite_url: str, path: str, version: str, status: int) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert (await c.get(path, version=version)).status == status

    run(scenario())


@proves("POST /flavors", "DELETE /flavors/{flavor_id}")
def test_create_and_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            flavor = await create(c, description="for many", swap=16, **{"OS-FLV-EXT-DATA:ephemeral": 3})
            assert (flavor["id"], flavor["swap"], flavor["OS-FLV-EXT-DATA:ephemeral"]) == ("big-1", 16, 3)
            assert flavor["description"] == "for many"
            assert (await c.get("/flavors/big-1", version="latest")).json()["flavor"] == flavor
            assert fault(await c.post("/flavors", {"flavor": {**NEW, "id": "x"}}, as_="admin"))[:2] == (
                409,
                "conflictingRequest",
            )
            again = await c.post("/flavors", {"flavor": {**NEW, "name": "x"}}, as_="admin")
            assert "ID big-1" in fault(again)[2]
            assert (await c.delete("/flavors/big-1", as_="admin")).status == 202
            assert (await c.delete("/flavors/big-1", as_="admin")).status == 404

    run(scenario())


def test_sizes_may_be_strings_and_id_is_optional(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            flavor = await create(c, id=None, ram="4096", vcpus="2", disk=10.0, **{"os-flavor-access:is_public": "no"})
            assert len(flavor["id"]) == 36
            assert (flavor["ram"], flavor["vcpus"], flavor["disk"]) == (4096, 2, 10)
            assert flavor["os-flavor-access:is_public"] is False
            assert (await create(c, name="n", id=7))["id"] == "7"

    run(scenario())


@pytest.mark.parametrize(
    "version, change",
    [
        ("latest", {"name": ""}),
        ("latest", {"name": " padded "}),
        ("latest", {"ram": 0}),
        ("latest", {"ram": 2**31}),
        ("latest", {"ram": "lots"}),
        ("latest", {"vcpus": 1.5}),
        ("latest", {"vcpus": True}),
        ("latest", {"disk": -1}),
        ("latest", {"id": "a/b"}),
        ("latest", {"id": " a"}),
        ("latest", {"swap": None}),
        ("latest", {"colour": "red"}),
        ("latest", {"rxtx_factor": 1.0}),
        ("2.101", {"rxtx_factor": 0}),
        ("2.101", {"rxtx_factor": "0.0"}),
        ("2.54", {"description": "not yet"}),
    ],
)
def test_create_refuses_invalid_values(sqlite_url: str, version: str, change: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            answer = await c.post("/flavors", {"flavor": {**NEW, **change}}, as_="admin", version=version)
            assert fault(answer)[:2] == (400, "badRequest")
            assert len(await names(c)) == 5

    run(scenario())


def test_rxtx_factor_until_2_101(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            assert (await create(c, "2.101", rxtx_factor="2.5"))["rxtx_factor"] == 2.5

    run(scenario())


@proves("PUT /flavors/{flavor_id}")
def test_update_description_from_2_55(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            body = {"flavor": {"description": "tiny indeed"}}
            assert (await c.put("/flavors/1", body, as_="admin", version="2.54")).status == 404
            answer = await c.put("/flavors/1", body, as_="admin", version="2.55")
            assert answer.json()["flavor"]["description"] == "tiny indeed"
            assert (await c.get("/flavors/1", version="2.55")).json()["flavor"]["description"] == "tiny indeed"
            await c.put("/flavors/1", {"flavor": {"description": None}}, as_="admin", version="2.55")
            assert (await c.get("/flavors/1", version="2.55")).json()["flavor"]["description"] is None
            assert (await c.put("/flavors/no", body, as_="admin", version="2.55")).status == 404
            assert (await c.put("/flavors/1", {"flavor": {}}, as_="admin", version="2.55")).status == 400

    run(scenario())


def test_only_administrators_may_change_flavors(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert fault(await c.post("/flavors", {"flavor": NEW}, as_="manager"))[:2] == (403, "forbidden")
            assert (await c.delete("/flavors/1", as_="manager")).status == 403
            body = {"flavor": {"description": "mine"}}
            assert (await c.put("/flavors/1", body, as_="manager", version="2.55")).status == 403

    run(scenario())


def test_extra_specs_are_shown_to_readers_of_a_project(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            assert "extra_specs" in (await c.get("/flavors/1", version="2.61", as_="reader")).json()["flavor"]
            assert "extra_specs" not in (await c.get("/flavors/1", version="2.61", as_="service")).json()["flavor"]

    run(scenario())


class TestPrivateFlavors:
    @proves(
        "GET /flavors/{flavor_id}/os-flavor-access",
        "POST /flavors/{flavor_id}/action#addTenantAccess",
        "POST /flavors/{flavor_id}/action#removeTenantAccess",
    )
    def test_only_projects_with_access_see_a_private_flavor(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                await create(c, **{"os-flavor-access:is_public": False})
                access = "/flavors/big-1/os-flavor-access"
                assert (await c.get(access, as_="admin")).json() == {"flavor_access": []}
                assert (await c.get("/flavors/big-1")).status == 404
                assert "big" not in await names(c)
                add = {"addTenantAccess": {"tenant": DEMO}}
                answer = await c.post("/flavors/big-1/action", add, as_="admin")
                assert answer.json() == {"flavor_access": [{"flavor_id": "big-1", "tenant_id": DEMO}]}
                assert (await c.post("/flavors/big-1/action", add, as_="admin")).status == 409
                assert (await c.get(access, as_="admin")).json() == answer.json()
                assert (await c.get("/flavors/big-1")).status == 200
                assert "big" in await names(c)
                assert (await c.get("/flavors/big-1", as_="other")).status == 404
                assert "big" not in await names(c, as_="other")
                remove = {"removeTenantAccess": {"tenant": DEMO}}
                answer = await c.post("/flavors/big-1/action", remove, as_="admin")
                assert answer.json() == {"flavor_access": []}
                assert (await c.post("/flavors/big-1/action", remove, as_="admin")).status == 404
                assert (await c.get("/flavors/big-1")).status == 404

        run(scenario())

    def test_unknown_project_gets_no_access_and_deleted_one_loses_it(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                flavor = await create(c, **{"os-flavor-access:is_public": False})
                add = {"addTenantAccess": {"tenant": "mistyped"}}
                status, _, message = fault(await c.post("/flavors/big-1/action", add, as_="admin"))
                assert (status, message) == (400, "Project ID mistyped is not a valid project.")
                assert (await c.get("/flavors/big-1/os-flavor-access", as_="admin")).json() == {"flavor_access": []}
                async with c.db.transaction() as tx:
                    row = await tx.fetch_one("SELECT id FROM flavors WHERE flavor_id = $1", flavor["id"])
                    assert row is not None
                    await model.ACCESS.grant(tx, row["id"], "deleted")
                remove = {"removeTenantAccess": {"tenant": "deleted"}}
                answer = await c.post("/flavors/big-1/action", remove, as_="admin")
                assert answer.json() == {"flavor_access": []}

        run(scenario())

    def test_administrators_filter_by_is_public(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                await create(c, **{"os-flavor-access:is_public": False})
                assert "big" not in await names(c, as_="admin")
                assert await names(c, "?is_public=False", as_="admin") == ["big"]
                assert len(await names(c, "?is_public=None", as_="admin")) == 6
                assert len(await names(c, "?is_public=true", as_="admin")) == 5
                assert (await c.get("/flavors?is_public=perhaps", as_="admin")).status == 400
                # Ignored for other users.
                for asked in ("False", "None", "perhaps"):
                    assert len(await names(c, f"?is_public={asked}")) == 5

        run(scenario())

    def test_public_flavors_have_no_access_list(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                assert (await c.get("/flavors/1/os-flavor-access", as_="admin")).status == 404
                add = {"addTenantAccess": {"tenant": OTHER}}
                assert (await c.post("/flavors/1/action", add, as_="admin", version="2.6")).status == 200
                assert (await c.post("/flavors/2/action", add, as_="admin", version="2.7")).status == 409
                assert (await c.post("/flavors/2/action", add, as_="project-admin", version="2.7")).status == 409
                assert (await c.post("/flavors/2/action", add, as_="manager")).status == 403
                assert (await c.post("/flavors/no/action", add, as_="admin")).status == 404
                assert (await c.post("/flavors/1/action", {"addTenantAccess": {}}, as_="admin")).status == 400

        run(scenario())
