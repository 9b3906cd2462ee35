"""os-start, os-stop and reboot: resulting states, refusals, and the state while they run."""

from __future__ import annotations

from typing import Any

from tests.compute.servers.support import act, rules, sim_store, wait_for_fields
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

SOFT, HARD = {"type": "SOFT"}, {"type": "HARD"}


async def run_action(c: FullCloud, server_id: str, action: str, body: Any = None, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, action, body, **options)
    assert answer.status == 202, answer.body
    assert answer.body == b""
    return await c.wait_until_settled(server_id)


async def list_names(c: FullCloud, query: str, **options: Any) -> list[str]:
    answer = await c.get(f"/servers?{query}", **options)
    assert answer.status == 200, answer.body
    return [server["name"] for server in answer.json()["servers"]]


@proves(
    "POST /servers/{server_id}/action#os-start",
    "POST /servers/{server_id}/action#os-stop",
    "POST /servers/{server_id}/action#reboot",
)
def test_power_actions_change_the_state(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            shown = await run_action(c, server_id, "os-stop")
            assert (shown["status"], shown["OS-EXT-STS:vm_state"], shown["OS-EXT-STS:power_state"]) == (
                "SHUTOFF",
                "stopped",
                4,
            )
            assert "progress" not in shown
            assert (await c.guests())[server_id][1] == "shutdown"
            shown = await run_action(c, server_id, "os-start")
            assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
            assert (await c.guests())[server_id][1] == "running"
            for kind in ("SOFT", "HARD", "soft", "Hard"):
                assert (await run_action(c, server_id, "reboot", {"type": kind}))["status"] == "ACTIVE"
            await run_action(c, server_id, "os-stop")
            assert (await run_action(c, server_id, "reboot", HARD))["status"] == "ACTIVE"
            assert (await c.guests())[server_id][1] == "running"

    run(scenario())


def test_power_actions_are_refused_in_wrong_states(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]

            async def refusal(action: str, body: Any = None) -> str:
                status, kind, message = fault(await act(c, server_id, action, body))
                assert (status, kind) == (409, "conflictingRequest")
                return message

            cannot = f"Cannot '%s' instance {server_id} while it is in vm_state %s"
            assert await refusal("os-start") == cannot % ("start", "active")
            await run_action(c, server_id, "os-stop")
            assert await refusal("os-stop") == cannot % ("stop", "stopped")
            assert await refusal("reboot", SOFT) == cannot % ("reboot", "stopped")
            with rules(c) as sim:
                sim.add_failure("*", "power_on", "hang", None, None)
                assert (await act(c, server_id, "os-start")).status == 202
                for action, body in (("os-start", None), ("os-stop", None), ("reboot", SOFT), ("reboot", HARD)):
                    assert (await refusal(action, body)).endswith("while it is in task_state powering-on")
                sim.clear()
                assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
                sim.add_failure("*", "spawn", "hang", None, None)
                building = (await c.boot())["id"]
                status, _, message = fault(await act(c, building, "os-stop"))
                assert (status, "task_state" in message) == (409, True)
                sim.clear()

    run(scenario())


def test_power_actions_refuse_bad_bodies(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            for action, body in (
                ("reboot", None),
                ("reboot", {}),
                ("reboot", {"type": "WARM"}),
                ("reboot", {"type": 1}),
                ("reboot", {**SOFT, "more": 1}),
                ("dance", None),
            ):
                assert fault(await act(c, server_id, action, body))[:2] == (400, "badRequest"), (action, body)
            bodies: list[Any] = [{}, {"os-stop": None, "os-start": None}, [], "os-stop", None]
            for whole_body in bodies:
                answer = await c.post(f"/servers/{server_id}/action", whole_body)
                assert fault(answer)[:2] == (400, "badRequest"), whole_body
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == 1
            missing = "11111111-1111-1111-1111-111111111111"
            for action, body in (("os-start", None), ("os-stop", None), ("reboot", SOFT)):
                assert fault(await act(c, missing, action, body))[:2] == (404, "itemNotFound")

    run(scenario())


def test_reboot_is_shown_while_it_runs(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active(name="rebooted"))["id"]
            await c.boot_active(name="other")
            with rules(c) as sim:
                for body, status, task in ((SOFT, "REBOOT", "rebooting"), (HARD, "HARD_REBOOT", "rebooting_hard")):
                    number = sim.add_failure("*", "reboot", "hang", 1, None)
                    assert (await act(c, server_id, "reboot", body)).status == 202
                    shown = await wait_for_fields(c, server_id, status=status)
                    assert shown["OS-EXT-STS:task_state"] == task
                    assert shown["OS-EXT-STS:vm_state"] == "active"
                    assert await list_names(c, f"status={status}") == ["rebooted"]
                    assert await list_names(c, f"status={status.lower()}&status=ACTIVE") == ["other", "rebooted"]
                    assert await list_names(c, "status=ACTIVE") == ["other"]
                    assert await list_names(c, f"task_state={task}", version="2.83") == ["rebooted"]
                    assert number
                    sim.clear()
                    assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
                    assert await list_names(c, f"status={status}") == []
                    assert await list_names(c, "status=ACTIVE") == ["other", "rebooted"]

    run(scenario())


def test_failed_power_action_leaves_server_unchanged(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "error", 1, "the button is stuck")
                sim.add_failure("*", "reboot", "error", 1, "the button is stuck")
            for action, body in (("os-stop", None), ("reboot", SOFT)):
                shown = await run_action(c, server_id, action, body)
                assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
                assert "fault" not in shown
                assert (await c.guests())[server_id][1] == "running"
            assert (await run_action(c, server_id, "os-stop"))["status"] == "SHUTOFF"

    run(scenario())


def test_locked_server_allows_power_actions_of_administrators_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE, locked_reason = 'mine' WHERE id = $1", server_id)
            for action, body in (("os-stop", None), ("reboot", HARD)):
                status, _, message = fault(await act(c, server_id, action, body))
                assert (status, message) == (409, f"Instance {server_id} is locked")
            assert (await c.delete(f"/servers/{server_id}")).status == 409
            shown = await c.show(server_id, as_="member")
            assert (shown["locked"], shown["locked_reason"]) == (True, "mine")
            assert await list_names(c, "locked=true", version="2.73") == ["s"]
            assert await list_names(c, "locked=false", version="2.73") == []
            assert (await run_action(c, server_id, "os-stop", as_="admin"))["status"] == "SHUTOFF"
            assert (await c.delete(f"/servers/{server_id}", as_="admin")).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())


def test_power_actions_and_delete_work_if_the_guest_is_missing(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            shown = await c.boot_active()
            server_id, host = shown["id"], shown["OS-EXT-SRV-ATTR:host"]
            with sim_store(c) as hosts:
                hosts.remove_guest(host, server_id)
            for action, body in (("os-stop", None), ("reboot", SOFT), ("reboot", HARD)):
                assert (await run_action(c, server_id, action, body))["status"] == "ACTIVE"
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)

    run(scenario())
