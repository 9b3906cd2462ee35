"""Metadata of volumes."""

from __future__ import annotations

from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import fault
from tests.support.route_coverage import proves
from tests.volume.support import put_volume, volume_cloud


@proves(
    "GET /volume/volumes/{volume_id}/metadata",
    "POST /volume/volumes/{volume_id}/metadata",
    "PUT /volume/volumes/{volume_id}/metadata",
    "GET /volume/volumes/{volume_id}/metadata/{key}",
    "PUT /volume/volumes/{volume_id}/metadata/{key}",
    "DELETE /volume/volumes/{volume_id}/metadata/{key}",
)
def test_metadata_is_added_replaced_and_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume = f"/volumes/{await put_volume(c.db)}"
            path = volume + "/metadata"
            assert await c.item(path) == {}
            response = await c.post(path, {"metadata": {"a": "1", "b": "2", "ä": "ö"}})
            assert (response.status, response.json()) == (200, {"metadata": {"a": "1", "b": "2", "ä": "ö"}})
            assert (await c.post(path, {"metadata": {"a": "3"}})).json()["metadata"] == {"a": "3", "b": "2", "ä": "ö"}
            assert (await c.put(path, {"metadata": {"a": "4", "b": "2"}})).json()["metadata"] == {"a": "4", "b": "2"}
            assert await c.item(path + "/a") == {"a": "4"}
            response = await c.put(path + "/c", {"meta": {"c": "5"}})
            assert (response.status, response.json()) == (200, {"meta": {"c": "5"}})
            response = await c.delete(path + "/a")
            assert (response.status, response.body) == (200, b"")
            assert await c.item(path) == {"b": "2", "c": "5"}
            assert (await c.item(volume))["metadata"] == {"b": "2", "c": "5"}
            assert (await c.item(volume))["updated_at"] is not None

    run(scenario())


def test_invalid_metadata_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            path = f"/volumes/{await put_volume(c.db)}/metadata"
            for body in ({}, {"metadata": None}, {"metadata": {"": "v"}}, {"metadata": {"k" * 256: "v"}}):
                assert (await c.post(path, body)).status == 400
            for pairs in ({"k": "v" * 256}, {"k": 1}, {"k": None}, {"k": "\0"}):
                assert (await c.put(path, {"metadata": pairs})).status == 400
            assert fault(await c.put(path + "/a", {"meta": {"b": "c"}}))[2] == "Request body and URI mismatch"
            assert (await c.put(path + "/a", {"meta": {"a": "b", "b": "c"}})).status == 400
            assert fault(await c.get(path + "/none"))[0] == 404
            assert fault(await c.delete(path + "/none"))[0] == 404
            assert await c.item(path) == {}
            missing = f"/volumes/{new_id()}/metadata"
            assert (await c.get(missing)).status == 404
            assert (await c.post(missing, {"metadata": {}})).status == 404
            assert (await c.get(path, as_="other")).status == 404
            assert (await c.delete(path + "/none", as_="reader")).status == 403

    run(scenario())


def test_replace_with_outdated_etag_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            path = f"/volumes/{await put_volume(c.db)}/metadata"
            tag = (await c.get(path)).headers["etag"]
            assert "etag" not in (await c.get(path, version="3.14")).headers
            response = await c.put(path, {"metadata": {"a": "1"}}, headers={"If-Match": tag})
            assert response.status == 200
            response = await c.put(path, {"metadata": {"a": "2"}}, headers={"If-Match": tag})
            assert fault(response)[:2] == (412, "preconditionFailed")
            assert await c.item(path) == {"a": "1"}
            response = await c.put(path, {"metadata": {"a": "3"}}, headers={"If-Match": tag}, version="3.14")
            assert response.status == 200
            now = (await c.get(path)).headers["etag"]
            response = await c.put(path, {"metadata": {}}, headers={"If-Match": f'"x", {now}'})
            assert response.status == 200

    run(scenario())
