"""os-resetState: the new state, undo of the running operation, and the end of resizes and shelvings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kilonova.compute.periodic import reclaim_deleted
from kilonova.compute.servers import model
from kilonova.doctor import examine
from kilonova.doctor.volumes import read_built_in
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations, unfinished_kinds
from tests.compute.servers.actions.test_suspend import conflict_message, run_action, states
from tests.compute.servers.moves import HOST, make_reachable, make_unreachable, newest_migration
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved, guest_disk, list_snapshots
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
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


async def reset(c: FullCloud, server_id: str, state: str) -> dict[str, Any]:
    """Reset the state. Returns the server when what the reset has begun is done."""
    shown = await run_action(c, server_id, "os-resetState", {"state": state}, as_="admin")
    await finish_operations(c)
    return shown


async def assert_nothing_is_left(c: FullCloud, server_id: str) -> None:
    """The doctor finds nothing, and deleting the server leaves nothing."""
    for guest_is_expected in (True, False):
        async with c.db.transaction() as tx:
            await tx.execute("UPDATE operations SET finished_at = 1")  # the doctor ignores recent operations
        found = await examine(c.db, await c.list_guests_and_slots(), partial(read_built_in, c.db))
        assert [finding for finding in found if finding.kind != "guest power differs"] == []
        if guest_is_expected:
            assert (await act(c, server_id, "forceDelete", as_="project-admin")).status == 202
            await c.wait_until_deleted(server_id)
            await finish_operations(c)
    assert await count_server_resources(c, server_id) == NO_RESOURCES
    assert await c.list_guests_and_slots() == []
    assert await c.db.fetch("SELECT uuid FROM consumers") == []
    assert await list_snapshots(c, "admin") == []


@pytest.mark.parametrize("state, status", [("active", "ACTIVE"), ("error", "ERROR")])
@pytest.mark.parametrize("same_host", [False, True])
def test_reset_of_a_resized_server_confirms_the_resize(
    database_url: str, state: str, status: str, same_host: bool
) -> None:
    async def scenario() -> None:
        hosts = 1 if same_host else 2
        async with full_cloud(database_url, hosts=hosts, compute__resize_on_same_host=same_host) as c:
            server = await c.boot_active()
            resized = await run_action(c, server["id"], "resize", {"flavorRef": "2"})
            assert resized["status"] == "VERIFY_RESIZE"
            assert len(await c.list_slots()) == 1
            shown = await reset(c, server["id"], state)
            assert states(shown) == (status, state, 1)
            assert shown[HOST] == resized[HOST]
            assert (await newest_migration(c, server["id"]))["status"] == "confirmed"
            assert await c.list_slots() == []
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1
            for action in ("confirmResize", "revertResize"):
                assert (await act(c, server["id"], action)).status == 409
            shown = await run_action(c, server["id"], "reboot", {"type": "HARD"})
            assert (states(shown), shown["flavor"]["original_name"]) == (("ACTIVE", "active", 1), "m1.small")
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


def test_reset_of_a_resized_server_whose_source_does_not_respond(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            await run_action(c, server["id"], "migrate", as_="admin")
            await make_unreachable(c, server[HOST])
            answer = await act(c, server["id"], "os-resetState", {"state": "active"}, as_="admin")
            assert answer.status == 202
            await wait_for_fields(c, server["id"], status="ACTIVE")
            assert await unfinished_kinds(c) == ["clean_up_slot"]
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert await c.list_slots() == []
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


def test_reset_of_a_shelved_server_to_active_deletes_its_image(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            disk = await guest_disk(c, server["id"])
            assert len(await list_snapshots(c)) == 1
            assert states(await reset(c, server["id"], "active")) == ("ACTIVE", "active", 4)
            assert await list_snapshots(c, "admin") == []
            assert (await act(c, server["id"], "unshelve")).status == 409
            shown = await run_action(c, server["id"], "reboot", {"type": "HARD"})
            assert states(shown) == ("ACTIVE", "active", 1)
            assert await guest_disk(c, server["id"]) == disk
            shown = await run_action(c, server["id"], "shelve")
            assert shown["status"] == "SHELVED"
            assert len(await list_snapshots(c)) == 1
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


IN_ERROR = ("os-stop", "rebuild", "shelve", "shelveOffload", "pause", "rescue", "evacuate")


@pytest.mark.parametrize("status", ["SHELVED", "SHELVED_OFFLOADED"])
def test_shelved_server_in_error_can_be_unshelved(database_url: str, status: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **(NO_OFFLOAD if status == "SHELVED" else {})) as c:
            bodies = {"rebuild": {"imageRef": c.image_id}, "evacuate": {"onSharedStorage": False}}
            server = await c.boot_active()
            disk = await guest_disk(c, server["id"])
            await run_action(c, server["id"], "shelve")
            for _ in range(2):
                assert (await reset(c, server["id"], "error"))["status"] == "ERROR"
            for action in IN_ERROR:
                message = await conflict_message(c, server["id"], action, bodies.get(action), as_="project-admin")
                assert message.endswith("vm_state error"), message
            if status == "SHELVED_OFFLOADED":
                message = await conflict_message(c, server["id"], "os-resetState", {"state": "active"}, as_="admin")
                assert message.endswith("it has no host")
            assert len(await list_snapshots(c)) == 1
            assert states(await run_action(c, server["id"], "unshelve")) == ("ACTIVE", "active", 1)
            assert await guest_disk(c, server["id"]) == disk
            await finish_operations(c)
            assert await list_snapshots(c, "admin") == []
            await reset(c, server["id"], "error")
            assert (await act(c, server["id"], "unshelve")).status == 409
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


def test_deletion_of_a_shelved_server_in_error_is_never_soft(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, compute__reclaim_seconds=3600, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            await reset(c, server["id"], "error")
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            await finish_operations(c)
            assert await list_snapshots(c, "admin") == []
            assert await c.list_guests_and_slots() == []

    run(scenario())


def test_reset_to_active_is_refused_without_a_guest(database_url: str) -> None:
    """Its image would be deleted, or it would be active on no host."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            disk = await guest_disk(c, server["id"])
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", 1, None)
                await run_action(c, server["id"], "shelveOffload", as_="project-admin")
            active = {"state": "active"}
            message = await conflict_message(c, server["id"], "os-resetState", active, as_="admin")
            assert "vm_state shelved: its offload or its deletion has begun" in message
            await run_action(c, server["id"], "shelveOffload", as_="project-admin")
            message = await conflict_message(c, server["id"], "os-resetState", active, as_="admin")
            assert message.endswith("vm_state shelved_offloaded")
            assert states(await run_action(c, server["id"], "unshelve")) == ("ACTIVE", "active", 1)
            assert await guest_disk(c, server["id"]) == disk
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


def test_reset_to_active_is_refused_if_the_host_of_a_shelved_server_is_down(sqlite_url: str) -> None:
    """The image is the only copy of the disk that can be reached."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, **SHORT_HOST_TIMEOUT, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            disk, host = await guest_disk(c, server["id"]), (await c.show(server["id"], as_="admin"))[HOST]
            await make_unreachable(c, host)
            message = await conflict_message(c, server["id"], "os-resetState", {"state": "active"}, as_="admin")
            assert f"vm_state shelved: its host {host} is down" in message
            assert len(await list_snapshots(c)) == 1
            # As the message says.
            assert (await act(c, server["id"], "shelveOffload", as_="project-admin")).status == 202
            await wait_for_fields(c, server["id"], status="SHELVED_OFFLOADED")
            assert states(await run_action(c, server["id"], "unshelve")) == ("ACTIVE", "active", 1)
            await make_reachable(c, host)
            await finish_operations(c)
            assert await guest_disk(c, server["id"]) == disk
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


def test_reset_to_active_fails_if_the_offload_that_it_cancels_has_begun(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", "snapshot", "hang", None, None)
                assert (await act(c, server["id"], "shelve")).status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="shelving_image_uploading")
                sim.add_failure("*", "destroy", "hang", None, None)
                sim.clear("*", "snapshot")
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="shelving_offloading")
                message = await conflict_message(c, server["id"], "os-resetState", {"state": "active"}, as_="admin")
                assert "Unshelve it" in message
                assert (await act(c, server["id"], "os-resetState", {"state": "error"}, as_="admin")).status == 202
                sim.clear()
            await wait_for_fields(c, server["id"], status="ERROR", OS_EXT_STS__task_state=None)
            assert states(await run_action(c, server["id"], "unshelve")) == ("ACTIVE", "active", 1)
            await finish_operations(c)
            await assert_nothing_is_left(c, server["id"])

    run(scenario())


@pytest.mark.parametrize("state, status", [("active", "ACTIVE"), ("error", "ERROR")])
def test_reset_of_a_soft_deleted_server(database_url: str, state: str, status: str) -> None:
    """It counts for the quota again, and is not reclaimed."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, compute__reclaim_seconds=3600) as c:
            server = await c.boot_active()
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            assert (await c.wait_until_settled(server["id"]))["status"] == "SOFT_DELETED"
            quota = f"/os-quota-sets/{DEMO}/detail"
            assert (await c.get(quota)).json()["quota_set"]["instances"]["in_use"] == 0
            assert states(await reset(c, server["id"], state)) == (status, state, 4)
            assert (await c.get(quota)).json()["quota_set"]["instances"]["in_use"] == 1
            assert (await act(c, server["id"], "restore")).status == 409
            c.services.config.compute.reclaim_seconds = 0
            await reclaim_deleted.run(c.services)
            assert await model.unfinished(c.db, server["id"]) == []
            shown = await run_action(c, server["id"], "reboot", {"type": "HARD"})
            assert states(shown) == ("ACTIVE", "active", 1)
            await assert_nothing_is_left(c, server["id"])

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
