"""Hosts that do not answer: boots and deletes go on without them, and nothing is left when they are back."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.compute.operations import silence
from kilonova.compute.operations.common import guest_of
from kilonova.compute.operations.leftovers import ClearGuest
from kilonova.hosts.messages import Command, Spawn
from kilonova.hosts.transport import StaleEpoch
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.operations.worker import SLOTS
from tests.compute.servers.support import NOTHING, act, holdings, rules, until
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole

QUICK: dict[str, Any] = {"operations__host_seconds": 0.3}
HARD = {"type": "HARD"}


async def all_done(c: Whole) -> None:
    """Wait until no operation is under way; pauses are cut short."""
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET run_at = 0 WHERE finished_at IS NULL AND lease_until <= 0")
                tx.wake("operations")
            await asyncio.sleep(0.02)


async def unfinished(c: Whole) -> list[str]:
    return [row["kind"] for row in await c.db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL")]


def test_a_boot_goes_elsewhere(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                servers = await asyncio.gather(*(c.active() for _ in range(4)))
                assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {"sim-002"}
                for server in servers:
                    kept = await c.db.fetch_value(
                        "SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server["id"]
                    )
                    assert kept == 3
                assert set(await unfinished(c)) <= {"clear guest"}
                sim.clear()
            await all_done(c)
            assert {host for host, _ in (await c.guests()).values()} == {"sim-002"}
            assert len(await c.guests()) == 4

    run(scenario())


def test_a_guest_that_was_built_all_the_same_is_destroyed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                # The command arrives, and the work goes on when the host is back; but no answer comes.
                sim.add_failure("sim-001", "spawn", "hang", None, None)
                for step in ("describe", "destroy"):
                    sim.add_failure("sim-001", step, "unreachable", None, None)
                server = await c.active(availability_zone=":sim-002", as_="admin")
                made = [(await c.boot(name=f"s{number}"))["id"] for number in range(4)]
                shown = [await c.settled(server_id) for server_id in made]
                assert {server["OS-EXT-SRV-ATTR:host"] for server in shown} == {"sim-002"}
                assert "clear guest" in await unfinished(c)
                sim.clear("sim-001")
            await all_done(c)
            guests = await c.guests()
            assert set(guests) == {*made, server["id"]}
            assert {host for host, _ in guests.values()} == {"sim-002"}

    run(scenario())


def test_a_command_that_comes_late_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                server_ids = [(await c.active())["id"] for _ in range(2)]
                sim.clear()
            await all_done(c)
            cleared = await c.db.fetch("SELECT params FROM operations WHERE kind = 'clear guest'")
            assert cleared
            for row in cleared:
                left = orjson.loads(row["params"])
                assert left["guest_id"] in server_ids
                server = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", left["guest_id"])
                assert server is not None
                late = Command(
                    host="sim-001",
                    operation=left["operation"],
                    step="spawn",
                    round=left["round"],
                    epoch=left["epoch"] - 1,
                    verb=Spawn(guest=guest_of(server, [])),
                )
                with pytest.raises(StaleEpoch):
                    await c.hosts.call("sim-001", late)
            assert {host for host, _ in (await c.guests()).values()} == {"sim-002"}

    run(scenario())


def test_a_host_that_is_only_slow_is_waited_for(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, operations__host_seconds=0.05) as c:
            with rules(c) as sim:
                sim.set_latency("*", "spawn", 0.4)
            await c.active()
            assert not await c.db.fetch("SELECT 1 FROM operations WHERE kind = 'clear guest'")

    run(scenario())


def test_where_all_are_silent_the_server_says_so(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            with rules(c) as sim:
                sim.add_failure("*", "*", "unreachable", None, None)
                shown = await c.settled((await c.boot())["id"])
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].endswith("Tried before: 2 did not answer for 0.3 s")
                sim.clear()
            await all_done(c)
            assert await holdings(c, shown["id"]) == NOTHING

    run(scenario())


def test_others_are_not_sent_to_a_host_that_one_waits_for_in_vain(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            await c.active(availability_zone=":sim-002", as_="admin")  # so that the other one looks better
            with rules(c) as sim:
                sim.add_failure("sim-001", "spawn", "hang", None, None)
                sim.add_failure("sim-001", "describe", "unreachable", None, None)
                _, known = await c.services.scheduler.look()
                with monkeypatch.context() as soon:
                    soon.setattr(silence, "PING", 0.05)
                    waiting = (await c.boot(availability_zone=":sim-001", as_="admin"))["id"]
                    async with asyncio.timeout(PATIENCE):
                        while not known.loads.unheard:
                            await asyncio.sleep(0.01)
                assert (await c.show(waiting))["status"] == "BUILD", "it waits its time"
                servers = [await c.active() for _ in range(3)]
                assert {server["OS-EXT-SRV-ATTR:host"] for server in servers} == {"sim-002"}
                sim.clear()
            assert (await c.delete(f"/servers/{waiting}", as_="admin")).status == 204
            await c.gone(waiting)

    run(scenario())


def test_many_who_wait_for_a_dead_host_keep_nobody_from_work(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a worker has slots, and each of their questions is swallowed."""
    monkeypatch.setattr(silence, "PING", 300.0)

    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "hang", None, None)
                async with c.db.transaction() as tx:
                    fence = {"operation": new_id(), "round": 1, "epoch": 1, "host": "sim-001"}
                    for _ in range(SLOTS + 10):
                        await begin(
                            tx, ClearGuest, params={"guest_id": new_id(), "slot": None, **fence}, host="sim-001"
                        )
                await c.active(availability_zone=":sim-002", as_="admin")
                assert len(await unfinished(c)) == SLOTS + 10
                sim.clear()

    run(scenario())


class TestDelete:
    def test_a_server_on_a_silent_host_goes_at_once(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1, **QUICK) as c:
                server = await c.active()
                with rules(c) as sim:
                    sim.add_failure("*", "*", "unreachable", None, None)
                    assert (await c.delete(f"/servers/{server['id']}")).status == 204
                    await c.gone(server["id"])
                    assert await c.db.fetch("SELECT * FROM allocations") == []
                    sim.clear()
                assert set(await c.guests()) == {server["id"]}
                await all_done(c)
                assert await c.guests() == {}

        run(scenario())

    def test_a_server_that_is_being_built_on_a_silent_host_goes_too(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1, **QUICK) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "hang", None, None)
                    for step in ("describe", "destroy"):
                        sim.add_failure("*", step, "unreachable", None, None)
                    server_id = (await c.boot())["id"]
                    await until(c, server_id, OS_EXT_STS__task_state="spawning")
                    assert (await c.delete(f"/servers/{server_id}")).status == 204
                    await c.gone(server_id)
                    sim.clear()
                await all_done(c)
                assert await holdings(c, server_id) == NOTHING

        run(scenario())

    def test_a_host_forced_down_is_not_waited_for(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1) as c:
                server = await c.active()
                body = {"host": "sim-001", "binary": "nova-compute", "forced_down": True}
                assert (await c.put("/os-services/force-down", body, as_="admin", version="2.11")).status == 200
                with rules(c) as sim:
                    sim.add_failure("*", "*", "unreachable", None, None)
                    await c.delete(f"/servers/{server['id']}")
                    await c.gone(server["id"])
                assert (await act(c, server["id"], "os-start")).status == 404

        run(scenario())


@pytest.mark.parametrize(
    "status, action, body", [("ACTIVE", "os-stop", None), ("SHUTOFF", "os-start", None), ("ACTIVE", "reboot", HARD)]
)
def test_power_is_left_as_it_was(database_url: str, status: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK) as c:
            server_id = (await c.active())["id"]
            if status == "SHUTOFF":
                await act(c, server_id, "os-stop")
                await c.settled(server_id)
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                assert (await act(c, server_id, action, body)).status == 202
                assert (await c.settled(server_id))["status"] == status
                sim.clear()
            await all_done(c)
            assert await c.guests() == {server_id: ("sim-001", "running" if status == "ACTIVE" else "shutdown")}

    run(scenario())
