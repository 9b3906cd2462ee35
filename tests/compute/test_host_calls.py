"""Unreachable hosts: operations continue without them, and deferred cleanup runs when they respond again."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.compute import host_calls
from kilonova.compute.operations.deferred_cleanup import CleanUpGuest
from kilonova.compute.operations.steps.server import guest_of
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Spawn
from kilonova.hosts.transport import StaleEpoch
from kilonova.ids import new_id
from kilonova.operations.worker import DEFAULT_SLOTS
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, begin_stored, finish_operations, unfinished_kinds
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules, wait_for_fields
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, full_cloud

HARD = {"type": "HARD"}


def test_boot_avoids_unreachable_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                servers = await asyncio.gather(*(c.boot_active() for _ in range(4)))
                assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {"sim-002"}
                for server in servers:
                    allocations = await c.db.fetch_value(
                        "SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server["id"]
                    )
                    assert allocations == 3
                assert set(await unfinished_kinds(c)) <= {"clean_up_guest"}
                sim.clear()
            await finish_operations(c)
            assert {host for host, _ in (await c.guests()).values()} == {"sim-002"}
            assert len(await c.guests()) == 4

    run(scenario())


def test_guest_built_by_unreachable_host_is_destroyed(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            with rules(c) as sim:
                # The host receives the command and builds the guest when it is back, but its answer is lost.
                sim.add_failure("sim-001", "spawn", "hang", None, None)
                for step in ("describe", "destroy"):
                    sim.add_failure("sim-001", step, "unreachable", None, None)
                server = await c.boot_active(availability_zone=":sim-002", as_="admin")
                server_ids = [(await c.boot(name=f"s{number}"))["id"] for number in range(4)]
                shown = [await c.wait_until_settled(server_id) for server_id in server_ids]
                assert {server["OS-EXT-SRV-ATTR:host"] for server in shown} == {"sim-002"}
                assert "clean_up_guest" in await unfinished_kinds(c)
                sim.clear("sim-001")
            await finish_operations(c)
            guests = await c.guests()
            assert set(guests) == {*server_ids, server["id"]}
            assert {host for host, _ in guests.values()} == {"sim-002"}

    run(scenario())


def test_host_refuses_late_command_of_boot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                server_ids = [(await c.boot_active())["id"] for _ in range(2)]
                sim.clear()
            await finish_operations(c)
            cleanups = await c.db.fetch("SELECT params FROM operations WHERE kind = 'clean_up_guest'")
            assert cleanups
            for row in cleanups:
                params = orjson.loads(row["params"])
                assert params["guest_id"] in server_ids
                row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", params["guest_id"])
                assert row is not None
                late = Command(
                    host="sim-001",
                    operation=params["operation"],
                    step="spawn",
                    round=params["round"],
                    epoch=params["epoch"] - 1,
                    verb=Spawn(guest=guest_of(Server.decode(row), [])),
                )
                with pytest.raises(StaleEpoch):
                    await c.hosts.call("sim-001", late)
            assert {host for host, _ in (await c.guests()).values()} == {"sim-002"}

    run(scenario())


def test_boot_waits_for_slow_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, operations__host_timeout_seconds=0.05) as c:
            with rules(c) as sim:
                sim.set_latency("*", "spawn", 0.4)
            await c.boot_active()
            assert not await c.db.fetch("SELECT 1 FROM operations WHERE kind = 'clean_up_guest'")

    run(scenario())


def test_boot_fault_counts_unreachable_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            with rules(c) as sim:
                sim.add_failure("*", "*", "unreachable", None, None)
                shown = await c.wait_until_settled((await c.boot())["id"])
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].endswith("Tried before: 2 did not respond for 0.3 s")
                sim.clear()
            await finish_operations(c)
            assert await count_server_resources(c, shown["id"]) == NO_RESOURCES

    run(scenario())


def test_scheduler_avoids_host_while_an_operation_waits_for_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            await c.boot_active(availability_zone=":sim-002", as_="admin")  # so that the scheduler prefers sim-001
            with rules(c) as sim:
                sim.add_failure("sim-001", "spawn", "hang", None, None)
                sim.add_failure("sim-001", "describe", "unreachable", None, None)
                _, snapshot = await c.services.scheduler.current_hosts()
                with monkeypatch.context() as short:
                    short.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.05)
                    waiting = (await c.boot(availability_zone=":sim-001", as_="admin"))["id"]
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        while not snapshot.loads.unreachable:
                            await asyncio.sleep(0.01)
                assert (await c.show(waiting))["status"] == "BUILD", "the boot still waits for its host"
                servers = [await c.boot_active() for _ in range(3)]
                assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {"sim-002"}
                sim.clear()
            assert (await c.delete(f"/servers/{waiting}", as_="admin")).status == 204
            await c.wait_until_deleted(waiting)

    run(scenario())


def test_operations_waiting_for_dead_host_do_not_block_worker(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More operations than a worker has slots wait for a host that never answers."""
    monkeypatch.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 300.0)

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "hang", None, None)
                async with c.db.transaction() as tx:
                    fence = {"operation": new_id(), "round": 1, "epoch": 1, "host": "sim-001"}
                    for _ in range(DEFAULT_SLOTS + 10):
                        await begin_stored(
                            tx, CleanUpGuest, {"guest_id": new_id(), "slot": None, **fence}, host="sim-001"
                        )
                await c.boot_active(availability_zone=":sim-002", as_="admin")
                assert len(await unfinished_kinds(c)) == DEFAULT_SLOTS + 10
                sim.clear()

    run(scenario())


class TestDelete:
    def test_delete_on_unreachable_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
                server = await c.boot_active()
                with rules(c) as sim:
                    sim.add_failure("*", "*", "unreachable", None, None)
                    assert (await c.delete(f"/servers/{server['id']}")).status == 204
                    await c.wait_until_deleted(server["id"])
                    assert await c.db.fetch("SELECT * FROM allocations") == []
                    sim.clear()
                assert set(await c.guests()) == {server["id"]}
                await finish_operations(c)
                assert await c.guests() == {}

        run(scenario())

    def test_delete_while_building_on_unreachable_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "hang", None, None)
                    for step in ("describe", "destroy"):
                        sim.add_failure("*", step, "unreachable", None, None)
                    server_id = (await c.boot())["id"]
                    await wait_for_fields(c, server_id, OS_EXT_STS__task_state="spawning")
                    assert (await c.delete(f"/servers/{server_id}")).status == 204
                    await c.wait_until_deleted(server_id)
                    sim.clear()
                await finish_operations(c)
                assert await count_server_resources(c, server_id) == NO_RESOURCES

        run(scenario())

    def test_delete_does_not_wait_for_forced_down_host(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url, hosts=1) as c:
                server = await c.boot_active()
                body = {"host": "sim-001", "binary": "nova-compute", "forced_down": True}
                assert (await c.put("/os-services/force-down", body, as_="admin", version="2.11")).status == 200
                with rules(c) as sim:
                    sim.add_failure("*", "*", "unreachable", None, None)
                    await c.delete(f"/servers/{server['id']}")
                    await c.wait_until_deleted(server["id"])
                assert (await act(c, server["id"], "os-start")).status == 404

        run(scenario())


@pytest.mark.parametrize(
    "status, action, body", [("ACTIVE", "os-stop", None), ("SHUTOFF", "os-start", None), ("ACTIVE", "reboot", HARD)]
)
def test_failed_power_action_restores_power_state(database_url: str, status: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            server_id = (await c.boot_active())["id"]
            if status == "SHUTOFF":
                await act(c, server_id, "os-stop")
                await c.wait_until_settled(server_id)
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                assert (await act(c, server_id, action, body)).status == 202
                assert (await c.wait_until_settled(server_id))["status"] == status
                sim.clear()
            await finish_operations(c)
            assert await c.guests() == {server_id: ("sim-001", "running" if status == "ACTIVE" else "shutdown")}

    run(scenario())
