"""Resource locks over HTTP."""

from __future__ import annotations

from typing import Any

from tests.share.support import ShareCloud, share_cloud
from tests.support import run
from tests.support.route_coverage import proves


async def lock(c: ShareCloud, share_id: str, as_: str = "member", **values: Any) -> Any:
    return await c.post("/resource-locks", {"resource_lock": {"resource_id": share_id, **values}}, as_=as_)


@proves(
    "POST /share/resource-locks",
    "GET /share/resource-locks/{lock_id}",
    "PUT /share/resource-locks/{lock_id}",
    "DELETE /share/resource-locks/{lock_id}",
)
def test_locked_share_is_not_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            share_id = await c.create()
            made = await lock(c, share_id, lock_reason="keep")
            assert made.status == 200, made.body
            shown = made.json()["resource_lock"]
            assert (shown["lock_context"], shown["resource_action"], shown["resource_type"]) == (
                "user",
                "delete",
                "share",
            )
            assert (await lock(c, share_id, lock_reason="keep")).status == 409
            refused = await c.delete(f"/shares/{share_id}")
            assert (refused.status, "keep" in str(refused.body)) == (403, True)
            assert (await c.act(share_id, "force_delete", as_="admin")).status == 403
            path = f"/resource-locks/{shown['id']}"
            assert (await c.item(path))["lock_reason"] == "keep"
            assert (await c.get(path, as_="other")).status == 404
            assert (await c.put(path, {"resource_lock": {"lock_reason": "still"}})).json()["resource_lock"][
                "lock_reason"
            ] == "still"
            assert (await c.put(path, {"resource_lock": {"resource_action": "show"}})).status == 400
            assert (await c.delete(path)).status == 204
            assert (await c.delete(f"/shares/{share_id}")).status == 202

    run(scenario())


@proves(
    "GET /share/resource-locks",
)
def test_lock_of_a_service_stays(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            share_id = await c.create()
            made = (await lock(c, share_id, as_="kilonova", lock_reason="server")).json()["resource_lock"]
            assert made["lock_context"] == "admin"
            # The lock belongs to the project of the service.
            assert (await c.get("/resource-locks")).json() == {"resource_locks": []}
            assert (await c.delete(f"/resource-locks/{made['id']}")).status == 404
            assert (await c.delete(f"/shares/{share_id}")).status == 403
            listed = await c.get(f"/resource-locks?all_projects=1&resource_id={share_id}&with_count=1", as_="admin")
            assert (listed.json()["count"], listed.json()["resource_locks"][0]["id"]) == (1, made["id"])
            assert (await c.delete(f"/resource-locks/{made['id']}", as_="kilonova")).status == 204

    run(scenario())


def test_lock_of_an_administrator_of_the_project_stays(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            share_id = await c.create()
            made = (await lock(c, share_id, as_="project-admin")).json()["resource_lock"]
            assert made["lock_context"] == "admin"
            assert (await c.delete(f"/resource-locks/{made['id']}")).status == 403

    run(scenario())


def test_only_visible_resources_are_locked(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            share_id = await c.create()
            assert (await lock(c, share_id, as_="other")).status == 404
            assert (await lock(c, share_id, as_="reader")).status == 403
            assert (await lock(c, share_id, resource_type="access_rule")).status == 404
            rule = (await c.allow(share_id, "10.0.0.1")).json()["access"]["id"]
            assert (await lock(c, rule, resource_type="access_rule", resource_action="show")).status == 200

    run(scenario())
