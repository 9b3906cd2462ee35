"""Rescuing: from which image, what a rescued server may do, and servers that boot from volumes."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.moves import HOST, newest_action
from tests.compute.servers.support import act, hypervisors, rules
from tests.compute.servers.test_halting import done, refusal, seen
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.volumes import boot_from, device, make_image, make_volume
from tests.support.whole import Whole, whole

ACTION = "POST /servers/{server_id}/action#"
STABLE = {"hw_rescue_bus": "virtio", "hw_rescue_device": "disk"}


async def rescue(c: Whole, server_id: str, version: str = "2.96", **keys: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "rescue", keys or None, version=version)
    assert answer.status == 200, answer.body
    (password,) = answer.json().values()
    assert password == keys.get("adminPass", password)
    assert password
    return await c.settled(server_id)


def rescued_with(c: Whole, server: dict[str, Any]) -> str | None:
    with hypervisors(c) as sim:
        return sim.rescue(server[HOST], server["id"])


@proves(ACTION + "rescue", ACTION + "unrescue")
def test_there_and_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            image_id = await make_image(c, b"rescue", os_distro="x")
            server = await c.active()
            server_id = server["id"]
            for keys in ({}, {"adminPass": "a secret"}, {"rescue_image_ref": image_id}):
                assert seen(await rescue(c, server_id, **keys)) == ("RESCUE", "rescued", 1)
                assert rescued_with(c, server) == keys.get("rescue_image_ref", "")
                assert (await newest_action(c, server_id))["action"] == "rescue"
                assert seen(await done(c, server_id, "unrescue")) == ("ACTIVE", "active", 1)
                assert rescued_with(c, server) is None
            told = await c.db.fetch("SELECT params FROM operations WHERE kind = 'rescue'")
            assert not any("password" in row["params"] for row in told), "nobody keeps passwords"
            await done(c, server_id, "os-stop")
            assert (await rescue(c, server_id))["status"] == "RESCUE"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.gone(server_id)

    run(scenario())


def test_what_a_rescued_server_cannot_do(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            assert (await refusal(c, server_id, "unrescue")).endswith("vm_state active")
            await rescue(c, server_id)
            for action, body in (
                ("rescue", None),
                ("os-stop", None),
                ("os-start", None),
                ("pause", None),
                ("suspend", None),
                ("shelve", None),
                ("reboot", {"type": "HARD"}),
                ("reboot", {"type": "SOFT"}),
                ("rebuild", {"imageRef": c.image_id}),
                ("resize", {"flavorRef": "2"}),
                ("createImage", {"name": "x"}),
                ("changePassword", {"adminPass": "x"}),
            ):
                assert (await refusal(c, server_id, action, body)).endswith("vm_state rescued"), action
            for action in ("migrate", "evacuate"):
                body = None if action == "migrate" else {}
                assert (await refusal(c, server_id, action, body, as_="admin", version="2.96")).endswith("rescued")
            attachment = {"volumeAttachment": {"volumeId": await make_volume(c)}}
            answer = await c.post(f"/servers/{server_id}/os-volume_attachments", attachment)
            assert fault(answer)[0] == 409

    run(scenario())


def test_bad_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            nobody = "11111111-1111-1111-1111-111111111111"
            for body in ({"rescue_image_ref": "x"}, {"rescue_image_ref": nobody}, {"adminPass": 1}, {"more": 1}, "x"):
                assert fault(await act(c, server_id, "rescue", body))[:2] == (400, "badRequest"), body
            assert fault(await act(c, nobody, "rescue"))[0] == 404
            assert fault(await act(c, server_id, "rescue", as_="reader"))[0] == 403
            assert (await c.show(server_id))["status"] == "ACTIVE"

    run(scenario())


def test_one_that_cannot_be_rescued_goes_on(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure("*", "rescue", "error", 1, "no")
                sim.add_failure("*", "unrescue", "error", 1, "not yet")
            shown = await rescue(c, server["id"], adminPass="secret")
            assert (shown["status"], "rescue guest" in shown["fault"]["message"]) == ("ACTIVE", True)
            assert (await c.guests())[server["id"]][1] == "running"
            assert rescued_with(c, server) is None
            kept = await c.db.fetch_value("SELECT params FROM operations WHERE kind = 'rescue'")
            assert "secret" not in kept

    run(scenario())


def test_servers_that_boot_from_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server = await boot_from(c, device("image", c.image_id, volume_size=1))
            server_id = server["id"]
            stable = await make_image(c, b"rescue", **STABLE)
            half = await make_image(c, b"rescue", hw_rescue_bus="virtio")

            async def why_not(version: str, image_id: str | None = None) -> str:
                body = {"rescue_image_ref": image_id} if image_id else None
                status, _, message = fault(await act(c, server_id, "rescue", body, version=version))
                assert status == 400
                return message

            start = f"Instance {server_id} cannot be rescued: "
            assert await why_not("2.86", stable) == start + "Cannot rescue a volume-backed instance"
            for image_id in (None, half):
                assert "lacks hw_rescue_bus or hw_rescue_device" in await why_not("2.87", image_id)
            shown = await rescue(c, server_id, "2.87", rescue_image_ref=stable)
            assert (shown["status"], rescued_with(c, shown)) == ("RESCUE", stable)
            await done(c, server_id, "unrescue")
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM provider_traits WHERE trait = 'COMPUTE_RESCUE_BFV'")
            assert await why_not("2.87", stable) == start + "Host unable to rescue a volume-backed instance"

    run(scenario())
