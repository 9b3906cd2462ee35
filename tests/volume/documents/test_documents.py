"""What the volume service says of itself, and how it answers who asks in a wrong way."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.volume.support import volume_cloud


def test_the_version_documents_are_for_everybody(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            listed = await c.get("/", root="/volume", as_=None, version=None)
            assert listed.status == 300
            (shown,) = listed.json()["versions"]
            assert (shown["id"], shown["status"]) == ("v3.0", "CURRENT")
            assert (shown["min_version"], shown["version"]) == ("3.0", "3.71")
            assert {"rel": "self", "href": "http://localhost/volume/v3/"} in shown["links"]
            for path in ("/v3", "/v3/"):
                answer = await c.get(path, root="/volume", as_=None, version=None)
                assert (answer.status, answer.json()) == (200, {"versions": [shown]})

    run(scenario())


def test_the_api_is_described_at_each_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            newest = (await c.get("/openapi.json", root="/volume", as_=None)).json()
            assert any(path.endswith("/volumes/summary") for path in newest["paths"])
            old = (await c.get("/openapi.json?version=3.11", root="/volume", as_=None)).json()
            assert not any(path.endswith("/volumes/summary") for path in old["paths"])

    run(scenario())


def test_versions_are_negotiated(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for asked, spoken in (("latest", "3.71"), ("3.27", "3.27"), (None, "3.0")):
                answer = await c.get("/volumes", version=asked)
                assert answer.headers["openstack-api-version"] == f"volume {spoken}"
            assert (await c.get("/volumes", version="3.72")).status == 406
            assert (await c.get("/volumes", version="x")).status == 400
            assert fault(await c.get("/volumes", as_=None))[:2] == (401, "unauthorized")
            assert fault(await c.get(f"/nothing/{new_id()}"))[:2] == (404, "itemNotFound")

    run(scenario())


def test_nothing_has_an_empty_name(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for path in ("/volumes/", f"/{DEMO}/volumes/", "/volumes/detail/"):
                for method in ("GET", "PUT", "DELETE"):
                    assert (await c.request(method, path)).status == 404
            assert (await c.get("/volumes/", as_=None)).status == 401

    run(scenario())
