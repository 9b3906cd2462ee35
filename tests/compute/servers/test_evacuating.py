"""Evacuation: who may ask for it and when, where servers come to, and what becomes of the host they left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute.operations.evacuate import Evacuate
from kilonova.compute.servers import states
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes, Sharing
from kilonova.hosts.messages import Command, ListGuests
from tests.compute.operations.test_silence import all_done
from tests.compute.placements.test_dry_run import DRY
from tests.compute.placements.test_dry_run import everything as every_table
from tests.compute.servers.moves import (
    HOST,
    everything,
    find_again,
    force_down,
    lose,
    migration,
    moved,
    newest_action,
    refused,
)
from tests.compute.servers.support import act, hypervisors, rules, until
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import PATIENCE, WATCHFUL, Whole, whole

QUICK: dict[str, Any] = {"operations__host_seconds": 0.3}
STATES = {status: state for state, status in states.STATUS.items()}
NOBODY = "11111111-1111-1111-1111-111111111111"


def disks(c: Whole, server_id: str) -> dict[str, str]:
    with hypervisors(c) as store:
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
def test_a_server_runs_elsewhere_as_it_did(
    database_url: str, version: str, body: Any, before: str, after: str, answer: Any
) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            server_id, source = server["id"], server[HOST]
            destination = ({"sim-001", "sim-002"} - {source}).pop()
            if before == "SHUTOFF":
                await act(c, server_id, "os-stop", as_="admin")
                await until(c, server_id, status="SHUTOFF")
            if before == "ERROR":
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = 'error', power_state = 0 WHERE id = $1", server_id)
            await lose(c, source)
            given = await act(c, server_id, "evacuate", body, as_="admin", version=version)
            assert given.status == 200, given.body
            if answer is None:
                assert given.body == b""
            elif answer["adminPass"] is ...:
                assert len(given.json()["adminPass"]) == 12
            else:
                assert given.json() == answer
            shown = await c.settled(server_id)
            assert (shown["status"], shown[HOST]) == (after, destination)
            following = states.TRANSITIONS["evacuate"].follows[STATES[before]]
            assert STATES[after] in following, "drawn otherwise"
            assert "fault" not in shown
            assert shown["addresses"] == server["addresses"]
            power = "running" if after == "ACTIVE" else "shutdown"
            there = everything_of(await everything(c, server_id), server_id)
            assert there["guests"][destination] == power
            assert there["shares"] == {destination}
            assert there["ports"] == {destination}
            assert await migration(c, server_id) == {"status": "done", "from": source, "to": destination, "why": None}
            assert (await newest_action(c, server_id))["message"] is None
            await find_again(c, source)
            await all_done(c)
            assert await c.guests() == {server_id: (destination, power)}
            assert (await migration(c, server_id))["status"] == "completed"

    run(scenario())


def everything_of(found: dict[str, Any], server_id: str) -> dict[str, Any]:
    """Hosts that have something of the only server."""
    return {
        "guests": {host: power for host, identity, power, _ in found["guests"] if identity == server_id},
        "shares": {row["name"] for row in found["shares"]},
        "ports": {row["host_id"] for row in found["ports"]},
    }


def test_what_is_seen_meanwhile(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            destination = ({"sim-001", "sim-002"} - {server[HOST]}).pop()
            await force_down(c, server[HOST])
            with rules(c) as sim:
                sim.add_failure(destination, "spawn", "hang", None, None)
                await act(c, server["id"], "evacuate", {}, as_="admin", version="2.95")
                shown = await until(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                assert (shown["status"], shown["OS-EXT-STS:vm_state"]) == ("REBUILD", "active")
                async with asyncio.timeout(PATIENCE):
                    while (await migration(c, server["id"]))["status"] != "pre-migrating":
                        await asyncio.sleep(0.01)
                code, message = await refused(c, server["id"], "evacuate", {})
                assert (code, "task_state rebuilding" in message) == (409, True)
                sim.clear()
            await c.settled(server["id"])

    run(scenario())


def test_its_action_tells_the_steps(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            await force_down(c, server[HOST])
            await moved(c, server["id"], "evacuate", {})
            action = await newest_action(c, server["id"])
            assert action["action"] == "evacuate"
            assert sorted(event["event"] for event in action["events"]) == sorted(Evacuate.table().names)
            assert {event["result"] for event in action["events"]} == {"Success"}

    run(scenario())


class TestRefused:
    @pytest.mark.parametrize(
        "version, body, status, words",
        [
            ("2.95", {"host": "nowhere"}, 404, "Compute host nowhere could not be found."),
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
    def test_bodies(self, sqlite_url: str, version: str, body: Any, status: int, words: str) -> None:
        async def scenario() -> None:
            async with whole(sqlite_url, hosts=2) as c:
                server = await c.active()
                await force_down(c, server[HOST])
                asked = {**body, "host": server[HOST]} if body and body.get("host") == "SOURCE" else body
                code, message = await refused(c, server["id"], "evacuate", asked, version=version)
                assert (code, words in message) == (status, True), message

        run(scenario())

    def test_a_host_that_is_alive(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                server = await c.active()
                code, message = await refused(c, server["id"], "evacuate", {})
                assert (code, message) == (400, f"Compute service of {server[HOST]} is still in use.")
                code, _ = await refused(c, server["id"], "evacuate", {}, headers=DRY)
                assert code == 400

        run(scenario())

    def test_who_may(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                server = await c.active()
                await force_down(c, server[HOST])
                for caller, status in (("reader", 403), ("member", 403), ("manager", 403), ("other", 404)):
                    code, _ = await refused(c, server["id"], "evacuate", {"host": "nowhere"}, as_=caller)
                    assert code == status, caller
                code, _ = await refused(c, NOBODY, "evacuate", {})
                assert code == 404
                assert (await act(c, server["id"], "evacuate", {}, as_="project-admin", version="2.95")).status == 200
                await c.settled(server["id"])

        run(scenario())

    def test_states(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                server = await c.active()
                await force_down(c, server[HOST])
                for state in ("building", "resized", "shelved", "shelved_offloaded"):
                    async with c.db.transaction() as tx:
                        await tx.execute("UPDATE servers SET vm_state = $2 WHERE id = $1", server["id"], state)
                    code, message = await refused(c, server["id"], "evacuate", {})
                    assert (code, f"vm_state {state}" in message) == (409, True)
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = 'error', host = NULL WHERE id = $1", server["id"])
                code, message = await refused(c, server["id"], "evacuate", {})
                assert (code, "no host has it" in message) == (409, True)

        run(scenario())

    def test_locked_servers(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                server = await c.active()
                await force_down(c, server[HOST])
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server["id"])
                shown = await moved(c, server["id"], "evacuate", {})  # who may unlock may also go past a lock
                assert shown[HOST] != server[HOST]

        run(scenario())


class TestDestinations:
    def test_one_that_cannot_build_it_is_left_for_the_next(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=4) as c:
                server = await c.active()
                await force_down(c, server[HOST])
                others = sorted({"sim-001", "sim-002", "sim-003", "sim-004"} - {server[HOST]})
                with rules(c) as sim:
                    for host in others[:2]:
                        sim.add_failure(host, "spawn", "error", None, "no disk left")
                shown = await moved(c, server["id"], "evacuate", {})
                assert (shown["status"], shown[HOST]) == ("ACTIVE", others[2])
                await all_done(c)
                assert await c.guests() == {server["id"]: (others[2], "running")}

        run(scenario())

    def test_a_silent_one_is_left_too_and_cleans_up_later(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, scheduler__jitter=0.0, **QUICK) as c:
                server = await c.active()
                source = server[HOST]
                first, last = sorted({"sim-001", "sim-002", "sim-003"} - {source})
                other = await c.active(availability_zone=f":{last}", as_="admin")  # so that the first looks better
                await lose(c, source)
                # The best host builds the guest, but its answer does not come.
                with rules(c) as sim:
                    sim.add_failure(first, "spawn", "hang", None, None)
                    for step in ("describe", "destroy"):
                        sim.add_failure(first, step, "unreachable", None, None)
                    await act(c, server["id"], "evacuate", {}, as_="admin", version="2.94")
                    shown = await c.settled(server["id"])
                    assert (shown["status"], shown[HOST]) == ("ACTIVE", last)
                    assert any(rule.fired for rule in sim.all() if rule.step == "spawn")
                    assert (await migration(c, server["id"]))["status"] == "done"
                    sim.clear(first)
                    await hasten(c)
                    # Only the source says when the evacuation is complete.
                    assert (await migration(c, server["id"]))["status"] == "done"
                await find_again(c, source)
                await all_done(c)
                assert await c.guests() == {one["id"]: (last, "running") for one in (server, other)}
                assert (await migration(c, server["id"]))["status"] == "completed"

        run(scenario())

    @pytest.mark.parametrize("mode", ["error", "unreachable"])
    @pytest.mark.parametrize("before", ["ACTIVE", "ERROR"])
    def test_where_none_can_build_it_all_is_as_before(self, database_url: str, mode: str, before: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, **QUICK) as c:
                server = await c.active()
                source = server[HOST]
                others = {"sim-001", "sim-002", "sim-003"} - {source}
                if before == "ERROR":
                    async with c.db.transaction() as tx:
                        await tx.execute(
                            "UPDATE servers SET vm_state = 'error', power_state = 0 WHERE id = $1", server["id"]
                        )
                await lose(c, source)
                known = await everything(c, server["id"])
                with rules(c) as sim:
                    for host in others:
                        sim.add_failure(host, "spawn" if mode == "error" else "*", mode, None, "no disk left")
                shown = await moved(c, server["id"], "evacuate", {})
                assert (shown["status"], shown[HOST]) == (before, source)
                assert "No valid host was found" in shown["fault"]["message"]
                assert not any(host in shown["fault"]["message"] for host in c.hosts.names)
                for host in others:
                    await find_again(c, host)
                await all_done(c)
                assert await everything(c, server["id"]) == known
                assert (await migration(c, server["id"]))["status"] == "failed"
                assert (await newest_action(c, server["id"]))["message"] == "Error"

        run(scenario())

    def test_a_delete_goes_before(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2, **QUICK) as c:
                server = await c.active()
                source = server[HOST]
                destination = ({"sim-001", "sim-002"} - {source}).pop()
                await lose(c, source)
                with rules(c) as sim:
                    sim.add_failure(destination, "spawn", "hang", None, None)
                    await act(c, server["id"], "evacuate", {}, as_="admin", version="2.94")
                    await until(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                    assert (await c.delete(f"/servers/{server['id']}")).status == 204
                    await c.gone(server["id"])
                    sim.clear()
                await all_done(c)
                assert await c.guests() == {}
                assert await c.db.fetch("SELECT * FROM allocations") == []
                assert (await migration(c, server["id"]))["status"] == "cancelled"

        run(scenario())

    @pytest.mark.parametrize("shared", [True, False])
    def test_hosts_of_one_storage_keep_the_disk(self, database_url: str, shared: bool) -> None:
        """On others the guest gets a new one."""
        shape = Shape(name="diskless", hosts=2, inventory={"VCPU": 8, "MEMORY_MB": 8192})
        storage = Sharing(name="storage", inventory={"DISK_GB": 100})
        shapes = Shapes(shape=[shape], sharing=[storage]) if shared else Shapes()

        async def scenario() -> None:
            async with whole(database_url, hosts=2, shapes=shapes) as c:
                server = await c.active()
                (disk,) = disks(c, server["id"]).values()
                await force_down(c, server[HOST])
                shown = await moved(c, server["id"], "evacuate", {})
                assert (disks(c, server["id"])[shown[HOST]] == disk) == shared

        run(scenario())


async def hasten(c: Whole) -> None:
    """Let everything that is left try once more, and give it the time for it."""
    for _ in range(20):
        async with c.db.transaction() as tx:
            await tx.execute("UPDATE operations SET run_at = 0 WHERE finished_at IS NULL AND lease_until <= 0")
            tx.wake("operations")
        await asyncio.sleep(0.02)


def test_a_server_does_not_come_back_before_its_remains_are_gone(database_url: str) -> None:
    """To a host that is up for everybody else, that is: the scheduler is told, and a forced move is refused too."""

    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK, **WATCHFUL) as c:
            server = await c.active()
            source = server[HOST]
            destination = ({"sim-001", "sim-002"} - {source}).pop()
            await lose(c, source)
            assert (await moved(c, server["id"], "evacuate", {}))[HOST] == destination
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = 9e9 WHERE host = $1", source)
            await force_down(c, destination)
            for version, body in (("2.94", {}), ("2.94", {"host": source}), ("2.28", {"host": source})):
                shown = await moved(c, server["id"], "evacuate", body, version=version)
                assert shown[HOST] == destination
                assert "1 excluded" in shown["fault"]["message"]
            await find_again(c, source)
            await all_done(c)
            shown = await moved(c, server["id"], "evacuate", {})
            assert shown[HOST] == source
            assert (await c.guests())[server["id"]] is not None

    run(scenario())


class TestComingBack:
    """The source may be back at any moment; its old guests are gone before anybody counts on it."""

    def test_after_the_evacuation_it_is_down_until_the_old_guest_is_gone(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2, **WATCHFUL) as c:
                server_id = (await c.active(availability_zone=":sim-001", as_="admin"))["id"]
                await lose(c, "sim-001")
                async with beating(c):
                    assert (await moved(c, server_id, "evacuate", {}))[HOST] == "sim-002"
                    assert disks(c, server_id).keys() == {"sim-001", "sim-002"}
                    with rules(c) as sim:
                        sim.clear("sim-001")
                        sim.set_latency("sim-001", "destroy", 0.3)
                    await comes_up(c, "sim-001")
                    assert disks(c, server_id).keys() == {"sim-002"}
                await all_done(c)
                assert await c.guests() == {server_id: ("sim-002", "running")}
                assert (await migration(c, server_id))["status"] == "completed"
                assert (await c.active(availability_zone=":sim-001", as_="admin"))[HOST] == "sim-001"

        run(scenario())

    def test_during_the_evacuation_it_stays_down_too(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2, **WATCHFUL) as c:
                server_id = (await c.active(availability_zone=":sim-001", as_="admin"))["id"]
                await lose(c, "sim-001")
                async with beating(c) as beats:
                    with rules(c) as sim:
                        sim.add_failure("sim-002", "spawn", "hang", None, None)
                        given = await act(c, server_id, "evacuate", {}, as_="admin", version="2.94")
                        assert given.status == 200, given.body
                        sim.clear("sim-001")
                        until_then = beats() + 5
                        async with asyncio.timeout(PATIENCE):
                            while beats() < until_then:
                                await asyncio.sleep(0.01)
                        assert not await is_up(c, "sim-001")
                        sim.clear("sim-002")
                    assert (await c.settled(server_id))[HOST] == "sim-002"
                    await comes_up(c, "sim-001")
                    assert await c.guests() == {server_id: ("sim-002", "running")}
                await all_done(c)
                assert (await migration(c, server_id))["status"] == "completed"

        run(scenario())


@asynccontextmanager
async def beating(c: Whole) -> AsyncIterator[Callable[[], int]]:
    """Hosts report all the time; how often they did so far."""
    count = 0

    async def beat() -> None:
        nonlocal count
        while True:
            await c.heartbeat.beat()
            count += 1
            await asyncio.sleep(0.05)

    task = asyncio.create_task(beat())
    try:
        yield lambda: count
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def comes_up(c: Whole, host: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await is_up(c, host):
            await asyncio.sleep(0.01)


async def is_up(c: Whole, host: str) -> bool:
    found = (await c.get(f"/os-services?host={host}", as_="admin", version="2.96")).json()["services"]
    return bool(found[0]["state"] == "up")


class TestForcedDown:
    """A host is not said to be up while it may run guests of servers that are elsewhere."""

    @pytest.mark.parametrize("version", ["2.11", "2.53"])
    def test_is_not_taken_back_before_the_host_is_clean(self, database_url: str, version: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                servers = [await c.active(availability_zone=":sim-001", as_="admin") for _ in range(2)]
                await lose(c, "sim-001")
                await force_down(c, "sim-001")
                for server in servers:
                    await moved(c, server["id"], "evacuate", {})

                async def put(**values: Any) -> Any:
                    if version == "2.11":
                        body = {"host": "sim-001", "binary": "nova-compute", **values}
                        return await c.put("/os-services/force-down", body, as_="admin", version=version)
                    uuid = await c.db.fetch_value("SELECT uuid FROM services WHERE host = 'sim-001'")
                    return await c.put(f"/os-services/{uuid}", values, as_="admin", version=version)

                answer = await put(forced_down=False)
                assert answer.status == 400
                assert "2 guests of servers that are no longer there must be removed first" in fault(answer)[2]
                assert await c.db.fetch_value("SELECT forced_down FROM services WHERE host = 'sim-001'")
                assert (await put(forced_down=True)).status == 200
                await find_again(c, "sim-001")
                await all_done(c)
                assert (await put(forced_down=False)).status == 200
                assert await c.hosts.call("sim-001", Command(host="sim-001", verb=ListGuests())) == []

        run(scenario())


class TestTried:
    """Dry: what would happen, and nothing is changed."""

    def test_the_plan_is_told(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3, zones=("az1", "az2")) as c:
                server = await c.active(availability_zone="az1")
                await force_down(c, server[HOST])
                before = await every_table(c.db)
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
                assert await every_table(c.db) == before
                assert await c.guests() == {server["id"]: (server[HOST], "running")}

        run(scenario())
