"""Version documents, choices of versions, and extensions."""

from __future__ import annotations

from tests.support import run
from tests.support.cloud import DEMO, cloud
from tests.support.route_coverage import proves

RANGE = {"version": "2.106", "min_version": "2.1"}


@proves("GET /", "GET /v2.1", "GET /v2", "GET /versions/{version_id}")
def test_versions_need_no_token(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            answer = await c.get("/", root="/compute", as_=None)
            assert answer.status == 200
            old, new = answer.json()["versions"]
            assert (old["id"], old["status"], old["version"], old["min_version"]) == ("v2.0", "DEPRECATED", "", "")
            assert (new["id"], new["status"]) == ("v2.1", "CURRENT")
            assert new.items() >= RANGE.items()
            assert new["links"] == [{"rel": "self", "href": "http://localhost/compute/v2.1/"}]
            for path in ("/v2.1", "/v2.1/"):
                shown = (await c.get(path, root="/compute", as_=None)).json()["version"]
                assert shown.items() >= {**RANGE, "id": "v2.1", "status": "CURRENT"}.items()
                assert {link["rel"] for link in shown["links"]} == {"self", "describedby"}
                assert shown["media-types"][0]["type"] == "application/vnd.openstack.compute+json;version=2.1"
            shown = (await c.get("/v2/", root="/compute", as_=None)).json()["version"]
            assert (shown["id"], shown["version"], shown["links"][0]["href"]) == (
                *("v2.0", ""),
                "http://localhost/compute/v2/",
            )
            assert (await c.get("/versions/v2.1")).json()["version"]["id"] == "v2.1"
            assert (await c.get("/versions/v3")).status == 404

    run(scenario())


def test_path_without_version_gets_choices(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            answer = await c.get("/servers/1", root="/compute", as_=None)
            assert answer.status == 300
            links = {choice["id"]: choice["links"][0]["href"] for choice in answer.json()["choices"]}
            assert links == {
                "v2.0": "http://localhost/compute/v2/servers/1",
                "v2.1": "http://localhost/compute/v2.1/servers/1",
            }

    run(scenario())


def test_links_have_the_host_of_the_request(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            headers = {"Host": "cloud.example:8774"}
            shown = (await c.get("/v2.1", root="/compute", as_=None, headers=headers)).json()["version"]
            assert shown["links"][0]["href"] == "http://cloud.example:8774/compute/v2.1/"

    run(scenario())


@proves("GET /extensions", "GET /extensions/{alias}")
def test_extensions(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            listed = (await c.get("/extensions")).json()["extensions"]
            assert len(listed) == 100
            shown = (await c.get("/extensions/os-keypairs")).json()["extension"]
            assert shown["name"] == "Keypairs"
            assert shown in listed
            assert (await c.get("/extensions/os-nothing")).status == 404
            assert (await c.get("/extensions", as_=None)).status == 401
            assert (await c.get(f"/{DEMO}/extensions")).status == 200
            assert (await c.get("/extensions?a=b", version="2.101")).status == 200
            assert (await c.get("/extensions?a=b", version="2.102")).status == 400

    run(scenario())
