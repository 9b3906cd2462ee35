"""suspend and resume, pause and unpause likewise, and trigger_crash_dump."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, make_flavor, rules, sim_store, wait_for_fields
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ACTION = "POST /servers/{server_id}/action#"
VM, POWER, TASK = "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state", "OS-EXT-STS:task_state"
# Action, its opposite, states of the server in between, power of the guest, and task states of both actions.
PAUSED = ("pause", "unpause", ("PAUSED", "paused", 3), "paused", "pausing", "unpausing")
SUSPENDED = ("suspend", "resume", ("SUSPENDED", "suspended", 7), "suspended", "suspending", "resuming")
BOTH_ACTIONS = pytest.mark.parametrize("case", [PAUSED, SUSPENDED], ids=["pause", "suspend"])


async def run_action(c: FullCloud, server_id: str, action: str, body: Any = None, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, action, body, **options)
    assert answer.status == 202, answer.body
    return await c.wait_until_settled(server_id)


def states(shown: dict[str, Any]) -> tuple[str, str, int]:
    return shown["status"], shown[VM], shown[POWER]


async def conflict_message(c: FullCloud, server_id: str, action: str, body: Any = None, **options: Any) -> str:
    status, _, message = fault(await act(c, server_id, action, body, **options))
    assert status == 409, (action, message)
    return message


@proves(*(ACTION + action for action in ("pause", "unpause", "suspend", "resume")))
def test_pause_unpause_suspend_and_resume(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await c.boot_active(name="web")
            server_id = server["id"]
            with sim_store(c) as sim:
                boots = sim.all_guests()[0][1].boots
            for first_action, opposite, (status, *rest), power, task_of_action, task_of_opposite in (PAUSED, SUSPENDED):
                with rules(c) as sim:
                    for action, task in ((first_action, task_of_action), (opposite, task_of_opposite)):
                        sim.add_failure("*", action, "hang", 1, None)
                        assert (await act(c, server_id, action)).status == 202
                        assert (await wait_for_fields(c, server_id, OS_EXT_STS__task_state=task))[TASK] == task
                        assert task in await conflict_message(c, server_id, "os-stop")
                        sim.clear()
                        shown = await c.wait_until_settled(server_id)
                        if action == first_action:
                            assert states(shown) == (status, *rest)
                            assert (await c.guests())[server_id][1] == power
                            listed = (await c.get(f"/servers?status={status}")).json()["servers"]
                            assert [entry["name"] for entry in listed] == ["web"]
                assert states(shown) == ("ACTIVE", "active", 1)
                assert (await newest_action(c, server_id))["action"] == opposite
            with sim_store(c) as sim:
                assert sim.all_guests()[0][1].boots == boots, "the guest must not boot again"

    run(scenario())


@BOTH_ACTIONS
def test_paused_or_suspended_server_refuses_other_actions(database_url: str, case: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            action, opposite, (status, state, _), *_ = case
            server_id = (await c.boot_active())["id"]
            assert await conflict_message(c, server_id, opposite) == (
                f"Cannot '{opposite}' instance {server_id} while it is in vm_state active"
            )
            assert (await run_action(c, server_id, action))["status"] == status
            flavor = await make_flavor(c, "larger", ram=1024)
            for other, body in (
                (action, None),
                ("os-start", None),
                ("os-stop", None),
                ("reboot", {"type": "SOFT"}),
                ("rescue", None),
                ("resize", {"flavorRef": flavor}),
                ("rebuild", {"imageRef": c.image_id}),
                ("changePassword", {"adminPass": "x"}),
                ("unrescue", None),
                ("restore", None),
            ):
                assert (await conflict_message(c, server_id, other, body)).endswith(f"vm_state {state}"), other
            for other, body in (("migrate", None), ("evacuate", {})):
                assert (await conflict_message(c, server_id, other, body, as_="admin", version="2.96")).endswith(state)
            assert (await c.show(server_id))["status"] == status

    run(scenario())


@BOTH_ACTIONS
def test_paused_or_suspended_server_allows_image_reboot_shelve_and_delete(database_url: str, case: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            action, _, (status, *_), power, *_ = case
            server_id = (await c.boot_active())["id"]
            await run_action(c, server_id, action)
            assert (await run_action(c, server_id, "createImage", {"name": "copy"}))["status"] == status
            assert (await c.guests())[server_id][1] == power
            assert states(await run_action(c, server_id, "reboot", {"type": "HARD"})) == ("ACTIVE", "active", 1)
            await run_action(c, server_id, action)
            assert (await run_action(c, server_id, "shelve"))["status"] == "SHELVED_OFFLOADED"
            assert states(await run_action(c, server_id, "unshelve")) == ("ACTIVE", "active", 1)
            await run_action(c, server_id, action)
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())


@BOTH_ACTIONS
def test_failed_pause_or_suspend_leaves_state_unchanged(database_url: str, case: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            action, opposite, (status, *_), power, *_ = case
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", action, "error", 1, "no")
            shown = await run_action(c, server_id, action)
            assert (shown["status"], shown["fault"]["message"]) == (
                "ACTIVE",
                f"The host could not {action} guest: refused by the hypervisor",
            )
            assert (await c.guests())[server_id][1] == "running"
            shown = await run_action(c, server_id, action)
            assert (shown["status"], "fault" in shown) == (status, False)
            with rules(c) as sim:
                sim.add_failure("*", opposite, "error", 1, "no")
            shown = await run_action(c, server_id, opposite)
            assert (shown["status"], "fault" in shown) == (status, True)
            assert (await c.guests())[server_id][1] == power
            assert (await run_action(c, server_id, opposite))["status"] == "ACTIVE"

    run(scenario())


@proves(ACTION + "trigger_crash_dump")
def test_trigger_crash_dump(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            dump = "trigger_crash_dump"
            assert fault(await act(c, server_id, dump, version="2.16"))[0] in (400, 404)
            assert (await act(c, server_id, dump, {"now": True}, version="2.17")).status == 400
            shown = await run_action(c, server_id, dump, version="2.17")
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            assert (await newest_action(c, server_id))["action"] == dump
            await run_action(c, server_id, "os-stop")
            assert (await conflict_message(c, server_id, dump, version="2.17")).endswith("vm_state stopped")

    run(scenario())
