"""os-migrateLive: who may, what is taken by which version, where servers come to, and hosts that fail on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.operations import live_migrate
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes, Sharing
from kilonova.hosts.messages import Command
from kilonova.hosts.transport import HostUnreachable, Transport
from tests.compute.operations.test_silence import all_done
from tests.compute.servers.live import ACTION, ANYWHERE, arrive, at_home, be_quick, begin, under_way
from tests.compute.servers.moves import (
    HOST,
    disable,
    everything,
    find_again,
    lose,
    migration,
    moved,
    newest_action,
    refused,
)
from tests.compute.servers.support import act, make_flavor, rules, until
from tests.support import run
from tests.support.proves import proves
from tests.support.whole import PATIENCE, Whole, whole

OLD = {"host": None, "block_migration": True, "disk_over_commit": False}
QUICK: dict[str, Any] = {"operations__host_seconds": 0.3}


@pytest.fixture(autouse=True)
def quick_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)


def to(host: str | None, block: Any = "auto") -> dict[str, Any]:
    return {"host": host, "block_migration": block}


class Cut(Transport):
    """Does not reach some of the hosts, which go on with what they do."""

    def __init__(self, c: Whole) -> None:
        self.hosts: set[str] = set()
        self.tells = asyncio.Event()
        """Who asks for them is told so as soon as this is set."""
        self.tells.set()
        self._real = c.services.hosts
        c.services.hosts = self

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        if host not in self.hosts:
            answer = await self._real.call(host, command, timeout=timeout)
        if host in self.hosts:
            await self.tells.wait()
            raise HostUnreachable(host, "cut off")
        return answer


# Where it comes to


@proves("POST /servers/{server_id}/action#os-migrateLive")
def test_to_any_host(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            before = await c.active()
            ((_, guest),) = await c.everything()
            after = await moved(c, before["id"], ACTION, ANYWHERE, as_="manager")
            assert (after["status"], after["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
            assert after[HOST] != before[HOST]
            await at_home(c, before["id"], after[HOST])
            ((_, moved_guest),) = await c.everything()
            assert (moved_guest.boots, moved_guest.disk) == (guest.boots, guest.disk), "it has not been booted again"
            found = await migration(c, before["id"])
            assert found == {"status": "completed", "from": before[HOST], "to": after[HOST], "why": None}
            action = await newest_action(c, before["id"])
            assert (action["action"], action["message"]) == ("live-migration", None)
            assert [event["result"] for event in action["events"]] == ["Success"] * 10

    run(scenario())


def test_to_a_named_host_and_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server = await c.active()
            for host in ("sim-001", "sim-002", "sim-003", server[HOST]):
                if (await c.show(server["id"]))[HOST] != host:
                    assert (await moved(c, server["id"], ACTION, to(host)))[HOST] == host
                    await at_home(c, server["id"], host)

    run(scenario())


def test_it_is_seen_while_it_runs(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            await begin(c, server["id"])
            shown = await until(c, server["id"], status="MIGRATING")
            assert shown["OS-EXT-STS:task_state"] == "migrating"
            assert shown["OS-EXT-STS:vm_state"] == "active"
            assert shown[HOST] == server[HOST]
            seen = [await progress(c, server["id"])]
            async with asyncio.timeout(PATIENCE):
                while len(set(seen)) < 4:
                    await asyncio.sleep(0.02)
                    seen.append(await progress(c, server["id"]))
            assert seen == sorted(seen)
            await arrive(c.hosts, server[HOST], server["id"])
            assert (await c.settled(server["id"]))[HOST] != server[HOST]
            assert (await c.get(f"/servers/{server['id']}/migrations", as_="admin", version="2.80")).json() == {
                "migrations": []
            }

    run(scenario())


async def progress(c: Whole, server_id: str) -> tuple[int, int, int]:
    """Of memory, of disks, and of the server in percent."""
    (one,) = (await c.get(f"/servers/{server_id}/migrations", as_="admin", version="2.80")).json()["migrations"]
    assert (one["status"], one["memory_total_bytes"], one["disk_total_bytes"]) == ("running", 512 * 2**20, 2**30)
    assert one["memory_processed_bytes"] + one["memory_remaining_bytes"] == one["memory_total_bytes"]
    assert one["disk_processed_bytes"] + one["disk_remaining_bytes"] == one["disk_total_bytes"]
    percent = (await c.show(server_id))["progress"]
    assert 0 <= percent < 100
    return one["memory_processed_bytes"], one["disk_processed_bytes"], percent


def test_disks_are_moved_unless_storage_is_shared(database_url: str) -> None:
    """Two hosts share their storage, a third one has its own."""
    shared = Shape(name="diskless", hosts=2, inventory={"VCPU": 8, "MEMORY_MB": 8192})
    own = Shape(name="plain", hosts=1, inventory={"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100})
    shapes = Shapes(shape=[shared, own], sharing=[Sharing(name="san", shapes=["diskless"], inventory={"DISK_GB": 100})])

    async def scenario() -> None:
        async with whole(database_url, hosts=3, shapes=shapes) as c:
            server = await c.active(availability_zone=":sim-001", as_="admin")
            for host, block, message in (
                ("sim-002", True, "refused by the hypervisor"),
                ("sim-003", False, "refused by the hypervisor"),
                ("sim-002", False, None),
                ("sim-001", "auto", None),
                ("sim-003", True, None),
                ("sim-002", "auto", None),
            ):
                before = (await c.show(server["id"]))[HOST]
                after = await moved(c, server["id"], ACTION, to(host, block))
                assert after[HOST] == (before if message else host), (host, block)
                assert ("fault" in after) == bool(message)
                if message:
                    assert after["fault"]["message"] == f"The named host cannot have the server: {message}"
            assert await c.kept() == []
            assert set(await c.guests()) == {server["id"]}

    run(scenario())


# What is taken


VERSIONS = (
    ("2.1", OLD, 202),
    ("2.1", {**OLD, "block_migration": "yes"}, 202),
    ("2.1", ANYWHERE, 400),
    ("2.24", {**OLD, "block_migration": "auto"}, 400),
    ("2.24", to(None, True), 400),
    ("2.25", OLD, 400),
    ("2.25", ANYWHERE, 202),
    ("2.33", to(None, "True"), 202),
    ("2.106", ANYWHERE, 202),
    ("2.106", to(None, "always"), 400),
    ("2.106", to(""), 400),
    ("2.106", {"block_migration": "auto"}, 400),
    ("2.106", {"host": None}, 400),
    ("2.106", {**ANYWHERE, "unverified": True}, 400),
    ("2.106", None, 400),
)


def test_what_each_version_takes(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]
            for version, body, status in VERSIONS:
                before = await c.show(server_id)
                answer = await act(c, server_id, ACTION, body, as_="admin", version=version)
                assert answer.status == status, (version, body, answer.body)
                after = await c.settled(server_id)
                assert (after[HOST] != before[HOST]) == (status == 202), (version, body)

    run(scenario())


def test_who_may(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server = await c.active()
            for who, body, status in (
                ("other", ANYWHERE, 404),
                ("reader", ANYWHERE, 403),
                ("member", ANYWHERE, 403),
                ("manager", to("sim-001"), 403),
                ("manager", to("nowhere"), 403),
            ):
                assert (await refused(c, server["id"], ACTION, body, as_=who))[0] == status, (who, body)
            assert (await moved(c, server["id"], ACTION, ANYWHERE, as_="manager"))[HOST] != server[HOST]
            assert (await moved(c, server["id"], ACTION, to(server[HOST]), as_="admin"))[HOST] == server[HOST]

    run(scenario())


def test_what_is_refused_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server = await c.active()
            missing = "11111111-1111-1111-1111-111111111111"
            assert (await refused(c, missing, ACTION, ANYWHERE))[0] == 404
            assert await refused(c, server["id"], ACTION, to("nowhere")) == (
                400,
                "Compute host nowhere could not be found.",
            )
            assert await refused(c, server["id"], ACTION, to(server[HOST])) == (
                400,
                "The target host can't be the same one.",
            )
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server["id"])
            assert (await refused(c, server["id"], ACTION, ANYWHERE, as_="manager"))[0] == 409
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = FALSE WHERE id = $1", server["id"])
            await begin(c, server["id"])
            assert await refused(c, server["id"], ACTION, to("nowhere")) == (
                409,
                f"Cannot 'os-migrateLive' instance {server['id']} while it is in task_state migrating",
            )
            with rules(c) as sim:
                sim.clear()
            await c.delete(f"/servers/{server['id']}")
            stopped = await c.active()
            await act(c, stopped["id"], "os-stop")
            await c.settled(stopped["id"])
            assert (await refused(c, stopped["id"], ACTION, ANYWHERE))[0] == 409

    run(scenario())


def test_that_no_host_will_do_is_told_at_once_by_old_versions_only(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            other = next(name for name in c.hosts.names if name != server[HOST])
            await disable(c, other)
            before = await everything(c, server["id"])
            status, message = await refused(c, server["id"], ACTION, OLD, version="2.24", as_="manager")
            assert (status, message) == (400, "No valid host was found: 2 hosts: 1 disabled, 1 excluded")
            assert (await refused(c, server["id"], ACTION, ANYWHERE, version="2.33"))[0] == 400
            assert (await refused(c, server["id"], ACTION, to("nowhere"), version="2.33"))[0] == 400
            assert "fault" not in await c.show(server["id"])
            after = await moved(c, server["id"], ACTION, ANYWHERE, version="2.34")
            assert after["fault"]["message"] == message
            assert await everything(c, server["id"]) == before

    run(scenario())


def test_a_rehearsal_changes_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            other = next(name for name in c.hosts.names if name != server[HOST])
            before = await everything(c, server["id"])
            dry = {"headers": {"X-Kilonova-Dry-Run": "1"}, "as_": "admin", "version": "2.80"}
            answer = await act(c, server["id"], ACTION, ANYWHERE, **dry)
            assert answer.status == 200, answer.body
            plan = answer.json()["plan"]
            assert (plan["placed"], plan["plans"][0]["chosen"]["host"]) == (1, other)
            for body, status in ((to("nowhere"), 400), (to(server[HOST]), 400), (to(other), 200)):
                assert (await act(c, server["id"], ACTION, body, **dry)).status == status
            await disable(c, other)
            assert (await act(c, server["id"], ACTION, OLD, **{**dry, "version": "2.1"})).json()["plan"]["placed"] == 0
            assert await everything(c, server["id"]) == before

    run(scenario())


# Destinations that do not fit


@pytest.mark.parametrize("trouble", ["disabled", "full", "zone", "refuses", "dies"])
def test_a_named_host_that_cannot(database_url: str, trouble: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, zones=("az1", "az2"), **QUICK) as c:
            zone = {"availability_zone": "az1"} if trouble == "zone" else {}
            server = await c.active(flavorRef=await make_flavor(c, "big", ram=9000), **zone)
            target, message = await make_unfit(c, server, trouble)
            before = await everything(c, server["id"])
            after = await moved(c, server["id"], ACTION, to(target))
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            assert after["fault"]["message"] == message
            assert target not in message
            await find_again(c, target)
            await all_done(c)
            assert await everything(c, server["id"]) == before
            found = await migration(c, server["id"])
            assert (found["status"], found["from"], found["why"]) == ("failed", server[HOST], message)
            action = await newest_action(c, server["id"], as_="member")
            assert action["message"] == "Error"
            assert message in [event.get("details") for event in action["events"]]
            assert target not in str(action)

    run(scenario())


async def make_unfit(c: Whole, server: dict[str, Any], trouble: str) -> tuple[str, str]:
    """A host that cannot have the server, and what is said of it."""
    others = [name for name in c.hosts.names if name != server[HOST]]
    target = others[0]
    if trouble == "disabled":
        await disable(c, target)
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 disabled"
    if trouble == "full":
        await c.active(availability_zone=f":{target}", as_="admin", flavorRef="big")
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 lacks 9000 MB memory"
    if trouble == "zone":
        target = next(name for name in others if (name in ("sim-002",)) != (server[HOST] in ("sim-002",)))
        return target, "No valid host was found: 3 hosts: 2 not the requested destination, 1 not in zone az1"
    if trouble == "refuses":
        with rules(c) as sim:
            sim.add_failure(target, "expect", "error", None, "no such machine type")
        return target, "The named host cannot have the server: refused by the hypervisor"
    with rules(c) as sim:
        sim.add_failure(target, "*", "unreachable", None, None)
    return target, "The named host cannot have the server: did not answer for 0.3 s"


@pytest.mark.parametrize("step", ["offer", "expect", "migrate_live"])
def test_another_host_is_tried_where_none_was_named(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server = await c.active()
            with rules(c) as sim:
                failing = "*" if step == "expect" else server[HOST]
                sim.add_failure(failing, step, "error", 1, "something burns")
            after = await moved(c, server["id"], ACTION, ANYWHERE)
            assert after[HOST] != server[HOST]
            assert "fault" not in after
            await at_home(c, server["id"], after[HOST])
            action = await newest_action(c, server["id"])
            assert action["message"] is None
            assert [event["event"] for event in action["events"]].count("prepare destination") == 2

    run(scenario())


@pytest.mark.parametrize("step", ["offer", "expect"])
def test_why_a_host_refuses_is_told_to_administrators(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            target = next(name for name in c.hosts.names if name != server[HOST])
            asked = server[HOST] if step == "offer" else target
            with rules(c) as sim:
                sim.add_failure(asked, step, "error", 1, "the processor lacks avx512f")
            after = await moved(c, server["id"], ACTION, to(target))
            assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
            told = f"{asked}: the processor lacks avx512f"
            assert told in str(await newest_action(c, server["id"]))
            assert told not in str(await newest_action(c, server["id"], as_="member"))
            await at_home(c, server["id"], server[HOST])

    run(scenario())


# Hosts that die on the way


@pytest.mark.parametrize("named", [False, True])
def test_the_destination_dies(database_url: str, named: bool) -> None:
    async def scenario() -> None:
        async with whole(database_url, **QUICK) as c:
            server = await c.active()
            names = [name for name in c.hosts.names if name != server[HOST]]
            first = (await begin(c, server["id"], to(names[0] if named else None)))["to"]
            be_quick(c)
            await lose(c, first)
            after = await c.settled(server["id"])
            last = server[HOST] if named else next(name for name in names if name != first)
            assert after[HOST] == last
            assert ("fault" in after) == named
            assert (await migration(c, server["id"]))["status"] == ("failed" if named else "completed")
            await find_again(c, first)
            await all_done(c)
            await at_home(c, server["id"], last)

    run(scenario())


def test_the_source_dies_before_the_guest_has_left(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            await begin(c, server["id"])
            await lose(c, server[HOST])
            after = await c.settled(server["id"])
            assert after[HOST] == server[HOST]
            assert after["fault"]["message"] == "The server's host did not answer for 0.3 s"
            assert (await migration(c, server["id"]))["status"] == "failed"
            await find_again(c, server[HOST])
            await all_done(c)
            await at_home(c, server["id"], server[HOST])

    run(scenario())


def test_the_source_is_cut_off_and_the_guest_arrives(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            cut = Cut(c)
            found = await begin(c, server["id"])
            cut.hosts = {server[HOST]}
            cut.tells.clear()
            await arrive(c.hosts, server[HOST], server["id"])
            async with asyncio.timeout(PATIENCE):
                while (await c.guests())[server["id"]][0] != found["to"]:
                    await asyncio.sleep(0.005)
            cut.tells.set()
            after = await c.settled(server["id"])
            assert (after["status"], after[HOST]) == ("ACTIVE", found["to"])
            assert (await migration(c, server["id"]))["status"] == "completed"
            left = await c.db.fetch("SELECT host FROM operations WHERE kind = 'clear guest' AND finished_at IS NULL")
            assert [row["host"] for row in left] == [server[HOST]], "whatever it still has of the guest shall go"
            cut.hosts = set()
            await all_done(c)
            await at_home(c, server["id"], found["to"])

    run(scenario())


@pytest.mark.parametrize("both", [False, True])
def test_who_is_cut_off_does_not_bring_the_guest_later(database_url: str, both: bool) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            cut = Cut(c)
            await begin(c, server["id"])
            cut.hosts = set(c.hosts.names) if both else {server[HOST]}
            c.services.config.compute.live_migration_seconds = 0.8
            after = await c.settled(server["id"])
            assert after[HOST] == server[HOST]
            silent = "The server's host did not answer for 0.3 s"
            assert after["fault"]["message"] == ("The guest could not be moved within 0.8 s" if both else silent)
            assert (await migration(c, server["id"]))["status"] == "failed"
            cut.hosts = set()
            await all_done(c)
            await at_home(c, server["id"], server[HOST])
            # What went on there while it was cut off is over, or this would have to wait for it.
            await act(c, server["id"], "os-stop")
            assert (await c.settled(server["id"]))["status"] == "SHUTOFF"
            assert {host for host, _ in (await c.guests()).values()} == {server[HOST]}

    run(scenario())


def test_it_does_not_take_for_ever(database_url: str) -> None:
    """Twice as long for twice the memory, and a small guest has the time of a whole GiB."""

    async def scenario() -> None:
        async with whole(database_url, hosts=2, compute__live_migration_seconds=0.3) as c:
            small = await c.active()
            large = await c.active(flavorRef=await make_flavor(c, "large", ram=2048))
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            for server, limit in ((small, "0.3"), (large, "0.6")):
                after = await moved(c, server["id"], ACTION, ANYWHERE)
                assert after["fault"]["message"] == f"The guest could not be moved within {limit} s"
                assert (after["status"], after[HOST]) == ("ACTIVE", server[HOST])
                assert (await c.guests())[server["id"]] == (server[HOST], "running")
            be_quick(c)
            c.services.config.compute.live_migration_seconds = 800.0
            assert "fault" not in await moved(c, small["id"], ACTION, ANYWHERE)
            assert await c.kept() == []

    run(scenario())


# Deleted on the way


@pytest.mark.parametrize("when", ["running", "source silent", "destination silent"])
def test_a_server_is_deleted_while_it_moves(database_url: str, when: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            found = await begin(c, server["id"])
            if when != "running":
                await lose(c, found["from" if when == "source silent" else "to"])
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.gone(server["id"])
            with rules(c) as sim:
                sim.clear()
            await all_done(c)
            assert await c.everything() == []
            for what in ("allocations", "consumers", f"ports WHERE device_id = '{server['id']}'", "standby_bindings"):
                assert await c.db.fetch_value(f"SELECT COUNT(*) FROM {what}") == 0, what

    run(scenario())


# In line


async def statuses(c: Whole, servers: list[dict[str, Any]]) -> list[str]:
    return [(await migration(c, server["id"]))["status"] for server in servers]


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a turn is told that it has come: to find out by looking would take too long."""
    wait = live_migrate.LiveMigrate.table().find("take turn")
    monkeypatch.setattr(type(wait), "__setattr__", object.__setattr__)
    monkeypatch.setattr(wait, "poll_every", 3600)


@pytest.mark.usefixtures("unpolled")
def test_only_so_many_leave_a_host_at_a_time(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, compute__live_migrations_per_host=2) as c:
            where = {"availability_zone": ":sim-001", "as_": "admin"}
            servers = [await c.active(name=f"s{number}", **where) for number in range(5)]
            elsewhere = await c.active(availability_zone=":sim-002", as_="admin")
            for server in servers[:2]:
                await begin(c, server["id"])
            for server in servers[2:]:
                assert (await act(c, server["id"], ACTION, ANYWHERE, as_="admin", version="2.80")).status == 202
                await under_way(c, server["id"], "queued")
            await begin(c, elsewhere["id"], to("sim-003"))
            await asyncio.sleep(0.1)
            assert await statuses(c, servers) == ["running"] * 2 + ["queued"] * 3
            assert (await c.show(servers[4]["id"]))["OS-EXT-STS:task_state"] == "migrating"
            # One that is done makes room for the one that came first, and so does one that is given up.
            await c.delete(f"/servers/{servers[0]['id']}", as_="admin")
            await under_way(c, servers[2]["id"])
            assert await statuses(c, servers[1:]) == ["running"] * 2 + ["queued"] * 2
            await c.delete(f"/servers/{servers[3]['id']}", as_="admin")
            await c.gone(servers[3]["id"])
            assert await statuses(c, [servers[4]]) == ["queued"], "whoever leaves the line makes no room"
            be_quick(c)
            for server in (servers[1], servers[2], elsewhere):
                await c.delete(f"/servers/{server['id']}", as_="admin")
            assert (await c.settled(servers[4]["id"]))[HOST] != "sim-001"

    run(scenario())


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.usefixtures("unpolled")
def test_none_is_left_in_line(database_url: str, limit: int) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, compute__live_migrations_per_host=limit) as c:
            where = {"availability_zone": ":sim-001", "as_": "admin"}
            servers = [await c.active(name=f"s{number}", **where) for number in range(6)]
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 0.05)
                sim.add_failure("*", "migrate_live", "error", 2, "something burns")
            answers = await asyncio.gather(
                *(act(c, server["id"], ACTION, to("sim-002"), as_="admin", version="2.80") for server in servers)
            )
            assert [answer.status for answer in answers] == [202] * 6
            shown = [await c.settled(server["id"]) for server in servers]
            assert sorted(server[HOST] for server in shown) == ["sim-001"] * 2 + ["sim-002"] * 4
            assert await c.db.fetch("SELECT * FROM operation_events") == []
            assert await c.db.fetch("SELECT * FROM operation_waits") == []

    run(scenario())


def test_a_raised_limit_is_noticed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = live_migrate.LiveMigrate.table().find("take turn")
    monkeypatch.setattr(type(wait), "__setattr__", object.__setattr__)
    monkeypatch.setattr(wait, "poll_every", 0.05)

    async def scenario() -> None:
        async with whole(database_url, hosts=2, compute__live_migrations_per_host=1) as c:
            where = {"availability_zone": ":sim-001", "as_": "admin"}
            first, second = [await c.active(**where) for _ in range(2)]
            await begin(c, first["id"])
            assert (await act(c, second["id"], ACTION, ANYWHERE, as_="admin", version="2.80")).status == 202
            await under_way(c, second["id"], "queued")
            c.services.config.compute.live_migrations_per_host = 2
            await under_way(c, second["id"])
            for server in (first, second):
                await c.delete(f"/servers/{server['id']}", as_="admin")
                await c.gone(server["id"])

    run(scenario())
