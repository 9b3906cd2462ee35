"""Version documents, the OpenAPI document and version negotiation."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.volume.support import volume_cloud


def test_version_documents_need_no_token(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            listed = await c.get("/", root="/volume", as_=None, version=None)
            assert listed.status == 300
            (shown,) = listed.json()["versions"]
            assert (shown["id"], shown["status"]) == ("v3.0", "CURRENT")
            assert (shown["min_version"], shown["version"]) == ("3.0", "3.71")
            assert {"rel": "self", "href": "http://localhost/volume/v3/"} in shown["links"]
            for path in ("/v3", "/v3/"):
                response = await c.get(path, root="/volume", as_=None, version=None)
                assert (response.status, response.json()) == (200, {"versions": [shown]})

    run(scenario())


def test_openapi_document_of_each_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            newest = (await c.get("/openapi.json", root="/volume", as_=None)).json()
            assert any(path.endswith("/volumes/summary") for path in newest["paths"])
            old = (await c.get("/openapi.json?version=3.11", root="/volume", as_=None)).json()
            assert not any(path.endswith("/volumes/summary") for path in old["paths"])

    run(scenario())


def test_version_negotiation(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for requested, spoken in (("latest", "3.71"), ("3.27", "3.27"), (None, "3.0")):
                response = await c.get("/volumes", version=requested)
                assert response.headers["openstack-api-version"] == f"volume {spoken}"
            assert (await c.get("/volumes", version="3.72")).status == 406
            assert (await c.get("/volumes", version="x")).status == 400
            assert fault(await c.get("/volumes", as_=None))[:2] == (401, "unauthorized")
            assert fault(await c.get(f"/nothing/{new_id()}"))[:2] == (404, "itemNotFound")

    run(scenario())


def test_empty_path_segments_are_not_found(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(sqlite_url, worker=False) as c:
            for path in ("/volumes/", f"/{DEMO}/volumes/", "/volumes/detail/"):
                for method in ("GET", "PUT", "DELETE"):
                    assert (await c.request(method, path)).status == 404
            assert (await c.get("/volumes/", as_=None)).status == 401

    run(scenario())
