"""Resizing and migrating: what a server becomes and what it holds meanwhile, how it is decided, and who may when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.compute.placements.test_dry_run import DRY
from tests.compute.placements.test_dry_run import everything as tables
from tests.compute.servers.moves import HOST, everything, migration, moved, newest_action, refused
from tests.compute.servers.support import act, guest_on, make_flavor, rules, until
from tests.support import run
from tests.support.proves import proves
from tests.support.whole import PATIENCE, Whole, whole

TASK, VM, POWER = "OS-EXT-STS:task_state", "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state"
ROUTE = "POST /servers/{server_id}/action#"
SMALL = {"flavorRef": "2"}


async def resize(c: Whole, server_id: str, flavor: Any = "2", **options: Any) -> dict[str, Any]:
    return await moved(c, server_id, "resize", {"flavorRef": flavor}, **{"as_": "member", **options})


async def resized(c: Whole, **keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A new server, as it was and as it waits to be confirmed."""
    server = await c.active(**keys)
    shown = await resize(c, server["id"])
    assert shown["status"] == "VERIFY_RESIZE", shown
    return server, shown


async def confirm(c: Whole, server_id: str, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "confirmResize", **options)
    assert (answer.status, answer.body) == (204, b"")
    return await c.settled(server_id)


async def revert(c: Whole, server_id: str, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "revertResize", **options)
    assert (answer.status, answer.body) == (202, b"")
    return await c.settled(server_id)


async def shares(c: Whole, server_id: str) -> dict[str, tuple[str, dict[str, int]]]:
    """Who holds what on which host: the server, or a move."""
    rows = await c.db.fetch(
        "SELECT c.uuid, c.type, p.name, a.resource_class, a.used FROM consumers c"
        " JOIN allocations a ON a.consumer_uuid = c.uuid JOIN resource_providers p ON p.id = a.provider_id"
    )
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for row in rows:
        who = "server" if row["uuid"] == server_id else row["type"]
        found.setdefault(who, (row["name"], {}))[1][row["resource_class"]] = row["used"]
    return found


async def disks(c: Whole) -> set[str]:
    return {state.disk for _, state in await c.everything()}


TINY = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
MORE = {"VCPU": 1, "MEMORY_MB": 2048, "DISK_GB": 20}


@proves(ROUTE + "resize", ROUTE + "confirmResize")
def test_a_server_gets_another_flavor_and_keeps_it(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active(name="web")
            server_id, source, disk = server["id"], server[HOST], await disks(c)
            answer = await act(c, server_id, "resize", SMALL)
            assert (answer.status, answer.body) == (202, b"")
            waits = await c.settled(server_id)
            assert (waits["status"], waits[VM], waits[POWER], waits["progress"]) == ("VERIFY_RESIZE", "resized", 1, 100)
            assert waits["flavor"]["original_name"] == "m1.small"
            assert waits[HOST] != source
            assert waits["addresses"] == server["addresses"]
            assert (await c.guests())[server_id] == (waits[HOST], "running")
            assert guest_on(c, waits[HOST], server_id).flavor.ram_mb == 2048
            assert [host for host, _ in await c.kept()] == [source]
            assert await disks(c) == disk
            assert await shares(c, server_id) == {"server": (waits[HOST], MORE), "MIGRATION": (source, TINY)}
            told = await migration(c, server_id)
            assert told == {"status": "finished", "from": source, "to": waits[HOST], "why": None}

            shown = await confirm(c, server_id)
            assert (shown["status"], shown[VM], shown[HOST]) == ("ACTIVE", "active", waits[HOST])
            assert shown["flavor"]["original_name"] == "m1.small"
            assert await shares(c, server_id) == {"server": (waits[HOST], MORE)}
            assert await c.kept() == []
            assert await disks(c) == disk
            assert (await migration(c, server_id))["status"] == "confirmed"
            (port,) = (await everything(c, server_id))["ports"]
            assert port["host_id"] == waits[HOST]
            assert [action["action"] for action in await actions(c, server_id)] == ["confirmResize", "resize", "create"]

    run(scenario())


async def actions(c: Whole, server_id: str) -> list[dict[str, Any]]:
    answer = await c.get(f"/servers/{server_id}/os-instance-actions", as_="admin", version="2.84")
    found: list[dict[str, Any]] = answer.json()["instanceActions"]
    return found


@proves(ROUTE + "revertResize")
def test_a_resize_is_taken_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            server_id, before, disk = server["id"], await everything(c, server["id"]), await disks(c)
            await moved(c, server_id, "resize", {**SMALL, "OS-DCF:diskConfig": "AUTO"}, as_="member")
            assert (await c.show(server_id))["OS-DCF:diskConfig"] == "AUTO"
            shown = await revert(c, server_id)
            for same in (VM, POWER, HOST, "status", "flavor", "addresses", "OS-DCF:diskConfig"):
                assert shown[same] == server[same], same
            await idle(c)
            assert await everything(c, server_id) == before
            assert await disks(c) == disk
            assert guest_on(c, server[HOST], server_id).flavor.ram_mb == 512
            assert (await migration(c, server_id))["status"] == "reverted"
            # Nothing of it is in the way of another one.
            assert (await resize(c, server_id))["status"] == "VERIFY_RESIZE"

    run(scenario())


async def idle(c: Whole) -> None:
    """Wait until nothing is under way anywhere."""
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value("SELECT 1 FROM operations WHERE finished_at IS NULL LIMIT 1"):
            await asyncio.sleep(0.01)


@proves(ROUTE + "migrate")
def test_a_server_is_migrated(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            server = await c.active()
            server_id, source, disk = server["id"], server[HOST], await disks(c)
            target = next(name for name in c.hosts.names if name != source)
            for body, lands in ((None, None), ({}, None), ({"host": None}, None), ({"host": target}, target)):
                shown = await moved(c, server_id, "migrate", body)
                assert (shown["status"], shown["flavor"]) == ("VERIFY_RESIZE", server["flavor"])
                assert shown[HOST] == lands if lands else shown[HOST] != source
                assert await shares(c, server_id) == {"server": (shown[HOST], TINY), "MIGRATION": (source, TINY)}
                assert (await newest_action(c, server_id))["action"] == "migrate"
                assert (await revert(c, server_id))[HOST] == source
            shown = await moved(c, server_id, "migrate", {"host": target}, as_="admin")
            assert (await confirm(c, server_id))[HOST] == target
            assert await disks(c) == disk
            assert await shares(c, server_id) == {"server": (target, TINY)}

    run(scenario())


def test_a_stopped_server_stays_stopped(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]
            await moved(c, server_id, "os-stop", None)
            for decide in (revert, confirm):
                shown = await resize(c, server_id)
                assert (shown["status"], shown[POWER]) == ("VERIFY_RESIZE", 4)
                assert (await c.guests())[server_id] == (shown[HOST], "shutdown")
                shown = await decide(c, server_id)
                assert (shown["status"], shown[VM], shown[POWER]) == ("SHUTOFF", "stopped", 4)
                assert (await c.guests())[server_id] == (shown[HOST], "shutdown")
            assert (await moved(c, server_id, "os-start", None))["status"] == "ACTIVE"

    run(scenario())


def test_the_host_of_a_resize_may_be_its_own(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, compute__resize_on_same_host=True) as c:
            server, shown = await resized(c)
            server_id, host = server["id"], server[HOST]
            assert shown[HOST] == host
            assert (await c.guests())[server_id] == (host, "running")
            assert [kept for kept, _ in await c.kept()] == [host]
            assert await shares(c, server_id) == {"server": (host, MORE), "MIGRATION": (host, TINY)}
            assert (await revert(c, server_id))["flavor"]["original_name"] == "m1.tiny"
            await idle(c)
            assert await c.kept() == []
            assert await shares(c, server_id) == {"server": (host, TINY)}
            await resize(c, server_id)
            assert (await confirm(c, server_id))["flavor"]["original_name"] == "m1.small"
            assert await c.kept() == []
            assert await shares(c, server_id) == {"server": (host, MORE)}
            # A migration leaves its host, whatever is configured.
            shown = await moved(c, server_id, "migrate", None)
            assert shown["status"] == "ACTIVE"
            assert shown["fault"]["message"].startswith("No valid host was found")

    run(scenario())


def test_what_is_seen_meanwhile(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]
            seen = []
            with rules(c) as sim:
                for step in ("power_off", "park", "receive"):
                    sim.add_failure("*", step, "hang", None, None)
                assert (await act(c, server_id, "resize", SMALL)).status == 202
                for task, step in (
                    ("resize_migrating", "power_off"),
                    ("resize_migrating", "park"),
                    ("resize_finish", "receive"),
                ):
                    shown = await until(c, server_id, OS_EXT_STS__task_state=task)
                    seen.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                    code, message = await refused(c, server_id, "resize", SMALL)
                    assert (code, message.endswith(f"while it is in task_state {task}")) == (409, True)
                    sim.clear("*", step)
                assert (await c.settled(server_id))["status"] == "VERIFY_RESIZE"
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server_id, "revertResize")).status == 202
                shown = await until(c, server_id, OS_EXT_STS__task_state="resize_reverting")
                seen.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                assert (await migration(c, server_id))["status"] == "reverting"
                sim.clear()
                assert (await c.settled(server_id))["status"] == "ACTIVE"
                await resize(c, server_id)
                sim.add_failure("*", "discard", "hang", None, None)
                assert (await act(c, server_id, "confirmResize")).status == 204
                shown = await until(c, server_id, OS_EXT_STS__task_state="resize_confirming")
                seen.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                assert (await migration(c, server_id))["status"] == "confirming"
                sim.clear()
            assert (await c.settled(server_id))["status"] == "ACTIVE"
            assert seen == [
                *[("RESIZE", "active", "m1.tiny")] * 3,
                ("REVERT_RESIZE", "resized", "m1.small"),
                ("VERIFY_RESIZE", "resized", "m1.small"),
            ]

    run(scenario())


def test_what_the_state_does_not_allow_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]
            cannot = f"Cannot '%s' instance {server_id} while it is in vm_state %s"
            for action in ("confirmResize", "revertResize"):
                assert await refused(c, server_id, action, None) == (409, cannot % (action, "active"))
            await resize(c, server_id)
            for action, verb, body in (
                ("resize", "resize", {"flavorRef": "1"}),
                ("migrate", "migrate", None),
                ("os-stop", "stop", None),
                ("os-start", "start", None),
                ("reboot", "reboot", {"type": "HARD"}),
                ("shelve", "shelve", None),
            ):
                assert await refused(c, server_id, action, body) == (409, cannot % (verb, "resized"))
            assert (await confirm(c, server_id))["status"] == "ACTIVE"
            assert (await refused(c, server_id, "revertResize", None))[0] == 409

    run(scenario())


SEES = ("reader", "member", "manager", "project-admin", "admin", "system")
MAY = {
    "resize": (SMALL, SEES[1:]),
    "migrate": (None, SEES[2:]),
    "confirmResize": (None, SEES[1:]),
    "revertResize": (None, SEES[1:]),
}


def test_who_may(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]
            source = (await c.show(server_id))[HOST]
            other = next(name for name in c.hosts.names if name != source)
            for action, (body, may) in MAY.items():
                if action == "confirmResize":
                    await resize(c, server_id)
                for who in (*SEES, "other", "service"):
                    status = 200 if who in may else 403 if who in SEES else 404
                    answer = await act(c, server_id, action, body, as_=who, version="2.56", headers=DRY)
                    assert answer.status == status, (action, who, answer.body)
            await confirm(c, server_id)
            back = {"host": source}
            for who in (*SEES, "other"):
                status = 200 if who in ("project-admin", "admin", "system") else 403 if who in SEES else 404
                answer = await act(c, server_id, "migrate", back, as_=who, version="2.56", headers=DRY)
                assert answer.status == status, (who, answer.body)
            # Who may comes before what the state allows, and that before what is wrong with the rest.
            await moved(c, server_id, "migrate", None)
            assert (await refused(c, server_id, "migrate", {"host": other}, as_="manager"))[0] == 403
            assert (await refused(c, server_id, "migrate", {"host": "nowhere"}))[0] == 409
            assert (await refused(c, server_id, "resize", {"flavorRef": "nothing"}))[0] == 409

    run(scenario())


def test_a_locked_server_is_for_administrators(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active())["id"]

            async def lock() -> None:
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)

            await lock()
            locked = (409, f"Instance {server_id} is locked")
            assert await refused(c, server_id, "resize", SMALL, as_="member") == locked
            assert await refused(c, server_id, "migrate", None, as_="manager") == locked
            assert (await resize(c, server_id, as_="project-admin"))["status"] == "VERIFY_RESIZE"
            for action in ("confirmResize", "revertResize"):
                assert await refused(c, server_id, action, None, as_="member") == locked
            assert (await confirm(c, server_id, as_="project-admin"))["status"] == "ACTIVE"

    run(scenario())


def test_flavors_that_a_server_cannot_have(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await c.active(flavorRef="2"))["id"]
            await make_flavor(c, "secret", ram=4096, disk=20, **{"os-flavor-access:is_public": False})
            await make_flavor(c, "no-disk", disk=0)
            await make_flavor(c, "off", disk=20)
            await make_flavor(c, "odd", disk=20, ram=1024)
            await make_flavor(c, "forgetful", disk=20, ram=16)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE flavors SET disabled = TRUE WHERE flavor_id = 'off'")
                await tx.execute(
                    """UPDATE flavors SET extra_specs = '{"trait:CUSTOM_A": "perhaps"}' WHERE flavor_id = 'odd'"""
                )
                await tx.execute(
                    """UPDATE servers SET image_properties = '{"min_ram": "64", "min_disk": "30"}' WHERE id = $1""",
                    server_id,
                )
            small, missing = "Unable to resize disk down.", "Flavor %s could not be found."
            for flavor, text in (
                ("2", "When resizing, instances must change flavor!"),
                ("http://cloud/flavors/2", "When resizing, instances must change flavor!"),
                ("nothing", missing % "nothing"),
                ("secret", missing % "secret"),
                ("off", missing % "off"),
                ("no-disk", "Resize to zero disk flavor is not allowed."),
                ("1", f"Resize error: {small}"),
                ("forgetful", "Flavor's memory is too small for requested image."),
                ("odd", "Flavor's disk is smaller than the minimum size specified in image metadata."),
            ):
                assert await refused(c, server_id, "resize", {"flavorRef": flavor}, as_="member") == (400, text)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET image_properties = '{}' WHERE id = $1", server_id)
            code, message = await refused(c, server_id, "resize", {"flavorRef": "odd"}, as_="member")
            assert (code, message.startswith("Flavor odd cannot be placed: ")) == (400, True)
            for body in (None, {}, {"flavorRef": None}, {"flavorRef": ""}, {**SMALL, "OS-DCF:diskConfig": "SOME"}):
                assert (await refused(c, server_id, "resize", body))[0] == 400, body
            assert (await refused(c, server_id, "resize", {**SMALL, "more": 1}))[0] == 400
            # Links and numbers are as good as ids, and administrators may have private flavors.
            assert (await resize(c, server_id, "http://cloud/flavors/secret", as_="admin"))["status"] == "VERIFY_RESIZE"
            await revert(c, server_id)
            assert (await resize(c, server_id, 3))["flavor"]["original_name"] == "m1.medium"

    run(scenario())


def test_a_server_without_a_disk_may_get_one_or_none(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            for name, ram in (("bare", 512), ("bare too", 1024)):
                await make_flavor(c, name.replace(" ", "-"), ram=ram, disk=0)
            server_id = (await c.active(flavorRef="bare", as_="admin"))["id"]
            assert (await resize(c, server_id, "bare-too", as_="admin"))["status"] == "VERIFY_RESIZE"
            await confirm(c, server_id, as_="admin")
            assert (await resize(c, server_id, "2", as_="admin"))["status"] == "VERIFY_RESIZE"

    run(scenario())


def test_hosts_that_cannot_be_named(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server = await c.active()
            server_id, source = server["id"], server[HOST]

            async def refusal(body: Any, version: str = "2.56") -> tuple[int, str]:
                return await refused(c, server_id, "migrate", body, version=version)

            assert await refusal({"host": "nowhere"}) == (400, "Compute host nowhere could not be found.")
            assert await refusal({"host": source}) == (400, "The target host can't be the same one.")
            wrong: tuple[Any, ...] = ({"host": ""}, {"host": "a b"}, {"host": 1}, {"hosts": source}, "x", [])
            for body in wrong:
                assert (await refusal(body))[0] == 400, body
            # Before 2.56 nobody looked at it.
            shown = await moved(c, server_id, "migrate", {"host": "nowhere"}, version="2.55", as_="manager")
            assert shown["status"] == "VERIFY_RESIZE"

    run(scenario())


def test_the_quota_counts_the_larger_flavor_until_it_is_decided(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, quota__cores=5, quota__ram=8192) as c:

            async def used() -> tuple[int, int]:
                limits = (await c.get("/limits")).json()["limits"]["absolute"]
                return limits["totalCoresUsed"], limits["totalRAMUsed"]

            server_id = (await c.active())["id"]
            await make_flavor(c, "wide", vcpus=6)
            await make_flavor(c, "fat", vcpus=2, ram=8193)
            await make_flavor(c, "narrow", vcpus=3, ram=256)
            wide = "Quota exceeded for cores: Requested 5, but already used 1 of 5 cores"
            assert await refused(c, server_id, "resize", {"flavorRef": "wide"}, as_="member") == (403, wide)
            fat = "Quota exceeded for ram: Requested 7681, but already used 512 of 8192 ram"
            assert await refused(c, server_id, "resize", {"flavorRef": "fat"}, as_="member") == (403, fat)
            assert await used() == (1, 512)
            with rules(c) as sim:
                sim.add_failure("*", "park", "hang", None, None)
                assert (await act(c, server_id, "resize", {"flavorRef": "narrow"})).status == 202
                assert await used() == (3, 512)
                sim.clear()
            await c.settled(server_id)
            assert await used() == (3, 512)
            code, _ = await refused_boot(c, "5")
            assert code == 403
            await revert(c, server_id)
            assert await used() == (1, 512)
            await resize(c, server_id, "narrow")
            await confirm(c, server_id)
            assert await used() == (3, 256)
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", None, None)
                shown = await resize(c, server_id, "3")
                assert shown["status"] == "ACTIVE", shown
            assert await used() == (3, 256)
            # Also somebody else's resize is on the owner's account.
            await c.boot(flavorRef="3")
            assert (await refused(c, server_id, "resize", {"flavorRef": "wide"}, as_="admin"))[0] == 403

    run(scenario())


async def refused_boot(c: Whole, flavor: str) -> tuple[int, bytes]:
    server = {"name": "s", "flavorRef": flavor, "imageRef": c.image_id, "networks": "none"}
    answer = await c.post("/servers", {"server": server}, version="2.96")
    return answer.status, answer.body


def test_of_many_at_once_one_is_done(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, quota__ram=3072) as c:
            server_ids = [(await c.active())["id"] for _ in range(2)]

            async def answers(*asked: tuple[str, str, Any]) -> list[int]:
                found = await asyncio.gather(*(act(c, server_id, action, body) for server_id, action, body in asked))
                return sorted(answer.status for answer in found)

            # The quota has room for one of them.
            assert await answers(*((server_id, "resize", SMALL) for server_id in server_ids)) == [202, 403]
            shown = [await c.settled(server_id) for server_id in server_ids]
            (server_id,) = [server["id"] for server in shown if server["status"] == "VERIFY_RESIZE"]
            both = [(server_id, "confirmResize", None), (server_id, "revertResize", None)] * 3
            decided = await answers(*both)
            assert decided in ([202, *[409] * 5], [204, *[409] * 5])
            assert (await c.settled(server_id))["status"] == "ACTIVE"
            await idle(c)
            assert len(await c.everything()) == 2

    run(scenario())


def test_a_dry_run_plans_and_changes_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            server = await c.active()
            server_id = server["id"]
            before = await tables(c.db)

            async def plan(action: str, body: Any) -> dict[str, Any]:
                answer = await act(c, server_id, action, body, as_="admin", version="2.96", headers=DRY)
                assert answer.status == 200, answer.body
                found: dict[str, Any] = answer.json()["plan"]
                return found

            found = await plan("resize", SMALL)
            assert (found["placed"], len(found["plans"])) == (1, 1)
            (given,) = found["plans"][0]["chosen"]["allocations"].values()
            assert given["resources"] == MORE
            assert server[HOST] not in [host["host"] for host in found["plans"][0]["alternates"]]
            other = next(name for name in c.hosts.names if name != server[HOST])
            assert (await plan("migrate", {"host": other}))["plans"][0]["chosen"]["host"] == other
            assert (await plan("resize", {"flavorRef": "5"}))["placed"] == 0
            answer = await act(c, server_id, "confirmResize", headers=DRY)
            assert answer.status == 409
            assert await tables(c.db) == before
            await resize(c, server_id)
            before = await tables(c.db)
            for action in ("confirmResize", "revertResize"):
                found = await plan(action, None)
                assert (found["servers"], found["placed"], found["plans"]) == (0, 0, [])
            assert await tables(c.db) == before

    run(scenario())


@pytest.mark.parametrize("action, body", [("resize", SMALL), ("migrate", None)])
def test_a_pinned_server_stays_in_its_zone(database_url: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, zones=("az1", "az2")) as c:
            pinned = await c.active(availability_zone="az1")
            shown = await moved(c, pinned["id"], action, body)
            assert (shown["status"], shown["OS-EXT-AZ:availability_zone"]) == ("VERIFY_RESIZE", "az1")
            alone = await c.active(availability_zone="az2")
            shown = await moved(c, alone["id"], action, body)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", alone[HOST])
            assert "not in zone az2" in shown["fault"]["message"]

    run(scenario())


def test_a_resize_that_waits_is_deleted_whole(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server, _ = await resized(c)
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.gone(server["id"])
            await idle(c)
            assert await c.everything() == []
            assert await shares(c, server["id"]) == {}

    run(scenario())
