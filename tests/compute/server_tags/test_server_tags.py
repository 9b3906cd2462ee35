"""Tags of servers: add, remove, and filter by them."""

from __future__ import annotations

from typing import Any

from tests.support import run
from tests.support.cloud import DEMO, cloud, fault, insert_server
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

TAGS = "/servers/{server_id}/tags"
TAG = TAGS + "/{tag}"
NEWEST = "2.104"


def path(server_id: str, tag: str = "") -> str:
    return f"/servers/{server_id}/tags" + (f"/{tag}" if tag else "")


@proves(*(f"{method} {each}" for method in ("GET", "PUT", "DELETE") for each in (TAGS, TAG)))
def test_add_replace_and_remove(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(tags=["new"]))["id"]
            new: dict[str, Any] = {"version": NEWEST}
            assert (await c.get(path(server_id), as_="reader", **new)).json() == {"tags": ["new"]}
            put = await c.put(path(server_id, "ä b"), None, **new)
            assert (put.status, put.body) == (201, b"")
            assert put.headers["location"].endswith(f"/compute/v2.1/servers/{server_id}/tags/%C3%A4%20b")
            again = await c.put(path(server_id, "new"), None, **new)
            assert (again.status, again.body) == (204, b"")
            assert (await c.get(path(server_id, "new"), **new)).status == 204
            assert (await c.show(server_id))["tags"] == ["new", "ä b"]
            listed = (await c.get("/servers/detail", **new)).json()["servers"]
            assert [server["tags"] for server in listed] == [["new", "ä b"]]
            assert (await c.delete(path(server_id, "new"), **new)).status == 204
            assert (await c.get(path(server_id, "new"), **new)).status == 404
            missing = (404, "itemNotFound", f"Server {server_id} has no tag 'new'")
            assert fault(await c.delete(path(server_id, "new"), **new)) == missing
            replaced = await c.put(path(server_id), {"tags": ["b", "a"]}, **new)
            assert (replaced.status, replaced.json()) == (200, {"tags": ["a", "b"]})
            assert (await c.delete(path(server_id), **new)).status == 204
            assert (await c.get(path(server_id), **new)).json() == {"tags": []}

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            new: dict[str, Any] = {"version": NEWEST}
            assert (await c.get(path(server_id), version="2.25")).status == 404
            for wrong in (["a,b"], ["a/b"], ["a" * 61], [""], [str(number) for number in range(51)]):
                assert (await c.put(path(server_id), {"tags": wrong}, **new)).status == 400, wrong
            refused = await c.put(path(server_id, "a,b"), None, **new)
            assert refused.status == 400
            assert "field/attribute tag. Value: a,b. 'a,b'" in refused.json()["badRequest"]["message"]
            assert (await c.put(path(server_id, "a" * 61), None, **new)).status == 400
            repeated = await c.put(path(server_id), {"tags": ["b", "a", "b"]}, **new)
            assert (repeated.status, repeated.json()) == (200, {"tags": ["a", "b"]})
            fifty = [str(number) for number in range(50)]
            assert (await c.put(path(server_id), {"tags": fifty}, **new)).status == 200
            assert (await c.put(path(server_id, "7"), None, **new)).status == 204
            assert (await c.put(path(server_id, "more"), None, **new)).status == 400
            assert (await c.put(path(server_id, "7"), None, as_="reader", **new)).status == 403
            assert (await c.put(path(server_id, "7"), None, as_="other", **new)).status == 404
            server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "none", "tags": ["a"]}
            assert (await c.post("/servers", {"server": server}, version="2.51")).status == 400

    run(scenario())


def test_filters_by_tags(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            servers = {"none": [], "a": ["a"], "b": ["b"], "ab": ["a", "b"], "abc": ["a", "b", "c"]}
            async with c.db.transaction() as tx:
                for name, tags in servers.items():
                    await insert_server(tx, name, project_id=DEMO)
                    for tag in tags:
                        await tx.execute("INSERT INTO server_tags (server_id, tag) VALUES ($1, $2)", name, tag)

            async def found(query: str, version: str = NEWEST) -> set[str]:
                answer = await c.get(f"/servers?{query}", version=version)
                assert answer.status == 200, answer.body
                return {server["name"] for server in answer.json()["servers"]}

            assert await found("tags=a") == {"a", "ab", "abc"}
            assert await found("tags=a,b") == {"ab", "abc"}
            assert await found("tags=a,a") == {"a", "ab", "abc"}
            assert await found("tags-any=b,c") == {"b", "ab", "abc"}
            assert await found("not-tags=a,b") == {"none", "a", "b"}
            assert await found("not-tags-any=a,c") == {"none", "b"}
            assert await found("tags=a&not-tags-any=c&tags-any=b") == {"ab"}
            assert await found("tags=a", version="2.25") == set(servers)
            assert await found("tags=") == set(servers)

    run(scenario())
