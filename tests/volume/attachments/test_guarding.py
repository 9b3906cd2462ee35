"""A volume is taken from a server by compute, and by nobody else."""

from __future__ import annotations

from tests.compute.volume_attachments.support import attach, detach
from tests.support import run
from tests.support.cloud import fault
from tests.support.volumes import NEWEST, VOLUME, make_volume, volume_until
from tests.support.whole import whole


def test_users_cannot_take_a_volume_from_a_server_that_has_it(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server, volume_id = await c.active(), await make_volume(c)
            await attach(c, server["id"], volume_id, device="/dev/vdx")
            (attachment,) = (await volume_until(c, volume_id, "in-use"))["attachments"]
            assert (attachment["server_id"], attachment["device"]) == (server["id"], "/dev/vdx")
            for caller in ("member", "admin"):
                address = f"/attachments/{attachment['attachment_id']}"
                refused = await c.delete(address, as_=caller, root=VOLUME, headers=NEWEST)
                assert fault(refused)[:2] == (409, "conflictingRequest")
                assert server["id"] in fault(refused)[2]
            actions: tuple[tuple[str, dict[str, object]], ...] = (
                ("member", {"os-detach": {}}),
                ("member", {"os-terminate_connection": {"connector": {}}}),
                ("admin", {"os-force_detach": {}}),
            )
            for caller, action in actions:
                refused = await c.post(f"/volumes/{volume_id}/action", action, as_=caller, root=VOLUME)
                assert fault(refused)[:2] == (409, "conflictingRequest")
            await detach(c, server["id"], volume_id)
            await volume_until(c, volume_id, "available")

    run(scenario())


def test_who_reserves_a_volume_beside_compute_gives_it_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server, volume_id = await c.active(), await make_volume(c)
            asked = {"attachment": {"volume_uuid": volume_id, "instance_uuid": server["id"]}}
            made = await c.post("/attachments", asked, root=VOLUME, headers=NEWEST)
            attachment_id = made.json()["attachment"]["id"]
            assert (await c.delete(f"/attachments/{attachment_id}", root=VOLUME, headers=NEWEST)).status == 200
            await volume_until(c, volume_id, "available")

    run(scenario())
