"""os-migrateLive: bodies by version, permissions, destinations and host failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations import live_migrate
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes, Sharing
from kilonova.hosts.messages import Command
from kilonova.hosts.transport import HostUnreachable, Transport
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations
from tests.compute.servers.live_migrations import (
    ACTION,
    ANY_HOST,
    assert_only_on,
    clear_latency,
    complete_migration,
    start_slow_migration,
)
from tests.compute.servers.moves import (
    HOST,
    action_refusal,
    disable_host,
    dump_server,
    make_reachable,
    make_unreachable,
    newest_action,
    newest_migration,
    run_move,
)
from tests.compute.servers.support import act, make_flavor, rules, wait_for_fields
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

OLD_BODY = {"host": None, "block_migration": True, "disk_over_commit": False}


@pytest.fixture(autouse=True)
def short_progress_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)


def to_host(host: str | None, block: Any = "auto") -> dict[str, Any]:
    return {"host": host, "block_migration": block}


class PartitionedTransport(Transport):
    """Does not reach the hosts in `hosts`, which continue with their commands."""

    def __init__(self, c: FullCloud) -> None:
        self.hosts: set[str] = set()
        self.may_fail = asyncio.Event()
        """Calls to the unreachable hosts fail when this is set, and wait until then."""
        self.may_fail.set()
        self._real = c.services.hosts
        c.services.hosts = self

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        if host not in self.hosts:
            answer = await self._real.call(host, command, timeout=timeout)
        if host in self.hosts:
            await self.may_fail.wait()
            raise HostUnreachable(host, "cut off")
        return answer


# Destinations and progress


@proves("POST /servers/{server_id}/action#os-migrateLive")
def test_live_migrate_to_a_scheduled_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            before = await c.boot_active()
            ((_, guest),) = await c.list_guests_and_slots()
            after = await run_move(c, before["id"], ACTION, ANY_HOST, as_="manager")
            assert (after["status"], after["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
            assert after[HOST] != before[HOST]
            await assert_only_on(c, before["id"], after[HOST])
            ((_, moved_guest),) = await c.list_guests_and_slots()
            assert (moved_guest.boots, moved_guest.disk) == (guest.boots, guest.disk), "the guest must not boot again"
            found = await newest_migration(c, before["id"])
            assert found == {"status": "completed", "from": before[HOST], "to": after[HOST], "error": None}
            action = await newest_action(c, before["id"])
            assert (action["action"], action["message"]) == ("live-migration", None)
            assert [event["result"] for event in action["events"]] == ["Success"] * 10

    run(scenario())


def test_live_migrate_to_named_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            for host in ("sim-001", "sim-002", "sim-003", server[HOST]):
                if (await c.show(server["id"]))[HOST] != host:
                    assert (await run_move(c, server["id"], ACTION, to_host(host)))[HOST] == host
                    await assert_only_on(c, server["id"], host)

    run(scenario())


def test_live_migration_shows_status_and_progress(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            await start_slow_migration(c, server["id"])
            shown = await wait_for_fields(c, server["id"], status="MIGRATING")
            assert shown["OS-EXT-STS:task_state"] == "migrating"
            assert shown["OS-EXT-STS:vm_state"] == "active"
            assert shown[HOST] == server[HOST]
            seen = [await read_progress(c, server["id"])]
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while len(set(seen)) < 4:
                    await asyncio.sleep(0.02)
                    seen.append(await read_progress(c, server["id"]))
            assert seen == sorted(seen)
            await complete_migration(c.hosts, server[HOST], server["id"])
            assert (await c.wait_until_settled(server["id"]))[HOST] != server[HOST]
            assert (await c.get(f"/servers/{server['id']}/migrations", as_="admin", version="2.80")).json() == {
                "migrations": []
            }

    run(scenario())


async def read_progress(c: FullCloud, server_id: str) -> tuple[int, int, int]:
    """Processed bytes of memory and disks, and the server's progress in percent."""
    (shown,) = (await c.get(f"/servers/{server_id}/migrations", as_="admin", version="2.80")).json()["migrations"]
    assert (shown["status"], shown["memory_total_bytes"], shown["disk_total_bytes"]) == ("running", 512 * 2**20, 2**30)
    assert shown["memory_processed_bytes"] + shown["memory_remaining_bytes"] == shown["memory_total_bytes"]
    assert shown["disk_processed_bytes"] + shown["disk_remaining_bytes"] == shown["disk_total_bytes"]
    percent = (await c.show(server_id))["progress"]
    assert 0 <= percent < 100
    return shown["memory_processed_bytes"], shown["disk_processed_bytes"], percent


def test_block_migration_depends_on_shared_storage(database_url: str) -> None:
    """Two hosts share their storage, and a third one has its own."""
    shared = Shape(name="diskless", hosts=2, inventory={"VCPU": 8, "MEMORY_MB": 8192})
    own = Shape(name="plain", hosts=1, inventory={"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100})
    shapes = Shapes(shape=[shared, own], sharing=[Sharing(name="san", shapes=["diskless"], inventory={"DISK_GB": 100})])

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, shapes=shapes) as c:
            server = await c.boot_active(availability_zone=":sim-001", as_="admin")
            for host, block, message in (
                ("sim-002", True, "refused by the hypervisor"),
                ("sim-003", False, "refused by the hypervisor"),
                ("sim-002", False, None),
                ("sim-001", "auto", None),
                ("sim-003", True, None),
                ("sim-002", "auto", None),
            ):
                before = (await c.show(server["id"]))[HOST]
                after = await run_move(c, server["id"], ACTION, to_host(host, block))
                assert after[HOST] == (before if message else host), (host, block)
                assert ("fault" in after) == bool(message)
                if message:
                    assert after["fault"]["message"] == f"The requested host cannot run the server: {message}"
            assert await c.list_slots() == []
            assert set(await c.guests()) == {server["id"]}

    run(scenario())


# Accepted and refused requests


BODIES_BY_VERSION = (
    ("2.1", OLD_BODY, 202),
    ("2.1", {**OLD_BODY, "block_migration": "yes"}, 202),
    ("2.1", ANY_HOST, 400),
    ("2.24", {**OLD_BODY, "block_migration": "auto"}, 400),
    ("2.24", to_host(None, True), 400),
    ("2.25", OLD_BODY, 400),
    ("2.25", ANY_HOST, 202),
    ("2.33", to_host(None, "True"), 202),
    ("2.106", ANY_HOST, 202),
    ("2.106", to_host(None, "always"), 400),
    ("2.106", to_host(""), 400),
    ("2.106", {"block_migration": "auto"}, 400),
    ("2.106", {"host": None}, 400),
    ("2.106", {**ANY_HOST, "unverified": True}, 400),
    ("2.106", None, 400),
)


def test_live_migrate_bodies_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            for version, body, status in BODIES_BY_VERSION:
                before = await c.show(server_id)
                answer = await act(c, server_id, ACTION, body, as_="admin", version=version)
                assert answer.status == status, (version, body, answer.body)
                after = await c.wait_until_settled(server_id)
                assert (after[HOST] != before[HOST]) == (status == 202), (version, body)

    run(scenario())


def test_live_migrate_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            for caller, body, status in (
                ("other", ANY_HOST, 404),
                ("reader", ANY_HOST, 403),
                ("member", ANY_HOST, 403),
                ("manager", to_host("sim-001"), 403),
                ("manager", to_host("unknown"), 403),
            ):
                assert (await action_refusal(c, server["id"], ACTION, body, as_=caller))[0] == status, (caller, body)
            assert (await run_move(c, server["id"], ACTION, ANY_HOST, as_="manager"))[HOST] != server[HOST]
            assert (await run_move(c, server["id"], ACTION, to_host(server[HOST]), as_="admin"))[HOST] == server[HOST]

    run(scenario())


def test_live_migrate_refusals(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            missing = "11111111-1111-1111-1111-111111111111"
            assert (await action_refusal(c, missing, ACTION, ANY_HOST))[0] == 404
            assert await action_refusal(c, server["id"], ACTION, to_host("unknown")) == (
                400,
                "Compute host unknown could not be found.",
            )
            assert await action_refusal(c, server["id"], ACTION, to_host(server[HOST])) == (
                400,
                "The target host can't be the same one.",
            )
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server["id"])
            assert (await action_refusal(c, server["id"], ACTION, ANY_HOST, as_="manager"))[0] == 409
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = FALSE WHERE id = $1", server["id"])
            await start_slow_migration(c, server["id"])
            assert await action_refusal(c, server["id"], ACTION, to_host("unknown")) == (
                409,
                f"Cannot 'os-migrateLive' instance {server['id']} while it is in task_state migrating",
            )
            with rules(c) as sim:
                sim.clear()
            await c.delete(f"/servers/{server['id']}")
            stopped = await c.boot_active()
            await act(c, stopped["id"], "os-stop")
            await c.wait_until_settled(stopped["id"])
            assert (await action_refusal(c, stopped["id"], ACTION, ANY_HOST))[0] == 409

    run(scenario())


def test_no_valid_host_is_an_api_error_before_2_34_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            other = next(name for name in c.hosts.names if name != server[HOST])
            await disable_host(c, other)
            before = await dump_server(c, server["id"])
            status, message = await action_refusal(c, server["id"], ACTION, OLD_BODY, version="2.24", as_="manager")
            assert (status, message) == (400, "No valid host was found: 2 hosts: 1 disabled, 1 excluded")
            assert (await action_refusal(c, server["id"], ACTION, ANY_HOST, version="2.33"))[0] == 400
            assert (await action_refusal(c, server["id"], ACTION, to_host("unknown"), version="2.33"))[0] == 400
            assert "fault" not in await c.show(server["id"])
            after = await run_move(c, server["id"], ACTION, ANY_HOST, version="2.34")
            assert after["fault"]["message"] == message
            assert await dump_server(c, server["id"]) == before

    run(scenario())


def test_live_migrate_dry_run_changes_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            other = next(name for name in c.hosts.names if name != server[HOST])
            before = await dump_server(c, server["id"])
            dry = {"headers": {"X-Kilonova-Dry-Run": "1"}, "as_": "admin", "version": "2.80"}
            answer = await act(c, server["id"], ACTION, ANY_HOST, **dry)
            assert answer.status == 200, answer.body
            plan = answer.json()["plan"]
            assert (plan["placed"], plan["plans"][0]["chosen"]["host"]) == (1, other)
            for body, status in (
                (to_host("unknown"), 400),
                (to_host(server[HOST]), 400),
                (to_host(other), 200),
            ):
                assert (await act(c, server["id"], ACTION, body, **dry)).status == status
            await disable_host(c, other)
            assert (await act(c, server["id"], ACTION, OLD_BODY, **{**dry, "version": "2.1"})).json()["plan"][
                "placed"
            ] == 0
            assert await dump_server(c, server["id"]) == before

    run(scenario())


# Unfit destinations


@pytest.mark.parametrize("problem", ["disabled", "full", "zone", "refuses", "unreachable"])
def test_unfit_named_host_fails_the_live_migration(database_url: str, problem: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, zones=("az1", "az2"), **SHORT_HOST_TIMEOUT) as c:
            zone = {"availability_zone": "az1"} if problem == "zone" else {}
            server = await c.boot_active(flavorRef=await make_flavor(c, "big", ram=9000), **zone)
            target, message = await make_host_unfit(c, server, problem)
            before = await dump_server(c, server["id"])
            after = await run_move(c, server["id"], ACTION, to_host(target))
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            assert after["fault"]["message"] == message
            assert target not in message
            await make_reachable(c, target)
            await finish_operations(c)
            assert await dump_server(c, server["id"]) == before
            found = await newest_migration(c, server["id"])
            assert (found["status"], found["from"], found["error"]) == ("failed", server[HOST], message)
            action = await newest_action(c, server["id"], as_="member")
            assert action["message"] == "Error"
            assert message in [event.get("details") for event in action["events"]]
            assert target not in str(action)

    run(scenario())


async def make_host_unfit(c: FullCloud, server: dict[str, Any], problem: str) -> tuple[str, str]:
    """A host that cannot run the server, and the expected error message."""
    others = [name for name in c.hosts.names if name != server[HOST]]
    target = others[0]
    if problem == "disabled":
        await disable_host(c, target)
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 disabled"
    if problem == "full":
        await c.boot_active(availability_zone=f":{target}", as_="admin", flavorRef="big")
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 lacks 9000 MB memory"
    if problem == "zone":
        target = next(name for name in others if (name in ("sim-002",)) != (server[HOST] in ("sim-002",)))
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 not in zone az1"
    if problem == "refuses":
        with rules(c) as sim:
            sim.add_failure(target, "expect", "error", None, "no such machine type")
        return target, "The requested host cannot run the server: refused by the hypervisor"
    with rules(c) as sim:
        sim.add_failure(target, "*", "unreachable", None, None)
    return target, "The requested host cannot run the server: did not respond for 0.3 s"


@pytest.mark.parametrize("step", ["offer", "expect", "migrate_live"])
def test_live_migration_is_retried_on_another_host(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                failing = "*" if step == "expect" else server[HOST]
                sim.add_failure(failing, step, "error", 1, "something burns")
            after = await run_move(c, server["id"], ACTION, ANY_HOST)
            assert after[HOST] != server[HOST]
            assert "fault" not in after
            await assert_only_on(c, server["id"], after[HOST])
            action = await newest_action(c, server["id"])
            assert action["message"] is None
            assert [event["event"] for event in action["events"]].count("prepare destination") == 2

    run(scenario())


@pytest.mark.parametrize("step", ["offer", "expect"])
def test_hypervisor_errors_are_shown_to_administrators_only(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            target = next(name for name in c.hosts.names if name != server[HOST])
            failing_host = server[HOST] if step == "offer" else target
            with rules(c) as sim:
                sim.add_failure(failing_host, step, "error", 1, "the processor lacks avx512f")
            after = await run_move(c, server["id"], ACTION, to_host(target))
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            reason = f"{failing_host}: the processor lacks avx512f"
            assert reason in str(await newest_action(c, server["id"]))
            assert reason not in str(await newest_action(c, server["id"], as_="member"))
            await assert_only_on(c, server["id"], server[HOST])

    run(scenario())


# Hosts that become unreachable


@pytest.mark.parametrize("named", [False, True])
def test_destination_becomes_unreachable(database_url: str, named: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            names = [name for name in c.hosts.names if name != server[HOST]]
            first_host = (await start_slow_migration(c, server["id"], to_host(names[0] if named else None)))["to"]
            clear_latency(c)
            await make_unreachable(c, first_host)
            after = await c.wait_until_settled(server["id"])
            final_host = server[HOST] if named else next(name for name in names if name != first_host)
            assert after[HOST] == final_host
            assert ("fault" in after) == named
            assert (await newest_migration(c, server["id"]))["status"] == ("failed" if named else "completed")
            await make_reachable(c, first_host)
            await finish_operations(c)
            await assert_only_on(c, server["id"], final_host)

    run(scenario())


def test_source_becomes_unreachable_before_the_guest_has_moved(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            await start_slow_migration(c, server["id"])
            await make_unreachable(c, server[HOST])
            after = await c.wait_until_settled(server["id"])
            assert after[HOST] == server[HOST]
            assert after["fault"]["message"] == "The server's host did not respond for 0.3 s"
            assert (await newest_migration(c, server["id"]))["status"] == "failed"
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            await assert_only_on(c, server["id"], server[HOST])

    run(scenario())


def test_guest_arrives_while_the_source_is_unreachable(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            transport = PartitionedTransport(c)
            found = await start_slow_migration(c, server["id"])
            transport.hosts = {server[HOST]}
            transport.may_fail.clear()
            await complete_migration(c.hosts, server[HOST], server["id"])
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (await c.guests())[server["id"]][0] != found["to"]:
                    await asyncio.sleep(0.005)
            transport.may_fail.set()
            after = await c.wait_until_settled(server["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", found["to"])
            assert (await newest_migration(c, server["id"]))["status"] == "completed"
            cleanups = await c.db.fetch(
                "SELECT host FROM operations WHERE kind = 'clean_up_guest' AND finished_at IS NULL"
            )
            assert [row["host"] for row in cleanups] == [server[HOST]], "the source must be cleaned up"
            transport.hosts = set()
            await finish_operations(c)
            await assert_only_on(c, server["id"], found["to"])

    run(scenario())


@pytest.mark.parametrize("both", [False, True])
def test_partitioned_hosts_do_not_move_the_guest_after_the_failure(database_url: str, both: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            transport = PartitionedTransport(c)
            await start_slow_migration(c, server["id"])
            transport.hosts = set(c.hosts.names) if both else {server[HOST]}
            c.services.config.compute.live_migration_seconds_per_gib = 0.8
            after = await c.wait_until_settled(server["id"])
            assert after[HOST] == server[HOST]
            not_responding = "The server's host did not respond for 0.3 s"
            assert after["fault"]["message"] == (
                "The guest could not be moved within 0.8 s" if both else not_responding
            )
            assert (await newest_migration(c, server["id"]))["status"] == "failed"
            transport.hosts = set()
            await finish_operations(c)
            await assert_only_on(c, server["id"], server[HOST])
            # No migration is running on the host any more, or this stop would have to wait for it.
            await act(c, server["id"], "os-stop")
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHUTOFF"
            assert {host for host, _ in (await c.guests()).values()} == {server[HOST]}

    run(scenario())


def test_live_migration_time_limit_depends_on_memory(database_url: str) -> None:
    """The limit is proportional to the memory, with at least the time for one GiB."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, compute__live_migration_seconds_per_gib=0.3) as c:
            small = await c.boot_active()
            large = await c.boot_active(flavorRef=await make_flavor(c, "large", ram=2048))
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            for server, limit in ((small, "0.3"), (large, "0.6")):
                after = await run_move(c, server["id"], ACTION, ANY_HOST)
                assert after["fault"]["message"] == f"The guest could not be moved within {limit} s"
                assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
                assert (await c.guests())[server["id"]] == (server[HOST], "running")
            clear_latency(c)
            c.services.config.compute.live_migration_seconds_per_gib = 800.0
            assert "fault" not in await run_move(c, small["id"], ACTION, ANY_HOST)
            assert await c.list_slots() == []

    run(scenario())


# Deletes


@pytest.mark.parametrize("when", ["running", "source unreachable", "destination unreachable"])
def test_delete_during_live_migration(database_url: str, when: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            found = await start_slow_migration(c, server["id"])
            if when != "running":
                await make_unreachable(c, found["from" if when == "source unreachable" else "to"])
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            with rules(c) as sim:
                sim.clear()
            await finish_operations(c)
            assert await c.list_guests_and_slots() == []
            for table in ("allocations", "consumers", f"ports WHERE device_id = '{server['id']}'", "standby_bindings"):
                assert await c.db.fetch_value(f"SELECT COUNT(*) FROM {table}") == 0, table

    run(scenario())
