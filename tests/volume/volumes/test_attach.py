"""Volume actions for attaching."""

from __future__ import annotations

from typing import Any

from kilonova.http.client import ClientResponse
from kilonova.ids import new_id
from tests.support import run
from tests.support.cloud import fault
from tests.support.route_coverage import proves
from tests.volume.support import VolumeCloud, put_volume, volume_cloud

ACTION = "POST /volume/volumes/{volume_id}/action#"
SERVER = {"instance_uuid": new_id(), "mountpoint": "/dev/vdb"}


async def act(c: VolumeCloud, volume_id: str, name: str, body: Any = None, as_: str = "member") -> ClientResponse:
    return await c.post(f"/volumes/{volume_id}/action", {name: body or {}}, as_=as_)


async def status(c: VolumeCloud, volume_id: str) -> str:
    return str((await c.item(f"/volumes/{volume_id}"))["status"])


@proves(
    ACTION + "os-reserve",
    ACTION + "os-unreserve",
    ACTION + "os-attach",
    ACTION + "os-begin_detaching",
    ACTION + "os-roll_detaching",
    ACTION + "os-detach",
)
def test_actions_change_status(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            for name, body, answered, after in (
                ("os-reserve", {}, 202, "attaching"),
                ("os-reserve", {}, 400, "attaching"),
                ("os-unreserve", {}, 202, "available"),
                ("os-begin_detaching", {}, 400, "available"),
                ("os-detach", {}, 202, "available"),
                ("os-attach", {"mountpoint": "/dev/vdb"}, 400, "available"),
                ("os-attach", SERVER, 202, "in-use"),
                ("os-reserve", {}, 400, "in-use"),
                ("os-begin_detaching", {}, 202, "detaching"),
                ("os-roll_detaching", {}, 202, "in-use"),
                ("os-detach", {"attachment_id": new_id()}, 404, "in-use"),
                ("os-begin_detaching", {}, 202, "detaching"),
                ("os-detach", {}, 202, "available"),
            ):
                # Compute attaches; users may name only servers that they see.
                response = await act(c, volume_id, name, body, as_="kilonova" if name == "os-attach" else "member")
                assert (response.status, await status(c, volume_id)) == (answered, after), (name, response.body)
            assert (await act(c, volume_id, "os-reserve", as_="other")).status == 404
            assert (await act(c, volume_id, "os-reserve", as_="reader")).status == 403

    run(scenario())


@proves(ACTION + "os-force_detach")
def test_force_detach_ignores_status(database_url: str) -> None:
    async def scenario() -> None:
        async with volume_cloud(database_url, worker=False) as c:
            volume_id = await put_volume(c.db)
            assert (await act(c, volume_id, "os-attach", SERVER, as_="kilonova")).status == 202
            (attached,) = (await c.item(f"/volumes/{volume_id}"))["attachments"]
            assert (attached["server_id"], attached["device"]) == (SERVER["instance_uuid"], "/dev/vdb")
            assert (attached["id"], attached["volume_id"]) == (volume_id, volume_id)
            response = await act(c, volume_id, "os-reset_status", {"status": "error"}, as_="admin")
            assert response.status == 202
            assert "current status is: error" in fault(await act(c, volume_id, "os-detach"))[2]
            requested = {"attachment_id": attached["attachment_id"]}
            assert (await act(c, volume_id, "os-force_detach", requested)).status == 403
            assert (await act(c, volume_id, "os-force_detach", requested, as_="admin")).status == 202
            shown = await c.item(f"/volumes/{volume_id}")
            assert (shown["status"], shown["attachments"]) == ("available", [])

    run(scenario())
