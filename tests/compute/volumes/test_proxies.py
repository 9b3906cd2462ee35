"""Proxy for volumes and snapshots, before 2.36."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.volume_attachments.support import attach
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import wait_for_volume

OLD = "2.35"
VOLUMES, SNAPSHOTS = "/os-volumes", "/os-snapshots"


async def request(
    c: FullCloud, method: str, path: str, json: Any = None, *, as_: str = "member", version: str = OLD
) -> Any:
    return await c.request(method, path, json=json, as_=as_, version=version)


async def available(c: FullCloud, path: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            (shown,) = (await request(c, "GET", path)).json().values()
            if shown["status"] == "available":
                return dict(shown)
            await asyncio.sleep(0.01)


@proves(
    *("GET /os-volumes", "POST /os-volumes", "GET /os-volumes/detail"),
    *("GET /os-volumes/{volume_id}", "DELETE /os-volumes/{volume_id}"),
)
def test_volumes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            asked = {"size": "1", "display_name": "n", "display_description": "d", "metadata": {"a": "b"}}
            answer = await request(c, "POST", VOLUMES, {"volume": asked})
            assert answer.status == 200, answer.body
            made = answer.json()["volume"]
            assert answer.headers["location"].endswith(f"{VOLUMES}/{made['id']}")
            shown = await available(c, f"{VOLUMES}/{made['id']}")
            created = {"createdAt": shown["createdAt"], "id": made["id"]}
            assert shown == {
                **created,
                "status": "available",
                "size": 1,
                "displayName": "n",
                "displayDescription": "d",
                "availabilityZone": "nova",
                "volumeType": "__DEFAULT__",
                "snapshotId": None,
                "metadata": {"a": "b"},
                "attachments": [{}],
            }
            second = (await request(c, "POST", VOLUMES, {"volume": {"size": 1}})).json()["volume"]
            await available(c, f"{VOLUMES}/{second['id']}")
            listed = (await request(c, "GET", VOLUMES, as_="reader")).json()["volumes"]
            assert shown in listed
            assert (await request(c, "GET", f"{VOLUMES}/detail")).json()["volumes"] == listed
            page = (await request(c, "GET", f"{VOLUMES}?limit=1&offset=1&other=x")).json()["volumes"]
            assert page == listed[1:2]
            assert (await request(c, "GET", VOLUMES, as_="other")).json()["volumes"] == []

            server_id = (await c.boot_active())["id"]
            await attach(c, server_id, made["id"])
            shown = (await request(c, "GET", f"{VOLUMES}/{made['id']}")).json()["volume"]
            at = {"id": made["id"], "volumeId": made["id"], "serverId": server_id, "device": "/dev/vdb"}
            assert (shown["status"], shown["attachments"]) == ("in-use", [at])
            assert fault(await request(c, "DELETE", f"{VOLUMES}/{made['id']}"))[:2] == (400, "badRequest")
            assert (await request(c, "DELETE", f"{VOLUMES}/{second['id']}")).status == 202

    run(scenario())


@proves(
    *("GET /os-snapshots", "POST /os-snapshots", "GET /os-snapshots/detail"),
    *("GET /os-snapshots/{snapshot_id}", "DELETE /os-snapshots/{snapshot_id}"),
)
def test_snapshots(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            volume_id = (await request(c, "POST", VOLUMES, {"volume": {"size": 1}})).json()["volume"]["id"]
            await wait_for_volume(c, volume_id, "available")
            answer = await request(c, "POST", SNAPSHOTS, {"snapshot": {"volume_id": volume_id, "display_name": "n"}})
            assert answer.status == 200, answer.body
            made = answer.json()["snapshot"]
            shown = await available(c, f"{SNAPSHOTS}/{made['id']}")
            assert shown == {
                "id": made["id"],
                "createdAt": shown["createdAt"],
                "status": "available",
                "size": 1,
                "displayName": "n",
                "displayDescription": None,
                "volumeId": volume_id,
            }
            for path in (SNAPSHOTS, f"{SNAPSHOTS}/detail"):
                assert (await request(c, "GET", path)).json()["snapshots"] == [shown]
            again = (await request(c, "POST", VOLUMES, {"volume": {"size": 1, "snapshot_id": made["id"]}})).json()[
                "volume"
            ]
            assert again["snapshotId"] == made["id"]
            await wait_for_volume(c, again["id"], "available")
            assert (await request(c, "DELETE", f"{SNAPSHOTS}/{made['id']}")).status == 202

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    nobody = "11111111-1111-1111-1111-111111111111"

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=0) as c:
            for size in ("", "#$%", "0", 0, -1):
                assert (await request(c, "POST", VOLUMES, {"volume": {"size": size}})).status == 400
            assert (await request(c, "POST", VOLUMES, {"volume": {"size": 1}}, as_="reader")).status == 403
            for path in (f"{VOLUMES}/{nobody}", f"{SNAPSHOTS}/{nobody}"):
                assert fault(await request(c, "GET", path))[:2] == (404, "itemNotFound")
                assert fault(await request(c, "DELETE", path))[:2] == (404, "itemNotFound")
            for path in (VOLUMES, SNAPSHOTS):
                assert (await request(c, "GET", path, version="2.36")).status == 404

    run(scenario())
