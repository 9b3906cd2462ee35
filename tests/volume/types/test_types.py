"""Volume types: routes, visibility, extra specs and defaults."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.volume.support import TYPE, VolumeCloud, put_volume, volume_cloud


async def make(c: VolumeCloud, name: str = "fast", **keys: Any) -> dict[str, Any]:
    response = await c.post("/types", {"volume_type": {"name": name, **keys}}, as_="admin")
    assert response.status == 200, response.body
    created: dict[str, Any] = response.json()["volume_type"]
    return created


async def names(c: VolumeCloud, query: str = "", **options: Any) -> list[str]:
    response = await c.get(f"/types{query}", **options)
    assert response.status == 200, response.body
    return [shown["name"] for shown in response.json()["volume_types"]]


def private(name: str) -> dict[str, Any]:
    return {"name": name, "os-volume-type-access:is_public": False}


def test_create_show_update_and_delete_type(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            specs = {"multiattach": "<is> True", "secret": "rack 7"}
            created = await make(c, description="d", extra_specs=specs)
            path = f"/types/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "fast",
                "description": "d",
                "is_public": True,
                "os-volume-type-access:is_public": True,
                "extra_specs": specs,
            }
            assert await c.item(path, as_="admin") == {**created, "qos_specs_id": None}
            assert await c.item(path) == {**created, "extra_specs": {"multiattach": "<is> True"}}

            new = {"name": "faster", "description": "e", "is_public": False}
            changed = await c.put(path, {"volume_type": new}, as_="admin")
            assert changed.json()["volume_type"] == {"id": created["id"], "extra_specs": specs, **new}
            assert fault(await c.get(path)) == (
                404,
                "itemNotFound",
                f"Volume type {created['id']} could not be found.",
            )
            published = {"os-volume-type-access:is_public": "True"}
            assert (await c.put(path, {"volume_type": published}, as_="admin")).status == 200
            assert (await c.item(path))["name"] == "faster"

            assert (await c.delete(path, as_="admin")).status == 202
            assert (await c.get(path, as_="admin")).status == 404

    run(scenario())


def test_invalid_type_requests_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await make(c)
            other = await make(c, "other")
            twice = await c.post("/types", {"volume_type": {"name": "fast"}}, as_="admin")
            assert fault(twice) == (409, "conflictingRequest", "Volume Type fast already exists.")
            renamed = await c.put(f"/types/{other['id']}", {"volume_type": {"name": "fast"}}, as_="admin")
            assert fault(renamed)[0] == 409
            for body in ({}, {"name": " "}, {"name": None}, {"unknown": 1}):
                assert fault(await c.put(f"/types/{created['id']}", {"volume_type": body}, as_="admin"))[0] == 400, body
            for body in ({"name": ""}, {"name": "x" * 256}, {"name": "n", "extra_specs": ["a"]}, {}):
                assert fault(await c.post("/types", {"volume_type": body}, as_="admin"))[0] == 400, body
            for method, path in (
                ("POST", "/types"),
                ("PUT", f"/types/{created['id']}"),
                ("DELETE", f"/types/{created['id']}"),
            ):
                response = await c.request(method, path, json={"volume_type": {"name": "n"}}, as_="manager")
                assert fault(response)[0] == 403, path

    run(scenario())


def test_used_and_default_types_cannot_be_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await make(c)
            await put_volume(c.db, type_id=created["id"])
            refused = await c.delete(f"/types/{created['id']}", as_="admin")
            assert fault(refused) == (400, "badRequest", "Target volume type is still in use.")
            assert "default" in fault(await c.delete(f"/types/{TYPE}", as_="admin"))[2]
            for body in ({"name": "n"}, {"is_public": False}):
                assert fault(await c.put(f"/types/{TYPE}", {"volume_type": body}, as_="admin"))[0] == 400
            described = await c.put(f"/types/{TYPE}", {"volume_type": {"description": "d"}}, as_="admin")
            assert described.status == 200
            assert await names(c) == ["fast", "__DEFAULT__"]

    run(scenario())


def test_type_deleted_during_request_is_not_found(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = (await make(c))["id"]
            volume_id = await put_volume(c.db)
            asking = (
                c.post("/volumes", {"volume": {"size": 1, "volume_type": created}}),
                c.post(f"/volumes/{volume_id}/action", {"os-retype": {"new_type": created}}),
                c.put(f"/default-types/{DEMO}", {"default_type": {"volume_type": created}}, as_="admin"),
            )
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM volume_types WHERE id = $1", created)
                requested = [asyncio.create_task(each) for each in asking]
                await asyncio.sleep(0.1)  # the requests have found the type and wait for the lock
            assert [(await response).status for response in requested] == [404, 404, 404]

    run(scenario())


def test_private_type_is_visible_to_projects_with_access(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await make(c, **private("hidden"))
            path = f"/types/{created['id']}"
            assert await names(c) == ["__DEFAULT__"]
            assert await names(c, "?is_public=none") == ["__DEFAULT__"]
            assert await names(c, as_="admin") == ["__DEFAULT__"]
            assert await names(c, "?is_public=none", as_="admin") == ["hidden", "__DEFAULT__"]
            assert await names(c, "?is_public=false", as_="admin") == ["hidden"]
            assert fault(await c.get("/types?is_public=perhaps", as_="admin"))[0] == 400

            grant = {"addProjectAccess": {"project": DEMO}}
            assert fault(await c.post(f"{path}/action", grant))[0] == 403
            assert (await c.post(f"{path}/action", grant, as_="admin")).status == 202
            assert fault(await c.post(f"{path}/action", grant, as_="admin"))[0] == 409
            access = await c.get(f"{path}/os-volume-type-access", as_="admin")
            assert access.json() == {"volume_type_access": [{"volume_type_id": created["id"], "project_id": DEMO}]}
            assert (await names(c), await names(c, as_="other")) == (["hidden", "__DEFAULT__"], ["__DEFAULT__"])
            volume = {"volume": {"size": 1, "volume_type": "hidden"}}
            assert (await c.post("/volumes", volume)).status == 202
            assert fault(await c.post("/volumes", volume, as_="other"))[0] == 404

            revoke = {"removeProjectAccess": {"project": DEMO}}
            assert (await c.post(f"{path}/action", revoke, as_="admin")).status == 202
            assert fault(await c.post(f"{path}/action", revoke, as_="admin"))[0] == 404
            assert await names(c) == ["__DEFAULT__"]
            assert fault(await c.post("/volumes", volume))[0] == 404

            public = f"/types/{TYPE}"
            assert fault(await c.get(f"{public}/os-volume-type-access", as_="admin"))[0] == 404
            assert fault(await c.post(f"{public}/action", grant, as_="admin"))[0] == 400

    run(scenario())


def test_extra_specs_of_type(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await make(c)
            path = f"/types/{created['id']}/extra_specs"
            given = {"extra_specs": {"a": "1", "multiattach": "<is> True"}}
            added = await c.post(path, given, as_="admin")
            assert (added.status, added.json()) == (200, given)
            assert (await c.put(f"{path}/a", {"a": "2"}, as_="admin")).json() == {"a": "2"}
            assert (await c.get(path, as_="admin")).json()["extra_specs"] == {"a": "2", "multiattach": "<is> True"}
            assert (await c.get(f"{path}/a", as_="admin")).json() == {"a": "2"}
            # Users see only some extra specs.
            assert (await c.get(path)).json()["extra_specs"] == {"multiattach": "<is> True"}
            assert fault(await c.get(f"{path}/a"))[0] == 404

            for body in ({"b": "1"}, {"a": "1", "b": "1"}, {}, None):
                assert fault(await c.put(f"{path}/a", body, as_="admin"))[0] == 400, body
            for body in ({"extra_specs": None}, {"extra_specs": ["a"]}, {"extra_specs": {"/": "1"}}, {}):
                assert fault(await c.post(path, body, as_="admin"))[0] == 400, body
            assert fault(await c.post(path, given))[0] == 403
            nowhere = f"/types/{new_id()}/extra_specs"
            assert fault(await c.post(nowhere, given, as_="admin"))[0] == 404
            assert fault(await c.get(nowhere, as_="admin"))[0] == 404

            assert (await c.delete(f"{path}/a", as_="admin")).status == 202
            assert fault(await c.delete(f"{path}/a", as_="admin"))[2] == (
                f"Volume Type {created['id']} has no extra specs with key a."
            )

    run(scenario())


def test_extra_spec_without_value(database_url: str) -> None:
    """The API accepts null. Such a type is shown, and requires nothing of the back end."""

    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            specs = {"compression": None, "multiattach": None}
            created = await make(c, extra_specs=specs)
            assert (await c.item(f"/types/{created['id']}", as_="admin"))["extra_specs"] == specs
            assert "fast" in await names(c)
            volume = await c.post("/volumes", {"volume": {"size": 1, "volume_type": "fast"}})
            assert (volume.status, volume.json()["volume"]["multiattach"]) == (202, False)
            volume_id = await put_volume(c.db)
            retype = {"os-retype": {"new_type": "fast", "migration_policy": "never"}}
            assert (await c.post(f"/volumes/{volume_id}/action", retype)).status == 202

    run(scenario())


@pytest.mark.parametrize("value, several", [("<is> True", True), ("<is> False", False), ("True", False)])
def test_multiattach_type_makes_multiattach_volumes(database_url: str, value: str, several: bool) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            await make(c, extra_specs={"multiattach": value})
            created = await c.post("/volumes", {"volume": {"size": 1, "volume_type": "fast"}})
            assert (await c.item(f"/volumes/{created.json()['volume']['id']}"))["multiattach"] is several

    run(scenario())


def test_types_are_filtered_sorted_and_paged(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            for name in ("b", "a", "c"):
                await make(c, name, extra_specs={"multiattach": "<is> True"} if name == "a" else {})
            wanted = "?extra_specs=%7B%27multiattach%27%3A%20%27%3Cis%3E%20True%27%7D"
            assert await names(c, wanted) == ["a"]
            assert len(await names(c, wanted, version="3.51")) == 4
            for bad in ("x", "%5B1%5D"):
                assert fault(await c.get(f"/types?extra_specs={bad}"))[0] == 400
            assert await names(c, "?sort=name:asc") == ["__DEFAULT__", "a", "b", "c"]
            assert await names(c, "?sort_key=name&sort_dir=desc") == ["c", "b", "a", "__DEFAULT__"]
            assert await names(c, "?sort=name:asc&offset=1&limit=2") == ["a", "b"]
            assert fault(await c.get("/types?sort=secret"))[0] == 400
            assert fault(await c.get("/types?marker=nobody"))[0] == 400
            page = (await c.get("/types?sort=name:asc&limit=3")).json()
            link = page["volume_types_links"][0]["href"].partition("/types")[2]
            assert await names(c, link) == ["c"]

    run(scenario())


def test_default_type_of_project(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            created = await make(c)
            assert (await c.item("/types/default"))["id"] == TYPE
            path = f"/default-types/{DEMO}"
            body = {"default_type": {"volume_type": "fast"}}
            assert fault(await c.get(path, as_="admin"))[0] == 404
            assert (await c.put(path, body, as_="admin", version="3.61")).status == 404
            response = await c.put(path, body, as_="admin")
            assert response.json() == {"default_type": {"project_id": DEMO, "volume_type_id": created["id"]}}
            assert await c.item(path, as_="admin") == response.json()["default_type"]
            listed = await c.get("/default-types", as_="admin")
            assert listed.json() == {"default_types": [response.json()["default_type"]]}
            assert (await c.item("/types/default"))["id"] == created["id"]
            assert (await c.item("/types/default", as_="other"))["id"] == TYPE
            made_volume = (await c.post("/volumes", {"volume": {"size": 1}})).json()["volume"]
            assert made_volume["volume_type"] == "fast"
            others = (await c.post("/volumes", {"volume": {"size": 1}}, as_="other")).json()["volume"]
            assert others["volume_type"] == "__DEFAULT__"

            assert fault(await c.delete(f"/types/{created['id']}", as_="admin"))[0] == 400
            unknown = {"default_type": {"volume_type": "none"}}
            assert fault(await c.put(path, unknown, as_="admin"))[0] == 404
            assert fault(await c.put("/default-types/nobody", body, as_="admin"))[0] == 400
            assert fault(await c.put(path, body))[0] == 403
            assert (await c.delete(path, as_="admin")).status == 204
            assert (await c.item("/types/default"))["id"] == TYPE

    run(scenario())


def test_encryption_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            path = f"/types/{TYPE}/encryption"
            assert (await c.get(path, as_="admin")).json() == {}
            body = {"encryption": {"provider": "luks", "control_location": "front-end"}}
            assert "not supported" in fault(await c.post(path, body, as_="admin"))[2]
            assert fault(await c.post(f"/types/{new_id()}/encryption", body, as_="admin"))[0] == 404

    run(scenario())
