"""Only compute deletes the attachment of a server."""

from __future__ import annotations

from tests.compute.volume_attachments.support import attach, detach
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import full_cloud
from tests.support.volumes import NEWEST_VERSION, VOLUME, make_volume, wait_for_volume


def test_users_cannot_delete_attachment_of_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server, volume_id = await c.boot_active(), await make_volume(c)
            await attach(c, server["id"], volume_id, device="/dev/vdx")
            (attachment,) = (await wait_for_volume(c, volume_id, "in-use"))["attachments"]
            assert (attachment["server_id"], attachment["device"]) == (server["id"], "/dev/vdx")
            for caller in ("member", "admin"):
                address = f"/attachments/{attachment['attachment_id']}"
                refused = await c.delete(address, as_=caller, root=VOLUME, headers=NEWEST_VERSION)
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
            await wait_for_volume(c, volume_id, "available")

    run(scenario())


def test_users_can_delete_reservation_unknown_to_compute(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server, volume_id = await c.boot_active(), await make_volume(c)
            requested = {"attachment": {"volume_uuid": volume_id, "instance_uuid": server["id"]}}
            created = await c.post("/attachments", requested, root=VOLUME, headers=NEWEST_VERSION)
            attachment_id = created.json()["attachment"]["id"]
            assert (await c.delete(f"/attachments/{attachment_id}", root=VOLUME, headers=NEWEST_VERSION)).status == 200
            await wait_for_volume(c, volume_id, "available")

    run(scenario())
