"""Access rules over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from tests.share.support import share_cloud
from tests.support import run
from tests.support.route_coverage import proves


@proves(
    "POST /share/shares/{share_id}/action#allow_access",
    "POST /share/shares/{share_id}/action#deny_access",
    "GET /share/share-access-rules",
    "GET /share/share-access-rules/{rule_id}",
    "PUT /share/share-access-rules/{rule_id}/metadata",
    "DELETE /share/share-access-rules/{rule_id}/metadata/{key}",
)
def test_allow_list_and_deny(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            share_id = await c.create()
            allowed = await c.allow(share_id, "10.1.2.3/16", access_level="ro", metadata={"k": "v"})
            assert allowed.status == 200, allowed.body
            rule = allowed.json()["access"]
            assert (rule["access_to"], rule["access_level"], rule["state"]) == ("10.1.0.0/16", "ro", "active")
            again = await c.allow(share_id, "10.1.0.0/16")
            assert (again.status, "exists" in str(again.body)) == (400, True)
            (listed,) = (await c.get(f"/share-access-rules?share_id={share_id}")).json()["access_list"]
            assert listed["metadata"] == {"k": "v"}
            path = f"/share-access-rules/{rule['id']}"
            assert (await c.item(path))["share_id"] == share_id
            assert (await c.get(path, as_="other")).status == 404
            assert (await c.put(f"{path}/metadata", {"metadata": {"l": "w"}})).status == 200
            assert (await c.delete(f"{path}/metadata/k")).status == 200
            assert (await c.item(path))["metadata"] == {"l": "w"}
            assert (await c.get("/share-access-rules")).status == 400
            assert (await c.act(share_id, "deny_access", {"access_id": rule["id"]})).status == 202
            assert (await c.get(path)).status == 404
            assert (await c.act(share_id, "deny_access", {"access_id": rule["id"]})).status == 404

    run(scenario())


def test_parallel_changes_of_metadata_are_all_kept(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            path = f"/share-access-rules/{(await c.allow(await c.create(), '10.0.0.1')).json()['access']['id']}"
            items = {f"k{number}": "v" for number in range(8)}
            await asyncio.gather(*(c.put(f"{path}/metadata", {"metadata": {key: "v"}}) for key in items))
            assert (await c.item(path))["metadata"] == items
            await asyncio.gather(*(c.delete(f"{path}/metadata/{key}") for key in items))
            assert (await c.item(path))["metadata"] == {}

    run(scenario())


@pytest.mark.parametrize(("kind", "to"), [("user", "alice"), ("ip", "alice"), ("ip", "10.0.0.0/33")])
def test_rules_that_the_protocol_lacks_are_refused(kind: str, to: str, sqlite_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(sqlite_url) as c:
            refused = await c.act(await c.create(), "allow_access", {"access_type": kind, "access_to": to})
            assert (refused.status, "access_t" in str(refused.body)) == (400, True)

    run(scenario())


def test_locked_rule_is_hidden_and_stays(database_url: str) -> None:
    """What compute does: only the service sees and deletes its rule."""

    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            share_id = await c.create()
            locked = {"lock_visibility": True, "lock_deletion": True, "lock_reason": "in use"}
            rule = (await c.allow(share_id, "10.0.0.7", as_="kilonova", **locked)).json()["access"]
            assert rule["access_to"] == "10.0.0.7"
            listing = f"/share-access-rules?share_id={share_id}"
            assert (await c.get(listing)).json()["access_list"][0]["access_to"] == "******"
            assert (await c.get(listing, as_="kilonova")).json()["access_list"][0]["access_to"] == "10.0.0.7"
            refused = await c.act(share_id, "deny_access", {"access_id": rule["id"]})
            assert (refused.status, "in use" in str(refused.body)) == (403, True)
            forced = {"access_id": rule["id"], "unrestrict": True}
            assert (await c.act(share_id, "deny_access", forced)).status == 403
            assert (await c.act(share_id, "deny_access", forced, as_="kilonova")).status == 202
            assert (await c.get("/resource-locks?all_projects=1", as_="admin")).json() == {"resource_locks": []}

    run(scenario())
