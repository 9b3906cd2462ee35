"""rescue and unrescue: rescue images, refused actions, failures, and volume-backed servers."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.actions.test_suspend import conflict_message, run_action, states
from tests.compute.servers.moves import HOST, newest_action
from tests.compute.servers.support import act, rules, sim_store
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import block_device, boot_from, make_image, make_volume

ACTION = "POST /servers/{server_id}/action#"
STABLE_RESCUE = {"hw_rescue_bus": "virtio", "hw_rescue_device": "disk"}


async def rescue(c: FullCloud, server_id: str, version: str = "2.96", **keys: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "rescue", keys or None, version=version)
    assert answer.status == 200, answer.body
    (password,) = answer.json().values()
    assert password == keys.get("adminPass", password)
    assert password
    return await c.wait_until_settled(server_id)


def rescue_image_of(c: FullCloud, server: dict[str, Any]) -> str | None:
    with sim_store(c) as sim:
        return sim.rescue(server[HOST], server["id"])


@proves(ACTION + "rescue", ACTION + "unrescue")
def test_rescue_and_unrescue(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            image_id = await make_image(c, b"rescue", os_distro="x")
            server = await c.boot_active()
            server_id = server["id"]
            for keys in ({}, {"adminPass": "a secret"}, {"rescue_image_ref": image_id}):
                assert states(await rescue(c, server_id, **keys)) == ("RESCUE", "rescued", 1)
                assert rescue_image_of(c, server) == keys.get("rescue_image_ref", "")
                assert (await newest_action(c, server_id))["action"] == "rescue"
                assert states(await run_action(c, server_id, "unrescue")) == ("ACTIVE", "active", 1)
                assert rescue_image_of(c, server) is None
            rows = await c.db.fetch("SELECT params FROM operations WHERE kind = 'rescue'")
            assert not any("password" in row["params"] for row in rows), "passwords are not stored"
            await run_action(c, server_id, "os-stop")
            assert (await rescue(c, server_id))["status"] == "RESCUE"
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())


def test_rescued_server_refuses_other_actions(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            assert (await conflict_message(c, server_id, "unrescue")).endswith("vm_state active")
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
                assert (await conflict_message(c, server_id, action, body)).endswith("vm_state rescued"), action
            for action in ("migrate", "evacuate"):
                body = None if action == "migrate" else {}
                assert (await conflict_message(c, server_id, action, body, as_="admin", version="2.96")).endswith(
                    "rescued"
                )
            attachment = {"volumeAttachment": {"volumeId": await make_volume(c)}}
            answer = await c.post(f"/servers/{server_id}/os-volume_attachments", attachment)
            assert fault(answer)[0] == 409

    run(scenario())


def test_rescue_refuses_bad_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            unknown_id = "11111111-1111-1111-1111-111111111111"
            for body in (
                {"rescue_image_ref": "x"},
                {"rescue_image_ref": unknown_id},
                {"adminPass": 1},
                {"more": 1},
                "x",
            ):
                assert fault(await act(c, server_id, "rescue", body))[:2] == (400, "badRequest"), body
            assert fault(await act(c, unknown_id, "rescue"))[0] == 404
            assert fault(await act(c, server_id, "rescue", as_="reader"))[0] == 403
            assert (await c.show(server_id))["status"] == "ACTIVE"

    run(scenario())


def test_failed_rescue_leaves_guest_running(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", "rescue", "error", 1, "no")
                sim.add_failure("*", "unrescue", "error", 1, "not yet")
            shown = await rescue(c, server["id"], adminPass="secret")
            assert (shown["status"], "rescue guest" in shown["fault"]["message"]) == ("ACTIVE", True)
            assert (await c.guests())[server["id"]][1] == "running"
            assert rescue_image_of(c, server) is None
            params = await c.db.fetch_value("SELECT params FROM operations WHERE kind = 'rescue'")
            assert "secret" not in params

    run(scenario())


def test_rescue_of_volume_backed_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            server_id = server["id"]
            stable_image_id = await make_image(c, b"rescue", **STABLE_RESCUE)
            incomplete_image_id = await make_image(c, b"rescue", hw_rescue_bus="virtio")

            async def refusal_message(version: str, image_id: str | None = None) -> str:
                body = {"rescue_image_ref": image_id} if image_id else None
                status, _, message = fault(await act(c, server_id, "rescue", body, version=version))
                assert status == 400
                return message

            start = f"Instance {server_id} cannot be rescued: "
            assert await refusal_message("2.86", stable_image_id) == start + "Cannot rescue a volume-backed instance"
            for image_id in (None, incomplete_image_id):
                assert "lacks hw_rescue_bus or hw_rescue_device" in await refusal_message("2.87", image_id)
            shown = await rescue(c, server_id, "2.87", rescue_image_ref=stable_image_id)
            assert (shown["status"], rescue_image_of(c, shown)) == ("RESCUE", stable_image_id)
            await run_action(c, server_id, "unrescue")
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM provider_traits WHERE trait = 'COMPUTE_RESCUE_BFV'")
            assert (
                await refusal_message("2.87", stable_image_id)
                == start + "Host unable to rescue a volume-backed instance"
            )

    run(scenario())
