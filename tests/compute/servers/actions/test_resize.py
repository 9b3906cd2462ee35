"""resize, migrate, confirmResize and revertResize: states, allocations, quotas, permissions, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.compute.operations.support import wait_until_finished
from tests.compute.placements.test_dry_run import DRY, dump_tables
from tests.compute.servers.moves import HOST, action_refusal, dump_server, newest_migration, run_move
from tests.compute.servers.support import act, guest_on, make_flavor, rules, wait_for_fields
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

TASK, VM, POWER = "OS-EXT-STS:task_state", "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state"
ROUTE = "POST /servers/{server_id}/action#"
SMALL_FLAVOR = {"flavorRef": "2"}


async def resize(c: FullCloud, server_id: str, flavor: Any = "2", **options: Any) -> dict[str, Any]:
    return await run_move(c, server_id, "resize", {"flavorRef": flavor}, **{"as_": "member", **options})


async def boot_resized(c: FullCloud, **keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Boot and resize a server. Returns it before and after the resize."""
    server = await c.boot_active(**keys)
    shown = await resize(c, server["id"])
    assert shown["status"] == "VERIFY_RESIZE", shown
    return server, shown


async def confirm(c: FullCloud, server_id: str, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "confirmResize", **options)
    assert (answer.status, answer.body) == (204, b"")
    return await c.wait_until_settled(server_id)


async def revert(c: FullCloud, server_id: str, **options: Any) -> dict[str, Any]:
    answer = await act(c, server_id, "revertResize", **options)
    assert (answer.status, answer.body) == (202, b"")
    return await c.wait_until_settled(server_id)


async def allocations_of(c: FullCloud, server_id: str) -> dict[str, tuple[str, dict[str, int]]]:
    """By consumer (the server, or a migration): the host and the allocated resources."""
    rows = await c.db.fetch(
        "SELECT c.uuid, c.type, p.name, a.resource_class, a.used FROM consumers c"
        " JOIN allocations a ON a.consumer_uuid = c.uuid JOIN resource_providers p ON p.id = a.provider_id"
    )
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for row in rows:
        caller = "server" if row["uuid"] == server_id else row["type"]
        found.setdefault(caller, (row["name"], {}))[1][row["resource_class"]] = row["used"]
    return found


async def guest_disks(c: FullCloud) -> set[str]:
    return {state.disk for _, state in await c.list_guests_and_slots()}


TINY_RESOURCES = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
SMALL_RESOURCES = {"VCPU": 1, "MEMORY_MB": 2048, "DISK_GB": 20}


@proves(ROUTE + "resize", ROUTE + "confirmResize")
def test_resize_and_confirm(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active(name="web")
            server_id, source, disk = server["id"], server[HOST], await guest_disks(c)
            answer = await act(c, server_id, "resize", SMALL_FLAVOR)
            assert (answer.status, answer.body) == (202, b"")
            resized = await c.wait_until_settled(server_id)
            assert (resized["status"], resized[VM], resized[POWER], resized["progress"]) == (
                "VERIFY_RESIZE",
                "resized",
                1,
                100,
            )
            assert resized["flavor"]["original_name"] == "m1.small"
            assert resized[HOST] != source
            assert resized["addresses"] == server["addresses"]
            assert (await c.guests())[server_id] == (resized[HOST], "running")
            assert guest_on(c, resized[HOST], server_id).flavor.ram_mb == 2048
            assert [host for host, _ in await c.list_slots()] == [source]
            assert await guest_disks(c) == disk
            assert await allocations_of(c, server_id) == {
                "server": (resized[HOST], SMALL_RESOURCES),
                "MIGRATION": (source, TINY_RESOURCES),
            }
            found = await newest_migration(c, server_id)
            assert found == {"status": "finished", "from": source, "to": resized[HOST], "error": None}

            shown = await confirm(c, server_id)
            assert (shown["status"], shown[VM], shown[HOST]) == ("ACTIVE", "active", resized[HOST])
            assert shown["flavor"]["original_name"] == "m1.small"
            assert await allocations_of(c, server_id) == {"server": (resized[HOST], SMALL_RESOURCES)}
            assert await c.list_slots() == []
            assert await guest_disks(c) == disk
            assert (await newest_migration(c, server_id))["status"] == "confirmed"
            (port,) = (await dump_server(c, server_id))["ports"]
            assert port["host_id"] == resized[HOST]
            assert [action["action"] for action in await list_actions(c, server_id)] == [
                "confirmResize",
                "resize",
                "create",
            ]

    run(scenario())


async def list_actions(c: FullCloud, server_id: str) -> list[dict[str, Any]]:
    answer = await c.get(f"/servers/{server_id}/os-instance-actions", as_="admin", version="2.84")
    found: list[dict[str, Any]] = answer.json()["instanceActions"]
    return found


@proves(ROUTE + "revertResize")
def test_resize_and_revert(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            server_id, before, disk = server["id"], await dump_server(c, server["id"]), await guest_disks(c)
            await run_move(c, server_id, "resize", {**SMALL_FLAVOR, "OS-DCF:diskConfig": "AUTO"}, as_="member")
            assert (await c.show(server_id))["OS-DCF:diskConfig"] == "AUTO"
            shown = await revert(c, server_id)
            for same in (VM, POWER, HOST, "status", "flavor", "addresses", "OS-DCF:diskConfig"):
                assert shown[same] == server[same], same
            await wait_until_finished(c.db)
            assert await dump_server(c, server_id) == before
            assert await guest_disks(c) == disk
            assert guest_on(c, server[HOST], server_id).flavor.ram_mb == 512
            assert (await newest_migration(c, server_id))["status"] == "reverted"
            # The server can be resized again.
            assert (await resize(c, server_id))["status"] == "VERIFY_RESIZE"

    run(scenario())


def test_resize_keeps_a_stopped_server_stopped(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            await run_move(c, server_id, "os-stop", None)
            for finish in (revert, confirm):
                shown = await resize(c, server_id)
                assert (shown["status"], shown[POWER]) == ("VERIFY_RESIZE", 4)
                assert (await c.guests())[server_id] == (shown[HOST], "shutdown")
                shown = await finish(c, server_id)
                assert (shown["status"], shown[VM], shown[POWER]) == ("SHUTOFF", "stopped", 4)
                assert (await c.guests())[server_id] == (shown[HOST], "shutdown")
            assert (await run_move(c, server_id, "os-start", None))["status"] == "ACTIVE"

    run(scenario())


def test_resize_on_the_same_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, compute__resize_on_same_host=True) as c:
            server, shown = await boot_resized(c)
            server_id, host = server["id"], server[HOST]
            assert shown[HOST] == host
            assert (await c.guests())[server_id] == (host, "running")
            assert [slot_host for slot_host, _ in await c.list_slots()] == [host]
            assert await allocations_of(c, server_id) == {
                "server": (host, SMALL_RESOURCES),
                "MIGRATION": (host, TINY_RESOURCES),
            }
            assert (await revert(c, server_id))["flavor"]["original_name"] == "m1.tiny"
            await wait_until_finished(c.db)
            assert await c.list_slots() == []
            assert await allocations_of(c, server_id) == {"server": (host, TINY_RESOURCES)}
            await resize(c, server_id)
            assert (await confirm(c, server_id))["flavor"]["original_name"] == "m1.small"
            assert await c.list_slots() == []
            assert await allocations_of(c, server_id) == {"server": (host, SMALL_RESOURCES)}
            # A cold migration needs another host, also with resize_on_same_host.
            shown = await run_move(c, server_id, "migrate", None)
            assert shown["status"] == "ACTIVE"
            assert shown["fault"]["message"].startswith("No valid host was found")

    run(scenario())


def test_resize_shows_task_states_while_it_runs(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            states_shown = []
            with rules(c) as sim:
                for step in ("power_off", "park", "receive"):
                    sim.add_failure("*", step, "hang", None, None)
                assert (await act(c, server_id, "resize", SMALL_FLAVOR)).status == 202
                for task, step in (
                    ("resize_migrating", "power_off"),
                    ("resize_migrating", "park"),
                    ("resize_finish", "receive"),
                ):
                    shown = await wait_for_fields(c, server_id, OS_EXT_STS__task_state=task)
                    states_shown.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                    code, message = await action_refusal(c, server_id, "resize", SMALL_FLAVOR)
                    assert (code, message.endswith(f"while it is in task_state {task}")) == (409, True)
                    sim.clear("*", step)
                assert (await c.wait_until_settled(server_id))["status"] == "VERIFY_RESIZE"
                sim.add_failure("*", "power_off", "hang", None, None)
                assert (await act(c, server_id, "revertResize")).status == 202
                shown = await wait_for_fields(c, server_id, OS_EXT_STS__task_state="resize_reverting")
                states_shown.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                assert (await newest_migration(c, server_id))["status"] == "reverting"
                sim.clear()
                assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
                await resize(c, server_id)
                sim.add_failure("*", "discard", "hang", None, None)
                assert (await act(c, server_id, "confirmResize")).status == 204
                shown = await wait_for_fields(c, server_id, OS_EXT_STS__task_state="resize_confirming")
                states_shown.append((shown["status"], shown[VM], shown["flavor"]["original_name"]))
                assert (await newest_migration(c, server_id))["status"] == "confirming"
                sim.clear()
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
            assert states_shown == [
                *[("RESIZE", "active", "m1.tiny")] * 3,
                ("REVERT_RESIZE", "resized", "m1.small"),
                ("VERIFY_RESIZE", "resized", "m1.small"),
            ]

    run(scenario())


def test_resize_actions_are_refused_in_wrong_states(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            cannot = f"Cannot '%s' instance {server_id} while it is in vm_state %s"
            for action in ("confirmResize", "revertResize"):
                assert await action_refusal(c, server_id, action, None) == (409, cannot % (action, "active"))
            await resize(c, server_id)
            for action, verb, body in (
                ("resize", "resize", {"flavorRef": "1"}),
                ("migrate", "migrate", None),
                ("os-stop", "stop", None),
                ("os-start", "start", None),
                ("reboot", "reboot", {"type": "HARD"}),
                ("shelve", "shelve", None),
            ):
                assert await action_refusal(c, server_id, action, body) == (409, cannot % (verb, "resized"))
            assert (await confirm(c, server_id))["status"] == "ACTIVE"
            assert (await action_refusal(c, server_id, "revertResize", None))[0] == 409

    run(scenario())


READERS = ("reader", "member", "manager", "project-admin", "admin", "system")
ALLOWED_CALLERS = {
    "resize": (SMALL_FLAVOR, READERS[1:]),
    "migrate": (None, READERS[2:]),
    "confirmResize": (None, READERS[1:]),
    "revertResize": (None, READERS[1:]),
}


def test_resize_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]
            source = (await c.show(server_id))[HOST]
            other = next(name for name in c.hosts.names if name != source)
            for action, (body, allowed) in ALLOWED_CALLERS.items():
                if action == "confirmResize":
                    await resize(c, server_id)
                for caller in (*READERS, "other", "service"):
                    status = 200 if caller in allowed else 403 if caller in READERS else 404
                    answer = await act(c, server_id, action, body, as_=caller, version="2.56", headers=DRY)
                    assert answer.status == status, (action, caller, answer.body)
            await confirm(c, server_id)
            back = {"host": source}
            for caller in (*READERS, "other"):
                status = 200 if caller in ("project-admin", "admin", "system") else 403 if caller in READERS else 404
                answer = await act(c, server_id, "migrate", back, as_=caller, version="2.56", headers=DRY)
                assert answer.status == status, (caller, answer.body)
            # Permissions are checked before the state, and the state before the values of the body.
            await run_move(c, server_id, "migrate", None)
            assert (await action_refusal(c, server_id, "migrate", {"host": other}, as_="manager"))[0] == 403
            assert (await action_refusal(c, server_id, "migrate", {"host": "unknown"}))[0] == 409
            assert (await action_refusal(c, server_id, "resize", {"flavorRef": "nothing"}))[0] == 409

    run(scenario())


def test_locked_server_is_resized_by_administrators_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active())["id"]

            async def lock() -> None:
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)

            await lock()
            locked = (409, f"Instance {server_id} is locked")
            assert await action_refusal(c, server_id, "resize", SMALL_FLAVOR, as_="member") == locked
            assert await action_refusal(c, server_id, "migrate", None, as_="manager") == locked
            assert (await resize(c, server_id, as_="project-admin"))["status"] == "VERIFY_RESIZE"
            for action in ("confirmResize", "revertResize"):
                assert await action_refusal(c, server_id, action, None, as_="member") == locked
            assert (await confirm(c, server_id, as_="project-admin"))["status"] == "ACTIVE"

    run(scenario())


def test_resize_refuses_unsuitable_flavors(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await c.boot_active(flavorRef="2"))["id"]
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
            disk_error, missing = "Unable to resize disk down.", "Flavor %s could not be found."
            for flavor, text in (
                ("2", "When resizing, instances must change flavor!"),
                ("http://cloud/flavors/2", "When resizing, instances must change flavor!"),
                ("nothing", missing % "nothing"),
                ("secret", missing % "secret"),
                ("off", missing % "off"),
                ("no-disk", "Resize to zero disk flavor is not allowed."),
                ("1", f"Resize error: {disk_error}"),
                ("forgetful", "Flavor's memory is too small for requested image."),
                ("odd", "Flavor's disk is smaller than the minimum size specified in image metadata."),
            ):
                assert await action_refusal(c, server_id, "resize", {"flavorRef": flavor}, as_="member") == (400, text)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET image_properties = '{}' WHERE id = $1", server_id)
            code, message = await action_refusal(c, server_id, "resize", {"flavorRef": "odd"}, as_="member")
            assert (code, message.startswith("Flavor odd cannot be placed: ")) == (400, True)
            for body in (
                None,
                {},
                {"flavorRef": None},
                {"flavorRef": ""},
                {**SMALL_FLAVOR, "OS-DCF:diskConfig": "SOME"},
            ):
                assert (await action_refusal(c, server_id, "resize", body))[0] == 400, body
            assert (await action_refusal(c, server_id, "resize", {**SMALL_FLAVOR, "more": 1}))[0] == 400
            # Flavors may be given as links or numbers. Administrators may use private flavors.
            assert (await resize(c, server_id, "http://cloud/flavors/secret", as_="admin"))["status"] == "VERIFY_RESIZE"
            await revert(c, server_id)
            assert (await resize(c, server_id, 3))["flavor"]["original_name"] == "m1.medium"

    run(scenario())


def test_resize_of_a_diskless_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            for name, ram in (("bare", 512), ("bare too", 1024)):
                await make_flavor(c, name.replace(" ", "-"), ram=ram, disk=0)
            server_id = (await c.boot_active(flavorRef="bare", as_="admin"))["id"]
            assert (await resize(c, server_id, "bare-too", as_="admin"))["status"] == "VERIFY_RESIZE"
            await confirm(c, server_id, as_="admin")
            assert (await resize(c, server_id, "2", as_="admin"))["status"] == "VERIFY_RESIZE"

    run(scenario())


def test_quota_counts_the_larger_flavor_until_the_resize_ends(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, quota__cores=5, quota__ram=8192) as c:

            async def used() -> tuple[int, int]:
                limits = (await c.get("/limits")).json()["limits"]["absolute"]
                return limits["totalCoresUsed"], limits["totalRAMUsed"]

            server_id = (await c.boot_active())["id"]
            await make_flavor(c, "wide", vcpus=6)
            await make_flavor(c, "fat", vcpus=2, ram=8193)
            await make_flavor(c, "narrow", vcpus=3, ram=256)
            wide = "Quota exceeded for cores: Requested 5, but already used 1 of 5 cores"
            assert await action_refusal(c, server_id, "resize", {"flavorRef": "wide"}, as_="member") == (403, wide)
            fat = "Quota exceeded for ram: Requested 7681, but already used 512 of 8192 ram"
            assert await action_refusal(c, server_id, "resize", {"flavorRef": "fat"}, as_="member") == (403, fat)
            assert await used() == (1, 512)
            with rules(c) as sim:
                sim.add_failure("*", "park", "hang", None, None)
                assert (await act(c, server_id, "resize", {"flavorRef": "narrow"})).status == 202
                assert await used() == (3, 512)
                sim.clear()
            await c.wait_until_settled(server_id)
            assert await used() == (3, 256)
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
            # A resize by an administrator counts for the project of the server.
            await c.boot(flavorRef="3")
            assert (await action_refusal(c, server_id, "resize", {"flavorRef": "wide"}, as_="admin"))[0] == 403

    run(scenario())


def test_revert_of_a_smaller_flavor_needs_quota(database_url: str) -> None:
    """Others may have used it since."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, quota__ram=2048) as c:

            async def used() -> int:
                return int((await c.get("/limits")).json()["limits"]["absolute"]["totalRAMUsed"])

            await make_flavor(c, "large", ram=2048)
            await make_flavor(c, "small", ram=1024)
            server_id = (await c.boot_active(flavorRef="large"))["id"]
            await resize(c, server_id, "small")
            assert await used() == 1024
            other = (await c.boot_active())["id"]
            exceeded = "Quota exceeded for ram: Requested 1024, but already used 1536 of 2048 ram"
            assert await action_refusal(c, server_id, "revertResize", None, as_="member") == (403, exceeded)
            dry = await act(c, server_id, "revertResize", version="2.96", headers=DRY)
            assert (dry.status, await used()) == (403, 1536)
            assert (await c.delete(f"/servers/{other}")).status == 204
            await c.wait_until_deleted(other)
            with rules(c) as sim:
                sim.add_failure("*", "unpark", "hang", None, None)
                assert (await act(c, server_id, "revertResize")).status == 202
                assert (await used(), (await refused_boot(c, "1"))[0]) == (2048, 403)
                sim.clear()
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
            assert await used() == 2048

    run(scenario())


def test_failed_revert_releases_its_quota(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            await make_flavor(c, "large", ram=2048)
            server_id = (await c.boot_active(flavorRef="large"))["id"]
            await resize(c, server_id, "1")
            with rules(c) as sim:
                sim.add_failure("*", "unpark", "error", 1, None)
                assert (await revert(c, server_id))["status"] == "VERIFY_RESIZE"
            assert (await c.get("/limits")).json()["limits"]["absolute"]["totalRAMUsed"] == 512

    run(scenario())


async def refused_boot(c: FullCloud, flavor: str) -> tuple[int, bytes]:
    server = {"name": "s", "flavorRef": flavor, "imageRef": c.image_id, "networks": "none"}
    answer = await c.post("/servers", {"server": server}, version="2.96")
    return answer.status, answer.body


def test_concurrent_resizes_and_confirmations(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, quota__ram=3072) as c:
            server_ids = [(await c.boot_active())["id"] for _ in range(2)]

            async def send_all(*requests: tuple[str, str, Any]) -> list[int]:
                found = await asyncio.gather(*(act(c, server_id, action, body) for server_id, action, body in requests))
                return sorted(answer.status for answer in found)

            # The quota has room for one of them.
            assert await send_all(*((server_id, "resize", SMALL_FLAVOR) for server_id in server_ids)) == [202, 403]
            shown = [await c.wait_until_settled(server_id) for server_id in server_ids]
            (server_id,) = [server["id"] for server in shown if server["status"] == "VERIFY_RESIZE"]
            both = [(server_id, "confirmResize", None), (server_id, "revertResize", None)] * 3
            statuses = await send_all(*both)
            assert statuses in ([202, *[409] * 5], [204, *[409] * 5])
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"
            await wait_until_finished(c.db)
            assert len(await c.list_guests_and_slots()) == 2

    run(scenario())


def test_resize_dry_run_returns_plan_and_changes_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            server = await c.boot_active()
            server_id = server["id"]
            before = await dump_tables(c.db)

            async def plan(action: str, body: Any) -> dict[str, Any]:
                answer = await act(c, server_id, action, body, as_="admin", version="2.96", headers=DRY)
                assert answer.status == 200, answer.body
                found: dict[str, Any] = answer.json()["plan"]
                return found

            found = await plan("resize", SMALL_FLAVOR)
            assert (found["placed"], len(found["plans"])) == (1, 1)
            (allocation,) = found["plans"][0]["chosen"]["allocations"].values()
            assert allocation["resources"] == SMALL_RESOURCES
            assert server[HOST] not in [host["host"] for host in found["plans"][0]["alternates"]]
            other = next(name for name in c.hosts.names if name != server[HOST])
            assert (await plan("migrate", {"host": other}))["plans"][0]["chosen"]["host"] == other
            assert (await plan("resize", {"flavorRef": "5"}))["placed"] == 0
            answer = await act(c, server_id, "confirmResize", headers=DRY)
            assert answer.status == 409
            assert await dump_tables(c.db) == before
            await resize(c, server_id)
            before = await dump_tables(c.db)
            for action in ("confirmResize", "revertResize"):
                found = await plan(action, None)
                assert (found["servers"], found["placed"], found["plans"]) == (0, 0, [])
            assert await dump_tables(c.db) == before

    run(scenario())


@pytest.mark.parametrize("action, body", [("resize", SMALL_FLAVOR), ("migrate", None)])
def test_resized_server_stays_in_its_pinned_zone(database_url: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, zones=("az1", "az2")) as c:
            pinned = await c.boot_active(availability_zone="az1")
            shown = await run_move(c, pinned["id"], action, body)
            assert (shown["status"], shown["OS-EXT-AZ:availability_zone"]) == ("VERIFY_RESIZE", "az1")
            alone = await c.boot_active(availability_zone="az2")
            shown = await run_move(c, alone["id"], action, body)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", alone[HOST])
            assert "not in zone az2" in shown["fault"]["message"]

    run(scenario())


def test_delete_of_unconfirmed_resize_releases_all_resources(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server, _ = await boot_resized(c)
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            await wait_until_finished(c.db)
            assert await c.list_guests_and_slots() == []
            assert await allocations_of(c, server["id"]) == {}

    run(scenario())
