"""Assisted volume snapshots: hosts do not support them, and the volume service is notified of the failure."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from kilonova.ids import new_id
from tests.compute.test_instance_actions import actions
from tests.compute.volume_attachments.support import attach, wait_until_idle
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import VOLUME, make_volume

PATH = "/os-assisted-volume-snapshots"


def create_body(volume_id: str, snapshot_id: str) -> dict[str, object]:
    info = {"snapshot_id": snapshot_id, "type": "qcow2", "new_file": "file", "id": "mine"}
    return {"snapshot": {"volume_id": volume_id, "create_info": info}}


def deletion(snapshot_id: str, info: str) -> str:
    return f"{PATH}/{snapshot_id}?delete_info={quote(info)}"


async def put_snapshot(c: FullCloud, volume_id: str) -> str:
    answer = await c.post("/snapshots", {"snapshot": {"volume_id": volume_id, "force": True}}, root=VOLUME)
    assert answer.status == 202, answer.body
    snapshot_id = str(answer.json()["snapshot"]["id"])
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await status(c, snapshot_id) != "available":
            await asyncio.sleep(0.01)
    return snapshot_id


async def status(c: FullCloud, snapshot_id: str) -> str:
    return str((await c.get(f"/snapshots/{snapshot_id}", as_="admin", root=VOLUME)).json()["snapshot"]["status"])


async def set_status(c: FullCloud, snapshot_id: str, status: str) -> None:
    """Set the status in which the volume service waits for compute."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE volume_snapshots SET status = $2 WHERE id = $1", snapshot_id, status)


@proves("POST /os-assisted-volume-snapshots", "DELETE /os-assisted-volume-snapshots/{snapshot_id}")
def test_volume_service_is_notified_of_failure(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            snapshot_id = await put_snapshot(c, volume_id)
            await set_status(c, snapshot_id, "creating")
            answer = await c.post(PATH, create_body(volume_id, snapshot_id), as_="service")
            assert answer.status == 200
            assert answer.json() == {"snapshot": {"id": "mine", "volumeId": volume_id}}
            await wait_until_idle(c, server_id)
            assert await status(c, snapshot_id) == "error"
            await set_status(c, snapshot_id, "deleting")
            gone = await c.delete(deletion(snapshot_id, f'{{"volume_id": "{volume_id}"}}'), as_="admin")
            assert (gone.status, gone.body) == (204, b"")
            await wait_until_idle(c, server_id)
            assert await status(c, snapshot_id) == "error_deleting"
            told = [(each["action"], each["message"]) for each in await actions(c, server_id)][:2]
            assert told == [("volume_snapshot", "Error")] * 2

    run(scenario())


def test_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            volume_id = await make_volume(c)
            body = create_body(volume_id, new_id())
            assert (await c.post(PATH, body, as_="member")).status == 403
            assert (await c.post(PATH, body, as_="service")).status == 400
            assert (await c.post(PATH, {"snapshot": {"volume_id": volume_id}}, as_="service")).status == 400
            info = f'{{"volume_id": "{volume_id}"}}'
            assert (await c.delete(deletion("x", info), as_="service")).status == 404
            for wrong in ("", "[]", "{", '{"other": 1}'):
                assert (await c.delete(deletion("x", wrong), as_="service")).status == 400

    run(scenario())
