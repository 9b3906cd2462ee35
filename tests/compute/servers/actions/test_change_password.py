"""changePassword: the host sets the password, and the control plane does not store it."""

from __future__ import annotations

from tests.compute.servers.actions.test_suspend import conflict_message, run_action
from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import make_image

PASSWORD = {"adminPass": "correct horse"}


@proves("POST /servers/{server_id}/action#changePassword")
def test_password_is_sent_to_host_and_not_stored(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "set_password", "hang", 1, None)
                assert (await act(c, server_id, "changePassword", PASSWORD)).status == 202
                shown = await wait_for_fields(c, server_id, status="PASSWORD")
                assert shown["OS-EXT-STS:task_state"] == "updating_password"
                sim.clear()
                assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
                assert (await newest_action(c, server_id))["action"] == "changePassword"
                sim.add_failure("*", "set_password", "error", 1, "no response")
            shown = await run_action(c, server_id, "changePassword", PASSWORD)
            assert (shown["status"], "set password" in shown["fault"]["message"]) == ("ACTIVE", True)
            stored = await c.db.fetch("SELECT params, results, error FROM operations")
            assert not any("correct horse" in str(row) for row in stored)
            for body in (None, {}, {"adminPass": 1}, {**PASSWORD, "more": 1}):
                assert fault(await act(c, server_id, "changePassword", body))[0] == 400, body
            await run_action(c, server_id, "os-stop")
            assert (await conflict_message(c, server_id, "changePassword", PASSWORD)).endswith("vm_state stopped")

    run(scenario())


def test_qemu_guest_needs_the_guest_agent(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            without_agent = (await c.boot_active(networks="none"))["id"]
            image_id = await make_image(c, b"x", hw_qemu_guest_agent="yes")
            with_agent = (await c.boot_active(imageRef=image_id, networks="none"))["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE hypervisors SET hypervisor_type = 'QEMU'")
            assert "guest agent is not enabled" in await conflict_message(c, without_agent, "changePassword", PASSWORD)
            assert (await run_action(c, with_agent, "changePassword", PASSWORD))["status"] == "ACTIVE"

    run(scenario())
