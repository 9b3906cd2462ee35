"""os-resetState: the new state, and undo of the running operation."""

from __future__ import annotations

from tests.compute.servers.actions.test_suspend import conflict_message, run_action, states
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

ACTION = "POST /servers/{server_id}/action#"


@proves(ACTION + "os-resetState")
def test_reset_state_of_an_idle_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            for state, status in (("error", "ERROR"), ("active", "ACTIVE"), ("error", "ERROR")):
                answer = await act(c, server_id, "os-resetState", {"state": state}, as_="admin")
                assert (answer.status, answer.body) == (202, b"")
                assert states(await c.show(server_id)) == (status, state, 1)
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [entry["action"] for entry in listed] == ["resetState"] * 3 + ["create"]
            assert (await run_action(c, server_id, "reboot", {"type": "HARD"}))["status"] == "ACTIVE"
            for body in (None, {}, {"state": "stopped"}, {"state": 1}, {"state": "error", "more": 1}):
                assert fault(await act(c, server_id, "os-resetState", body, as_="admin"))[0] == 400, body
            for caller, status_code in (("member", 403), ("manager", 403), ("reader", 403), ("other", 404)):
                answer = await act(c, server_id, "os-resetState", {"state": "error"}, as_=caller)
                assert answer.status == status_code, caller

    run(scenario())


def test_reset_state_undoes_the_running_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server_id, "os-stop")).status == 202
                await wait_for_fields(c, server_id, OS_EXT_STS__task_state="powering-off")
                assert (await act(c, server_id, "os-resetState", {"state": "error"}, as_="admin")).status == 202
                sim.clear()
            shown = await wait_for_fields(c, server_id, status="ERROR", OS_EXT_STS__task_state=None)
            assert states(shown) == ("ERROR", "error", 1)
            assert (await c.guests())[server_id][1] == "running"

    run(scenario())


def test_reset_state_is_refused_for_shelved_and_resized_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            shelved_id = (await boot_shelved(c, "SHELVED"))["id"]
            resized_id = (await c.boot_active())["id"]
            await run_action(c, resized_id, "migrate", as_="admin")
            for server_id, state in ((shelved_id, "shelved"), (resized_id, "resized")):
                for new_state in ("active", "error"):
                    message = await conflict_message(c, server_id, "os-resetState", {"state": new_state}, as_="admin")
                    assert message.endswith(f"vm_state {state}")

    run(scenario())


@proves(ACTION + "injectNetworkInfo")
def test_reset_network_and_inject_network_info(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            assert (await act(c, server_id, "resetNetwork", as_="admin")).status == 410
            assert (await act(c, server_id, "injectNetworkInfo", as_="admin")).status == 202
            assert (await act(c, server_id, "injectNetworkInfo", as_="member")).status == 403
            unknown_id = "11111111-1111-1111-1111-111111111111"
            assert (await act(c, unknown_id, "injectNetworkInfo", as_="admin")).status == 404

    run(scenario())
