"""Host failures during resize, confirm and revert: each operation ends, and no guest or disk is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute import host_calls
from kilonova.hosts.drivers.sim.rules import Rules
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations, unfinished_kinds
from tests.compute.servers.actions.test_resize import (
    SMALL_FLAVOR,
    TINY_RESOURCES,
    allocations_of,
    boot_resized,
    confirm,
    guest_disks,
    resize,
    revert,
)
from tests.compute.servers.moves import (
    HOST,
    disable_host,
    dump_server,
    force_down,
    make_unreachable,
    newest_action,
    newest_migration,
    run_move,
)
from tests.compute.servers.support import act, rules, unreachable_after, wait_for_fields
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

SAME_HOST: dict[str, Any] = {"hosts": 1, "compute__resize_on_same_host": True, **SHORT_HOST_TIMEOUT}


@pytest.fixture(autouse=True)
def short_probe_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations soon give up on a host where an earlier command hangs."""
    monkeypatch.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.3)


def other_hosts(c: FullCloud, host: str) -> list[str]:
    return [name for name in c.hosts.names if name != host]


@asynccontextmanager
async def unreachable_at(c: FullCloud, host: str, *steps: str, **modes: str) -> AsyncIterator[Rules]:
    """The host does not respond to these steps, nor to `describe` after the first of them, until the context ends."""
    with rules(c) as sim:
        mode_by_step = {**dict.fromkeys(steps, "unreachable"), **modes}
        rule_ids = [sim.add_failure(host, step, mode, None, None) for step, mode in mode_by_step.items()]
        async with unreachable_after(sim, host, *rule_ids):
            yield sim
        sim.clear()


async def dump_with_disks(c: FullCloud, server_id: str) -> dict[str, Any]:
    """The state of the server, and memory and disk of each guest and slot. The memory identifies the flavor."""
    guests = sorted((host, state.slot, state.ram_mb, state.disk) for host, state in await c.list_guests_and_slots())
    return {**await dump_server(c, server_id), "disks": guests}


async def assert_unchanged(c: FullCloud, server_id: str, before: dict[str, Any]) -> None:
    """The state is as before when all operations have finished."""
    await finish_operations(c)
    assert await dump_with_disks(c, server_id) == before


@pytest.mark.parametrize("action, body", [("resize", SMALL_FLAVOR), ("migrate", None)])
def test_refusing_destination_is_replaced_by_another(database_url: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            refusing, disk = other_hosts(c, server[HOST])[0], await guest_disks(c)
            with rules(c) as sim:
                sim.add_failure(refusing, "receive", "error", None, "no cellar")
                shown = await run_move(c, server["id"], action, body)
                sim.clear()
            (destination,) = set(other_hosts(c, server[HOST])) - {refusing}
            assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", destination)
            assert (await newest_migration(c, server["id"]))["to"] == destination
            assert (await c.guests())[server["id"]] == (destination, "running")
            assert [host for host, _ in await c.list_slots()] == [server[HOST]]
            assert await guest_disks(c) == disk
            assert {host for host, _ in (await allocations_of(c, server["id"])).values()} == {server[HOST], destination}

    run(scenario())


def test_unreachable_destination_is_replaced_by_another(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            unreachable_host = other_hosts(c, server[HOST])[0]
            with rules(c) as sim:
                # The host builds the guest, but its response is lost.
                sim.add_failure(unreachable_host, "receive", "hang", None, None)
                for step in ("destroy", "describe"):
                    sim.add_failure(unreachable_host, step, "unreachable", None, None)
                shown = await resize(c, server["id"])
                assert (shown["status"], shown[HOST] in (unreachable_host, server[HOST])) == ("VERIFY_RESIZE", False)
                assert set(await unfinished_kinds(c)) <= {"clean_up_guest", "clean_up_slot"}
                sim.clear()
            await finish_operations(c)
            assert (await c.guests()) == {server["id"]: (shown[HOST], "running")}
            assert (await confirm(c, server["id"]))["status"] == "ACTIVE"

    run(scenario())


def test_resize_without_valid_host_leaves_server_unchanged(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            server = await c.boot_active()
            before = await dump_with_disks(c, server["id"])
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", None, "no cellar")
                shown = await resize(c, server["id"])
                sim.clear()
            assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
            assert shown["flavor"] == server["flavor"]
            reason = "No valid host was found: 3 hosts: 3 excluded. Tried before: 2 refused by the hypervisor"
            assert shown["fault"]["message"] == reason
            for host in other_hosts(c, server[HOST]):
                assert f"{host}: no cellar" in shown["fault"]["details"]
            found = await newest_migration(c, server["id"])
            assert (found["status"], found["error"]) == ("error", reason)
            action = await newest_action(c, server["id"], as_="member")
            assert (action["action"], action["message"]) == ("resize", "Error")
            assert reason in [event["details"] for event in action["events"]]
            assert not [name for name in c.hosts.names if name in str(action)]
            await assert_unchanged(c, server["id"], before)
            assert (await resize(c, server["id"]))["status"] == "VERIFY_RESIZE"
            assert "fault" not in await c.show(server["id"])

    run(scenario())


@pytest.mark.parametrize("problem", ["disabled", "full", "down", "refuses"])
def test_migrate_to_an_unfit_named_host_fails(database_url: str, problem: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            named, before = other_hosts(c, server[HOST])[0], await dump_with_disks(c, server["id"])
            if problem == "disabled":
                await disable_host(c, named)
            elif problem == "full":
                async with c.db.transaction() as tx:
                    await tx.execute(
                        "UPDATE inventories SET reserved = total WHERE resource_class = 'DISK_GB' AND provider_id ="
                        " (SELECT id FROM resource_providers WHERE name = $1)",
                        named,
                    )
                    await tx.execute("UPDATE resource_providers SET generation = generation + 1")
            elif problem == "down":
                await make_unreachable(c, named)
            with rules(c) as sim:
                if problem == "refuses":
                    sim.add_failure(named, "receive", "error", None, None)
                shown = await run_move(c, server["id"], "migrate", {"host": named})
                sim.clear()
            assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
            assert shown["fault"]["message"].startswith("No valid host was found")
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            assert (await newest_migration(c, server["id"]))["status"] == "error"
            await assert_unchanged(c, server["id"], before)

    run(scenario())


@pytest.mark.parametrize("step, undo_steps", [("power_off", ["power_on"]), ("park", ["unpark", "power_on"])])
def test_source_becomes_unreachable_during_resize(database_url: str, step: str, undo_steps: list[str]) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            before = await dump_with_disks(c, server["id"])
            async with unreachable_at(c, server[HOST], step, *undo_steps):
                shown = await resize(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                assert shown["fault"]["message"].endswith("did not respond for 0.3 s")
                assert set(await unfinished_kinds(c)) == {"restore_guest"}
            await assert_unchanged(c, server["id"], before)

    run(scenario())


def test_source_is_unreachable_during_undo_of_resize(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            before = await dump_with_disks(c, server["id"])
            async with unreachable_at(c, server[HOST], "unpark", "power_on") as sim:
                sim.add_failure("*", "receive", "error", None, None)
                shown = await resize(c, server["id"])
                assert shown["status"] == "ACTIVE"
                assert [host for host, _ in await c.list_slots()] == [server[HOST]]
                assert await c.guests() == {}
            await assert_unchanged(c, server["id"], before)

    run(scenario())


def test_slot_on_unreachable_source_is_cleaned_up_after_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            async with unreachable_at(c, server[HOST], "unpark", "power_on", "destroy", "discard") as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                assert (await act(c, server["id"], "resize", SMALL_FLAVOR)).status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="resize_finish")
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.wait_until_deleted(server["id"])
                assert [host for host, _ in await c.list_slots()] == [server[HOST]]
            await finish_operations(c)
            assert await c.list_guests_and_slots() == []
            assert await allocations_of(c, server["id"]) == {}

    run(scenario())


@pytest.mark.parametrize("mode", ["hang", "unreachable"])
def test_host_becomes_unreachable_during_resize_on_same_host(database_url: str, mode: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **SAME_HOST) as c:
            server = await c.boot_active()
            before = await dump_with_disks(c, server["id"])
            async with unreachable_at(c, server[HOST], "destroy", "unpark", "power_on", receive=mode):
                shown = await resize(c, server["id"])
                assert (shown["status"], shown["flavor"]) == ("ACTIVE", server["flavor"])
                # No cleanup that would remove the server's own guest or keep its host down.
                assert set(await unfinished_kinds(c)) == {"restore_guest"}
            await assert_unchanged(c, server["id"], before)

    run(scenario())


@pytest.mark.parametrize("flags", [{"hosts": 2, **SHORT_HOST_TIMEOUT}, SAME_HOST], ids=["elsewhere", "same host"])
@pytest.mark.parametrize("mode", ["hang", "unreachable", "error"])
def test_failed_revert_leaves_the_resize_unconfirmed(database_url: str, flags: dict[str, Any], mode: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **flags) as c:
            server, resized = await boot_resized(c)
            before = await dump_with_disks(c, server["id"])
            with rules(c) as sim:
                if mode == "error":
                    c.services.config.operations.host_timeout_seconds = (
                        600.0  # the rule fires once, so the response must not time out
                    )
                    sim.add_failure(server[HOST], "unpark", mode, 1, None)
                    shown = await revert(c, server["id"])
                else:
                    async with unreachable_at(c, server[HOST], "power_on", unpark=mode):
                        shown = await revert(c, server["id"])
            assert (shown["status"], shown[HOST], shown["flavor"]) == (
                "VERIFY_RESIZE",
                resized[HOST],
                resized["flavor"],
            )
            assert shown["fault"]["message"].startswith("The host could not unpark guest")
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            await assert_unchanged(c, server["id"], before)
            assert (await newest_migration(c, server["id"]))["status"] == "finished"
            shown = await revert(c, server["id"])
            assert (shown["status"], shown["flavor"]) == ("ACTIVE", server["flavor"])
            await finish_operations(c)
            assert (await c.guests()) == {server["id"]: (server[HOST], "running")}
            ((_, slot, ram, disk),) = (await dump_with_disks(c, server["id"]))["disks"]
            assert (slot, ram, disk) == ("", 512, before["disks"][0][3])

    run(scenario())


def test_revert_fails_and_guest_runs_on_if_source_is_down(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            await make_unreachable(c, server[HOST])
            with rules(c) as sim:
                sim.add_failure(resized[HOST], "power_off", "error", None, None)
                shown = await revert(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", resized[HOST])
                assert shown["fault"]["message"] == "The host could not unpark guest: it is down"
                sim.clear()

    run(scenario())


def test_revert_fails_if_destination_becomes_unreachable(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            before = await dump_with_disks(c, server["id"])
            async with unreachable_at(c, resized[HOST], "power_off", "power_on"):
                shown = await revert(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", resized[HOST])
            await assert_unchanged(c, server["id"], before)

    run(scenario())


def test_revert_fails_if_destination_is_unreachable_but_not_forced_down(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            await make_unreachable(c, resized[HOST])
            shown = await revert(c, server["id"])
            assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", resized[HOST])

    run(scenario())


def test_revert_succeeds_if_destination_is_forced_down(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            server_id, down_host = server["id"], resized[HOST]
            await make_unreachable(c, down_host)
            await force_down(c, down_host)
            with rules(c) as sim:
                # A failed revert leaves the server on its host with all its resources.
                before = await dump_server(c, server_id)
                sim.add_failure(server[HOST], "unpark", "error", None, None)
                assert (await revert(c, server_id))["status"] == "VERIFY_RESIZE"
                assert {**await dump_server(c, server_id), "unfinished": []} == before
                sim.clear(server[HOST])
                shown = await revert(c, server_id)
                assert (shown["status"], shown[HOST], shown["flavor"]) == ("ACTIVE", server[HOST], server["flavor"])
                assert list((await allocations_of(c, server_id)).values()) == [(server[HOST], TINY_RESOURCES)]
                await c.heartbeat.beat()
                assert await service_state(c, down_host) == "down"
                sim.clear(down_host)
            await finish_operations(c)
            ((host, slot, ram, _),) = (await dump_with_disks(c, server_id))["disks"]
            assert (host, slot, ram) == (server[HOST], "", 512)
            await force_down(c, down_host, False)
            await c.heartbeat.beat()
            assert await service_state(c, down_host) == "up"

    run(scenario())


async def service_state(c: FullCloud, host: str) -> str:
    (service,) = (await c.get(f"/os-services?host={host}", as_="admin")).json()["services"]
    state: str = service["state"]
    return state


def test_confirm_succeeds_if_source_is_unreachable(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            await make_unreachable(c, server[HOST])
            shown = await confirm(c, server["id"])
            assert (shown["status"], shown[HOST]) == ("ACTIVE", resized[HOST])
            assert list(await allocations_of(c, server["id"])) == ["server"]
            assert await unfinished_kinds(c) == ["clean_up_slot"]
            with rules(c) as sim:
                sim.clear()
            await finish_operations(c)
            assert await c.list_slots() == []
            assert (await c.guests())[server["id"]] == (resized[HOST], "running")

    run(scenario())


def test_failed_confirm_can_be_repeated(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server, _ = await boot_resized(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], "discard", "error", None, "stuck")
                shown = await confirm(c, server["id"])
                assert (shown["status"], shown["fault"]["message"]) == (
                    "VERIFY_RESIZE",
                    "The host could not discard guest: refused by the hypervisor",
                )
                sim.clear()
            assert (await confirm(c, server["id"]))["status"] == "ACTIVE"
            assert await c.list_slots() == []

    run(scenario())


def test_confirm_cleans_up_the_guest_of_a_failed_revert(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server, resized = await boot_resized(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], "unpark", "hang", None, None)
                for step in ("power_off", "describe", "discard"):
                    sim.add_failure(server[HOST], step, "unreachable", None, None)
                assert (await revert(c, server["id"]))["status"] == "VERIFY_RESIZE"
                assert "park_guest" in await unfinished_kinds(c)
                assert (await confirm(c, server["id"]))["status"] == "ACTIVE"
                sim.clear()
            await finish_operations(c)
            assert [(host, state.slot) for host, state in await c.list_guests_and_slots()] == [(resized[HOST], "")]

    run(scenario())
