"""Server groups: create, list, show and delete them, in all versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import run
from tests.support.cloud import ADMIN, DEMO, Cloud, cloud, fault
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-2222-3333-4444-555555555555"


async def create(c: Cloud, name: str = "g", version: str = "2.64", as_: str = "member", **keys: Any) -> dict[str, Any]:
    body = {"server_group": {"name": name, **({"policy": "anti-affinity"} | keys)}}
    answer = await c.post("/os-server-groups", body, version=version, as_=as_)
    assert answer.status == 200, answer.body
    group: dict[str, Any] = answer.json()["server_group"]
    return group


async def names(c: Cloud, query: str = "", **options: Any) -> list[str]:
    answer = await c.get(f"/os-server-groups{query}", **options)
    assert answer.status == 200, answer.body
    return [group["name"] for group in answer.json()["server_groups"]]


async def refused(c: Cloud, version: str, **keys: Any) -> int:
    before = await c.db.fetch_value("SELECT COUNT(*) FROM server_groups")
    answer = await c.post("/os-server-groups", {"server_group": {"name": "g", **keys}}, version=version)
    assert answer.status >= 400, answer.body
    assert await c.db.fetch_value("SELECT COUNT(*) FROM server_groups") == before
    return fault(answer)[0]


@proves(
    "POST /os-server-groups",
    "GET /os-server-groups",
    "GET /os-server-groups/{group_id}",
    "DELETE /os-server-groups/{group_id}",
)
def test_create_show_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            made = await create(c, rules={"max_server_per_host": "3"}, version="latest")
            assert made == {
                "id": made["id"],
                "name": "g",
                "policy": "anti-affinity",
                "rules": {"max_server_per_host": 3},
                "members": [],
                "project_id": DEMO,
                "user_id": "member-id",
            }
            path = f"/os-server-groups/{made['id']}"
            assert (await c.get(path, version="latest")).json() == {"server_group": made}
            assert (await c.get("/os-server-groups", version="latest")).json() == {"server_groups": [made]}
            gone = await c.delete(path, version="latest")
            assert (gone.status, gone.body) == (204, b"")
            assert fault(await c.get(path)) == (
                404,
                "itemNotFound",
                f"Instance group {made['id']} could not be found.",
            )
            assert (await c.delete(path)).status == 404

    run(scenario())


class TestVersions:
    def test_fields_by_version(self, database_url: str) -> None:
        oldest = {"id", "name", "policies", "members", "metadata"}
        owned = oldest | {"project_id", "user_id"}
        newest = {"id", "name", "policy", "rules", "members", "project_id", "user_id"}

        async def scenario() -> None:
            async with cloud(database_url) as c:
                group = await create(c, policy="soft-affinity")
                assert group["rules"] == {}
                for version, keys in (("2.1", oldest), ("2.12", oldest), ("2.13", owned), ("2.63", owned)):
                    shown = (await c.get(f"/os-server-groups/{group['id']}", version=version)).json()["server_group"]
                    assert set(shown) == keys, version
                    assert (shown["policies"], shown["metadata"]) == (["soft-affinity"], {})
                shown = (await c.get("/os-server-groups", version="2.64")).json()["server_groups"][0]
                assert set(shown) == newest

        run(scenario())

    def test_policies_list_below_2_64(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                for version, policy in (("2.1", "affinity"), ("2.14", "anti-affinity"), ("2.15", "soft-affinity")):
                    body = {"server_group": {"name": policy, "policies": [policy]}}
                    answer = await c.post("/os-server-groups", body, version=version)
                    assert answer.status == 200, answer.body
                    made = answer.json()["server_group"]
                    assert made["policies"] == [policy]
                    newest = (await c.get(f"/os-server-groups/{made['id']}", version="2.64")).json()["server_group"]
                    assert (newest["policy"], newest["rules"]) == (policy, {})
                assert await refused(c, "2.14", policies=["soft-affinity"]) == 400
                assert await refused(c, "2.63", policies=[]) == 400
                assert await refused(c, "2.63", policies=["affinity", "anti-affinity"]) == 400
                assert await refused(c, "2.63", policies=["affinity"], rules={}) == 400
                assert await refused(c, "2.63", policy="affinity") == 400
                assert await refused(c, "2.64", policies=["affinity"]) == 400

        run(scenario())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"policy": "storage-affinity"},
        {"policy": None},
        {"policy": "affinity", "name": ""},
        {"policy": "affinity", "name": "x" * 256},
        {"policy": "affinity", "metadata": {}},
        {"policy": "affinity", "rules": {"max_server_per_host": 1}},
        {"policy": "soft-anti-affinity", "rules": {"max_server_per_host": 2}},
        {"policy": "anti-affinity", "rules": {"max_server_per_host": 0}},
        {"policy": "anti-affinity", "rules": {"max_server_per_host": "many"}},
        {"policy": "anti-affinity", "rules": {"most": 2}},
        {"policy": "anti-affinity", "rules": []},
    ],
)
def test_invalid_bodies_are_refused(database_url: str, keys: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            assert await refused(c, "2.64", **keys) == 400

    run(scenario())


class TestOwners:
    def test_projects_see_their_own(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                mine = await create(c, "mine")
                await create(c, "theirs", as_="other")
                assert await names(c) == await names(c, as_="reader") == ["mine"]
                # Callers who may not list all projects get their own groups.
                assert await names(c, "?all_projects=True") == ["mine"]
                assert await names(c, as_="admin") == []
                assert await names(c, "?all_projects", as_="admin") == ["mine", "theirs"]
                assert await names(c, "?all_projects=0", as_="project-admin") == ["mine", "theirs"]
                path = f"/os-server-groups/{mine['id']}"
                for caller, status in (("other", 404), ("reader", 403)):
                    assert (await c.delete(path, as_=caller)).status == status
                assert (await c.get(path, as_="other")).status == 404
                assert (await c.get(path, as_="admin")).status == 200
                assert (await c.delete(path, as_="admin")).status == 204

        run(scenario())

    def test_readers_cannot_create_groups(self, database_url: str) -> None:
        async def scenario() -> None:
            async with cloud(database_url) as c:
                body = {"server_group": {"name": "g", "policies": ["affinity"]}}
                for caller in ("reader", "system"):
                    assert fault(await c.post("/os-server-groups", body, as_=caller))[:2] == (403, "forbidden")

        run(scenario())


def test_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, api__max_limit=3) as c:
            for number in range(5):
                await create(c, f"g{number}")
            assert await names(c) == ["g0", "g1", "g2"]
            assert await names(c, "?limit=2") == ["g0", "g1"]
            assert await names(c, "?limit=2&offset=2") == ["g2", "g3"]
            assert await names(c, "?offset=3") == ["g3", "g4"]
            assert await names(c, "?offset=9") == []
            assert await names(c, "?limit=0") == []
            for query in ("?limit=-1", "?limit=x", "?offset=-1", "?offset=x"):
                assert (await c.get(f"/os-server-groups{query}")).status == 400
            assert await names(c, "?colour=red", version="2.74") == ["g0", "g1", "g2"]
            assert (await c.get("/os-server-groups?colour=red", version="2.75")).status == 400
            group = f"/os-server-groups/{UNKNOWN_ID}?colour=red"
            assert (await c.get(group, version="2.101")).status == 404
            assert (await c.get(group, version="2.102")).status == 400

    run(scenario())


def test_quota_with_concurrent_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, quota__server_groups=3) as c:
            body = {"server_group": {"name": "g", "policies": ["affinity"]}}
            answers = await asyncio.gather(*(c.post("/os-server-groups", body) for _ in range(8)))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [403] * 5
            message = next(fault(answer)[2] for answer in answers if answer.status == 403)
            assert message == "Quota exceeded, too many server groups."
            await create(c, as_="admin")
            assert await c.db.fetch_value("SELECT COUNT(*) FROM server_groups WHERE project_id = $1", ADMIN) == 1
            granted = next(answer for answer in answers if answer.status == 200)
            await c.delete(f"/os-server-groups/{granted.json()['server_group']['id']}")
            await create(c)

    run(scenario())
