"""evacuate: permissions, destinations, dry runs, and cleanup of the source when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute.operations.evacuate import Evacuate
from kilonova.compute.operations.steps import plugged
from kilonova.compute.servers import states
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes, Sharing
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import ListGuests
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations
from tests.compute.placements.test_dry_run import DRY, dump_tables
from tests.compute.servers.moves import (
    HOST,
    action_refusal,
    dump_server,
    force_down,
    make_reachable,
    make_unreachable,
    newest_action,
    newest_migration,
    run_move,
)
from tests.compute.servers.support import act, rules, sim_store, wait_for_fields
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, WITHOUT_LIVENESS_CACHE, FullCloud, full_cloud
from tests.support.route_coverage import proves

STATE_BY_STATUS = {status: state for state, status in states.STATUS.items()}
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"


def disk_by_host(c: FullCloud, server_id: str) -> dict[str, str]:
    with sim_store(c) as store:
        return {host: guest.disk for host, guest in store.all_guests() if guest.id == server_id}


@pytest.mark.parametrize(
    "version, body, before, after, answer",
    [
        ("2.1", {"onSharedStorage": "False", "adminPass": "secret"}, "ACTIVE", "ACTIVE", {"adminPass": "secret"}),
        ("2.13", {"onSharedStorage": True}, "SHUTOFF", "SHUTOFF", {"adminPass": ...}),
        ("2.14", {}, "ACTIVE", "ACTIVE", None),
        ("2.94", {"adminPass": "secret"}, "ACTIVE", "ACTIVE", None),
        ("2.94", {}, "SHUTOFF", "SHUTOFF", None),
        ("2.94", {}, "ERROR", "SHUTOFF", None),
        ("2.95", {}, "ACTIVE", "SHUTOFF", None),
        ("2.95", {}, "SHUTOFF", "SHUTOFF", None),
    ],
)
@proves("POST /servers/{server_id}/action#evacuate")
def test_evacuate_rebuilds_server_on_another_host(
    database_url: str, version: str, body: Any, before: str, after: str, answer: Any
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            server_id, source = server["id"], server[HOST]
            destination = ({"sim-001", "sim-002"} - {source}).pop()
            if before == "SHUTOFF":
                await act(c, server_id, "os-stop", as_="admin")
                await wait_for_fields(c, server_id, status="SHUTOFF")
            if before == "ERROR":
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = 'error', power_state = 0 WHERE id = $1", server_id)
            await make_unreachable(c, source)
            response = await act(c, server_id, "evacuate", body, as_="admin", version=version)
            assert response.status == 200, response.body
            if answer is None:
                assert response.body == b""
            elif answer["adminPass"] is ...:
                assert len(response.json()["adminPass"]) == 12
            else:
                assert response.json() == answer
            shown = await c.wait_until_settled(server_id)
            assert (shown["status"], shown[HOST]) == (after, destination)
            following = states.TRANSITIONS["evacuate"].follows[STATE_BY_STATUS[before]]
            assert STATE_BY_STATUS[after] in following
            assert "fault" not in shown
            assert shown["addresses"] == server["addresses"]
            power = "running" if after == "ACTIVE" else "shutdown"
            hosts = hosts_of(await dump_server(c, server_id), server_id)
            assert hosts["guests"][destination] == power
            assert hosts["allocations"] == {destination}
            assert hosts["ports"] == {destination}
            assert await newest_migration(c, server_id) == {
                "status": "done",
                "from": source,
                "to": destination,
                "error": None,
            }
            assert (await newest_action(c, server_id))["message"] is None
            await make_reachable(c, source)
            await finish_operations(c)
            assert await c.guests() == {server_id: (destination, power)}
            assert (await newest_migration(c, server_id))["status"] == "completed"

    run(scenario())


def hosts_of(found: dict[str, Any], server_id: str) -> dict[str, Any]:
    """Hosts with guests, allocations or ports of the only server."""
    return {
        "guests": {host: power for host, guest_id, power, _ in found["guests"] if guest_id == server_id},
        "allocations": {row["name"] for row in found["allocations"]},
        "ports": {row["host_id"] for row in found["ports"]},
    }


def test_evacuate_shows_task_state_and_refuses_a_second_one(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            destination = ({"sim-001", "sim-002"} - {server[HOST]}).pop()
            await force_down(c, server[HOST])
            with rules(c) as sim:
                sim.add_failure(destination, "spawn", "hang", None, None)
                await act(c, server["id"], "evacuate", {}, as_="admin", version="2.95")
                shown = await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                assert (shown["status"], shown["OS-EXT-STS:vm_state"]) == ("REBUILD", "active")
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while (await newest_migration(c, server["id"]))["status"] != "pre-migrating":
                        await asyncio.sleep(0.01)
                code, message = await action_refusal(c, server["id"], "evacuate", {})
                assert (code, "task_state rebuilding" in message) == (409, True)
                sim.clear()
            await c.wait_until_settled(server["id"])

    run(scenario())


def test_evacuate_action_has_an_event_per_step(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            await force_down(c, server[HOST])
            await run_move(c, server["id"], "evacuate", {})
            action = await newest_action(c, server["id"])
            assert action["action"] == "evacuate"
            without_wait = {*Evacuate.table().names} - {plugged.WAIT}
            assert sorted(event["event"] for event in action["events"]) == sorted(without_wait)
            assert {event["result"] for event in action["events"]} == {"Success"}

    run(scenario())


class TestRefusals:
    @pytest.mark.parametrize(
        "version, body, status, words",
        [
            ("2.95", {"host": "unknown"}, 404, "Compute host unknown could not be found."),
            ("2.95", {"host": "SOURCE"}, 400, "The target host can't be the same one."),
            ("2.95", {"host": ""}, 400, "host"),
            ("2.95", {"host": "sim 1"}, 400, "host"),
            ("2.95", {"host": None}, 400, "host"),
            ("2.95", {"adminPass": 7}, 400, "adminPass"),
            ("2.95", {"onSharedStorage": True}, 400, "onSharedStorage"),
            ("2.95", {"unverified": True}, 400, "unverified"),
            ("2.29", {"unverified": True, "host": "sim-003"}, 400, "unverified"),
            ("2.14", {"onSharedStorage": True}, 400, "onSharedStorage"),
            ("2.13", {}, 400, "onSharedStorage"),
            ("2.13", {"onSharedStorage": True, "adminPass": "x"}, 400, "admin password can't be changed"),
            ("2.13", {"onSharedStorage": "perhaps"}, 400, "onSharedStorage"),
            ("2.95", None, 400, "None"),
        ],
    )
    def test_bad_bodies(self, sqlite_url: str, version: str, body: Any, status: int, words: str) -> None:
        async def scenario() -> None:
            async with full_cloud(sqlite_url, hosts=2) as c:
                server = await c.boot_active()
                await force_down(c, server[HOST])
                request = {**body, "host": server[HOST]} if body and body.get("host") == "SOURCE" else body
                code, message = await action_refusal(c, server["id"], "evacuate", request, version=version)
                assert (code, words in message) == (status, True), message

        run(scenario())

    def test_host_that_is_up(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                server = await c.boot_active()
                code, message = await action_refusal(c, server["id"], "evacuate", {})
                assert (code, message) == (400, f"Compute service of {server[HOST]} is still in use.")
                code, _ = await action_refusal(c, server["id"], "evacuate", {}, headers=DRY)
                assert code == 400

        run(scenario())

    def test_roles_without_permission(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                server = await c.boot_active()
                await force_down(c, server[HOST])
                for caller, status in (("reader", 403), ("member", 403), ("manager", 403), ("other", 404)):
                    code, _ = await action_refusal(c, server["id"], "evacuate", {"host": "unknown"}, as_=caller)
                    assert code == status, caller
                code, _ = await action_refusal(c, UNKNOWN_ID, "evacuate", {})
                assert code == 404
                assert (await act(c, server["id"], "evacuate", {}, as_="project-admin", version="2.95")).status == 200
                await c.wait_until_settled(server["id"])

        run(scenario())

    def test_vm_states(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                server = await c.boot_active()
                await force_down(c, server[HOST])
                for state in ("building", "resized", "shelved", "shelved_offloaded"):
                    async with c.db.transaction() as tx:
                        await tx.execute("UPDATE servers SET vm_state = $2 WHERE id = $1", server["id"], state)
                    code, message = await action_refusal(c, server["id"], "evacuate", {})
                    assert (code, f"vm_state {state}" in message) == (409, True)
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = 'error', host = NULL WHERE id = $1", server["id"])
                code, message = await action_refusal(c, server["id"], "evacuate", {})
                assert (code, "it has no host" in message) == (409, True)

        run(scenario())

    def test_locked_server_is_evacuated_by_administrator(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                server = await c.boot_active()
                await force_down(c, server[HOST])
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server["id"])
                shown = await run_move(c, server["id"], "evacuate", {})  # administrators may ignore locks
                assert shown[HOST] != server[HOST]

        run(scenario())


class TestDestinations:
    def test_failed_build_is_retried_on_another_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=4) as c:
                server = await c.boot_active()
                await force_down(c, server[HOST])
                others = sorted({"sim-001", "sim-002", "sim-003", "sim-004"} - {server[HOST]})
                with rules(c) as sim:
                    for host in others[:2]:
                        sim.add_failure(host, "spawn", "error", None, "no disk left")
                shown = await run_move(c, server["id"], "evacuate", {})
                assert (shown["status"], shown[HOST]) == ("ACTIVE", others[2])
                await finish_operations(c)
                assert await c.guests() == {server["id"]: (others[2], "running")}

        run(scenario())

    def test_unreachable_destination_is_replaced_and_cleaned_up_later(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, scheduler__jitter=0.0, **SHORT_HOST_TIMEOUT) as c:
                server = await c.boot_active()
                source = server[HOST]
                preferred, other_host = sorted({"sim-001", "sim-002", "sim-003"} - {source})
                # A server makes the other host less preferred.
                other = await c.boot_active(availability_zone=f":{other_host}", as_="admin")
                await make_unreachable(c, source)
                # The preferred host builds the guest, but its response is lost.
                with rules(c) as sim:
                    sim.add_failure(preferred, "spawn", "hang", None, None)
                    for step in ("describe", "destroy"):
                        sim.add_failure(preferred, step, "unreachable", None, None)
                    await act(c, server["id"], "evacuate", {}, as_="admin", version="2.94")
                    shown = await c.wait_until_settled(server["id"])
                    assert (shown["status"], shown[HOST]) == ("ACTIVE", other_host)
                    assert any(rule.fired for rule in sim.all() if rule.step == "spawn")
                    assert (await newest_migration(c, server["id"]))["status"] == "done"
                    sim.clear(preferred)
                    await retry_unfinished(c)
                    # The evacuation is complete only when the source is cleaned up.
                    assert (await newest_migration(c, server["id"]))["status"] == "done"
                await make_reachable(c, source)
                await finish_operations(c)
                assert await c.guests() == {one["id"]: (other_host, "running") for one in (server, other)}
                assert (await newest_migration(c, server["id"]))["status"] == "completed"

        run(scenario())

    @pytest.mark.parametrize("mode", ["error", "unreachable"])
    @pytest.mark.parametrize("before", ["ACTIVE", "ERROR"])
    def test_server_is_unchanged_if_no_host_can_build_it(self, database_url: str, mode: str, before: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, **SHORT_HOST_TIMEOUT) as c:
                server = await c.boot_active()
                source = server[HOST]
                others = {"sim-001", "sim-002", "sim-003"} - {source}
                if before == "ERROR":
                    async with c.db.transaction() as tx:
                        await tx.execute(
                            "UPDATE servers SET vm_state = 'error', power_state = 0 WHERE id = $1", server["id"]
                        )
                await make_unreachable(c, source)
                state_before = await dump_server(c, server["id"])
                with rules(c) as sim:
                    for host in others:
                        sim.add_failure(host, "spawn" if mode == "error" else "*", mode, None, "no disk left")
                shown = await run_move(c, server["id"], "evacuate", {})
                assert (shown["status"], shown[HOST]) == (before, source)
                assert "No valid host was found" in shown["fault"]["message"]
                assert not any(host in shown["fault"]["message"] for host in c.hosts.names)
                for host in others:
                    await make_reachable(c, host)
                await finish_operations(c)
                assert await dump_server(c, server["id"]) == state_before
                assert (await newest_migration(c, server["id"]))["status"] == "failed"
                assert (await newest_action(c, server["id"]))["message"] == "Error"

        run(scenario())

    def test_delete_cancels_an_evacuation(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
                server = await c.boot_active()
                source = server[HOST]
                destination = ({"sim-001", "sim-002"} - {source}).pop()
                await make_unreachable(c, source)
                with rules(c) as sim:
                    sim.add_failure(destination, "spawn", "hang", None, None)
                    await act(c, server["id"], "evacuate", {}, as_="admin", version="2.94")
                    await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                    assert (await c.delete(f"/servers/{server['id']}")).status == 204
                    await c.wait_until_deleted(server["id"])
                    sim.clear()
                await finish_operations(c)
                assert await c.guests() == {}
                assert await c.db.fetch("SELECT * FROM allocations") == []
                assert (await newest_migration(c, server["id"]))["status"] == "cancelled"

        run(scenario())

    @pytest.mark.parametrize("shared", [True, False])
    def test_disk_is_kept_on_shared_storage_only(self, database_url: str, shared: bool) -> None:
        shape = Shape(name="diskless", hosts=2, inventory={"VCPU": 8, "MEMORY_MB": 8192})
        storage = Sharing(name="storage", inventory={"DISK_GB": 100})
        shapes = Shapes(shape=[shape], sharing=[storage]) if shared else Shapes()

        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2, shapes=shapes) as c:
                server = await c.boot_active()
                (disk,) = disk_by_host(c, server["id"]).values()
                await force_down(c, server[HOST])
                shown = await run_move(c, server["id"], "evacuate", {})
                assert (disk_by_host(c, server["id"])[shown[HOST]] == disk) == shared

        run(scenario())


async def retry_unfinished(c: FullCloud) -> None:
    """Retry unfinished operations at once, and give them time to run."""
    for _ in range(20):
        async with c.db.transaction() as tx:
            await tx.execute("UPDATE operations SET run_at = 0 WHERE finished_at IS NULL AND lease_until <= 0")
            tx.notify("operations")
        await asyncio.sleep(0.02)


def test_source_is_excluded_until_its_old_guest_is_removed(database_url: str) -> None:
    """The source is up again, but this server is not scheduled or forced there."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT, **WITHOUT_LIVENESS_CACHE) as c:
            server = await c.boot_active()
            source = server[HOST]
            destination = ({"sim-001", "sim-002"} - {source}).pop()
            await make_unreachable(c, source)
            assert (await run_move(c, server["id"], "evacuate", {}))[HOST] == destination
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = 9e9 WHERE host = $1", source)
            await force_down(c, destination)
            for version, body in (("2.94", {}), ("2.94", {"host": source}), ("2.28", {"host": source})):
                shown = await run_move(c, server["id"], "evacuate", body, version=version)
                assert shown[HOST] == destination
                assert "1 excluded" in shown["fault"]["message"]
            await make_reachable(c, source)
            await finish_operations(c)
            shown = await run_move(c, server["id"], "evacuate", {})
            assert shown[HOST] == source
            assert (await c.guests())[server["id"]] is not None

    run(scenario())


class TestReturnOfSource:
    """The source may return at any time. It counts as up only when its old guests are removed."""

    def test_source_is_down_after_evacuation_until_old_guest_is_removed(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2, **WITHOUT_LIVENESS_CACHE) as c:
                server_id = (await c.boot_active(availability_zone=":sim-001", as_="admin"))["id"]
                await make_unreachable(c, "sim-001")
                async with heartbeats(c):
                    assert (await run_move(c, server_id, "evacuate", {}))[HOST] == "sim-002"
                    assert disk_by_host(c, server_id).keys() == {"sim-001", "sim-002"}
                    with rules(c) as sim:
                        sim.clear("sim-001")
                        sim.set_latency("sim-001", "destroy", 0.3)
                    await wait_until_up(c, "sim-001")
                    assert disk_by_host(c, server_id).keys() == {"sim-002"}
                await finish_operations(c)
                assert await c.guests() == {server_id: ("sim-002", "running")}
                assert (await newest_migration(c, server_id))["status"] == "completed"
                assert (await c.boot_active(availability_zone=":sim-001", as_="admin"))[HOST] == "sim-001"

        run(scenario())

    def test_source_is_down_during_evacuation(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2, **WITHOUT_LIVENESS_CACHE) as c:
                server_id = (await c.boot_active(availability_zone=":sim-001", as_="admin"))["id"]
                await make_unreachable(c, "sim-001")
                async with heartbeats(c) as count:
                    with rules(c) as sim:
                        sim.add_failure("sim-002", "spawn", "hang", None, None)
                        response = await act(c, server_id, "evacuate", {}, as_="admin", version="2.94")
                        assert response.status == 200, response.body
                        sim.clear("sim-001")
                        last_beat = count() + 5
                        async with asyncio.timeout(TIMEOUT_SECONDS):
                            while count() < last_beat:
                                await asyncio.sleep(0.01)
                        assert not await is_up(c, "sim-001")
                        sim.clear("sim-002")
                    assert (await c.wait_until_settled(server_id))[HOST] == "sim-002"
                    await wait_until_up(c, "sim-001")
                    assert await c.guests() == {server_id: ("sim-002", "running")}
                await finish_operations(c)
                assert (await newest_migration(c, server_id))["status"] == "completed"

        run(scenario())


@asynccontextmanager
async def heartbeats(c: FullCloud) -> AsyncIterator[Callable[[], int]]:
    """Heartbeats in the background. Yields a function that counts them."""
    beat_count = 0

    async def beat() -> None:
        nonlocal beat_count
        while True:
            await c.heartbeat.beat()
            beat_count += 1
            await asyncio.sleep(0.05)

    task = asyncio.create_task(beat())
    try:
        yield lambda: beat_count
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_until_up(c: FullCloud, host: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await is_up(c, host):
            await asyncio.sleep(0.01)


async def is_up(c: FullCloud, host: str) -> bool:
    found = (await c.get(f"/os-services?host={host}", as_="admin", version="2.96")).json()["services"]
    return bool(found[0]["state"] == "up")


class TestForcedDown:
    """A host is not up while it may run guests of servers that were evacuated."""

    @pytest.mark.parametrize("version", ["2.11", "2.53"])
    def test_forced_down_cannot_be_cleared_before_old_guests_are_removed(self, database_url: str, version: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=2) as c:
                servers = [await c.boot_active(availability_zone=":sim-001", as_="admin") for _ in range(2)]
                await make_unreachable(c, "sim-001")
                await force_down(c, "sim-001")
                for server in servers:
                    await run_move(c, server["id"], "evacuate", {})

                async def put(**values: Any) -> Any:
                    if version == "2.11":
                        body = {"host": "sim-001", "binary": "nova-compute", **values}
                        return await c.put("/os-services/force-down", body, as_="admin", version=version)
                    uuid = await c.db.fetch_value("SELECT uuid FROM services WHERE host = 'sim-001'")
                    return await c.put(f"/os-services/{uuid}", values, as_="admin", version=version)

                answer = await put(forced_down=False)
                assert answer.status == 400
                assert "2 guests of servers that were moved away must be removed first" in fault(answer)[2]
                assert await c.db.fetch_value("SELECT forced_down FROM services WHERE host = 'sim-001'")
                assert (await put(forced_down=True)).status == 200
                await make_reachable(c, "sim-001")
                await finish_operations(c)
                assert (await put(forced_down=False)).status == 200
                assert await c.hosts.call("sim-001", Command(host="sim-001", verb=ListGuests())) == []

        run(scenario())


class TestDryRun:
    def test_dry_run_returns_plan_and_changes_nothing(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=3, zones=("az1", "az2")) as c:
                server = await c.boot_active(availability_zone="az1")
                await force_down(c, server[HOST])
                before = await dump_tables(c.db)
                answer = await act(c, server["id"], "evacuate", {}, as_="admin", version="2.95", headers=DRY)
                assert answer.status == 200, answer.body
                plan = answer.json()["plan"]
                assert (plan["servers"], plan["placed"]) == (1, 1)
                chosen = plan["plans"][0]["chosen"]["host"]
                assert chosen == ({"sim-001", "sim-003"} - {server[HOST]}).pop()
                answer = await act(
                    c, server["id"], "evacuate", {"host": "sim-002"}, as_="admin", version="2.95", headers=DRY
                )
                assert answer.json()["plan"]["placed"] == 0
                assert "1 not in zone az1" in answer.json()["plan"]["plans"][0]["message"]
                answer = await act(
                    c, server["id"], "evacuate", {"host": "sim-002"}, as_="admin", version="2.28", headers=DRY
                )
                (forced,) = answer.json()["plan"]["plans"]
                assert (forced["placed"], forced["chosen"]["host"]) == (True, "sim-002")
                assert await dump_tables(c.db) == before
                assert await c.guests() == {server["id"]: (server[HOST], "running")}

        run(scenario())
