"""The password of a server's administrator: set by the host, kept by nobody, refused where nobody can set it."""

from __future__ import annotations

from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, rules, until
from tests.compute.servers.test_halting import done, refusal
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.volumes import make_image
from tests.support.whole import whole

SECRET = {"adminPass": "correct horse"}


@proves("POST /servers/{server_id}/action#changePassword")
def test_it_is_set_and_forgotten(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "set_password", "hang", 1, None)
                assert (await act(c, server_id, "changePassword", SECRET)).status == 202
                shown = await until(c, server_id, status="PASSWORD")
                assert shown["OS-EXT-STS:task_state"] == "updating_password"
                sim.clear()
                assert (await c.settled(server_id))["status"] == "ACTIVE"
                assert (await newest_action(c, server_id))["action"] == "changePassword"
                sim.add_failure("*", "set_password", "error", 1, "nobody there")
            shown = await done(c, server_id, "changePassword", SECRET)
            assert (shown["status"], "set password" in shown["fault"]["message"]) == ("ACTIVE", True)
            kept = await c.db.fetch("SELECT params, results, error FROM operations")
            assert not any("correct horse" in str(row) for row in kept)
            for body in (None, {}, {"adminPass": 1}, {**SECRET, "more": 1}):
                assert fault(await act(c, server_id, "changePassword", body))[0] == 400, body
            await done(c, server_id, "os-stop")
            assert (await refusal(c, server_id, "changePassword", SECRET)).endswith("vm_state stopped")

    run(scenario())


def test_a_real_guest_needs_an_agent(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            without = (await c.active(networks="none"))["id"]
            image_id = await make_image(c, b"x", hw_qemu_guest_agent="yes")
            having = (await c.active(imageRef=image_id, networks="none"))["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE hypervisors SET hypervisor_type = 'QEMU'")
            assert "guest agent is not enabled" in await refusal(c, without, "changePassword", SECRET)
            assert (await done(c, having, "changePassword", SECRET))["status"] == "ACTIVE"

    run(scenario())
