"""Quotas and limits over HTTP."""

from __future__ import annotations

import asyncio

from tests.share.support import share_cloud
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.route_coverage import proves


@proves(
    "GET /share/limits",
)
def test_quota_limits_shares(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url, share_quota__shares=2) as c:
            body = {"share": {"share_proto": "NFS", "size": 3}}
            answers = await asyncio.gather(*(c.post("/shares", body) for _ in range(5)))
            assert sorted(answer.status for answer in answers) == [200, 200, 413, 413, 413]
            limits = (await c.get("/limits")).json()["limits"]["absolute"]
            assert (limits["maxTotalShares"], limits["totalSharesUsed"], limits["totalShareGigabytesUsed"]) == (2, 2, 6)

    run(scenario())


@proves(
    "GET /share/quota-sets/{project_id}",
    "PUT /share/quota-sets/{project_id}",
    "DELETE /share/quota-sets/{project_id}",
    "GET /share/quota-sets/{project_id}/detail",
    "GET /share/quota-sets/{project_id}/defaults",
)
def test_quota_sets(database_url: str) -> None:
    async def scenario() -> None:
        async with share_cloud(database_url) as c:
            path = f"/quota-sets/{DEMO}"
            assert (await c.item(path))["shares"] == 50
            assert (await c.get(path, as_="other")).status == 403
            assert (await c.put(path, {"quota_set": {"shares": 1}})).status == 403
            changed = await c.put(path, {"quota_set": {"shares": 1, "per_share_gigabytes": 2}}, as_="admin")
            assert changed.json()["quota_set"]["shares"] == 1
            await c.create()
            assert (await c.put(path, {"quota_set": {"shares": 0}}, as_="admin")).status == 400
            assert (await c.put(path, {"quota_set": {"shares": 0, "force": True}}, as_="admin")).status == 200
            assert (await c.item(f"{path}/detail"))["shares"] == {"limit": 0, "in_use": 1, "reserved": 0}
            assert (await c.item(f"{path}/defaults"))["shares"] == 50
            assert (await c.delete(path, as_="admin")).status == 202
            assert (await c.item(path))["shares"] == 50
            unknown = "/quota-sets/" + "1" * 32
            assert (await c.put(unknown, {"quota_set": {"shares": 1}}, as_="admin")).status == 400
            older = {"quota_set": {"per_share_gigabytes": 2}}
            assert (await c.put(path, older, as_="admin", version="2.61")).status == 400

    run(scenario())
