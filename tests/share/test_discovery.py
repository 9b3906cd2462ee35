"""Version documents, share types, services and zones."""

from __future__ import annotations

from kilonova.share.types import DEFAULT_ID
from tests.share.support import share_cloud
from tests.support import run
from tests.support.route_coverage import proves


def test_documents(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url, worker=False) as c:
            for path, status in (("/", 300), ("/v2", 200), ("/v2/", 200)):
                response = await c.get(path, root="/share", as_=None, version=None)
                assert response.status == status
                (version,) = response.json()["versions"]
                assert (version["id"], version["version"], version["min_version"]) == ("v2.0", "2.82", "2.55")
            assert (await c.get("/openapi.json", root="/share", as_=None)).status == 200

    run(scenario())


@proves(
    "GET /share/types",
    "GET /share/types/default",
    "GET /share/types/{type_id}",
    "GET /share/types/{type_id}/extra_specs",
    "GET /share/services",
    "GET /share/availability-zones",
)
def test_share_types_services_and_zones(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url, worker=False) as c:
            (listed,) = (await c.get("/types")).json()["share_types"]
            assert (listed["id"], listed["is_default"]) == (DEFAULT_ID, True)
            for name in ("default", DEFAULT_ID):
                assert (await c.get(f"/types/{name}")).json()["share_type"] == listed
            assert (await c.get("/types/other")).status == 404
            assert (await c.get(f"/types/{DEFAULT_ID}/extra_specs")).status == 200
            assert (await c.get("/services")).status == 403
            services = (await c.get("/services?binary=manila-share", as_="admin")).json()["services"]
            assert [service["host"] for service in services] == ["kilonova@directory"]
            assert (await c.get("/availability-zones")).json()["availability_zones"][0]["name"] == "nova"

    run(scenario())
