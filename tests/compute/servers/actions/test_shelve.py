"""shelve, shelveOffload and unshelve: resources, snapshots, refusals, failures, and deletes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import Unreachable
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations, unfinished_kinds
from tests.compute.placements.test_dry_run import DRY, dump_tables
from tests.compute.servers.moves import (
    HOST,
    action_refusal,
    dump_server,
    make_reachable,
    make_unreachable,
    newest_action,
    run_move,
)
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved, guest_disk, list_snapshots, wait_for_no_snapshots
from tests.compute.servers.support import (
    NO_RESOURCES,
    act,
    count_server_resources,
    guest_on,
    rules,
    show_port,
    sim_store,
    unreachable_after,
    wait_for_fields,
)
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, WITHOUT_LIVENESS_CACHE, FullCloud, full_cloud
from tests.support.route_coverage import proves

TASK, POWER = "OS-EXT-STS:task_state", "OS-EXT-STS:power_state"
LAUNCHED = "OS-SRV-USG:launched_at"


async def list_ports(c: FullCloud, server_id: str) -> list[dict[str, Any]]:
    rows = await c.db.fetch("SELECT id FROM ports WHERE device_id = $1 ORDER BY 1", server_id)
    found = [await show_port(c, row["id"]) for row in rows]
    return [{key: entry[key] for key in ("id", "fixed_ips", "binding:host_id", "device_owner")} for entry in found]


@proves("POST /servers/{server_id}/action#shelve", "POST /servers/{server_id}/action#unshelve")
def test_shelve_releases_the_host_and_unshelve_restores_the_disk(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            booted = await c.boot_active(name="web", metadata={"a": "b"})
            server_id, disk = booted["id"], await guest_disk(c, booted["id"])
            (nic,) = await list_ports(c, server_id)
            assert nic["binding:host_id"] == booted[HOST]

            off = await run_move(c, server_id, "shelve", None, as_="member")
            assert (off["status"], off["OS-EXT-STS:vm_state"]) == ("SHELVED_OFFLOADED", "shelved_offloaded")
            assert (off[HOST], off["OS-EXT-SRV-ATTR:hypervisor_hostname"], off[POWER]) == (None, None, 0)
            assert off["hostId"] == ""
            assert await count_server_resources(c, server_id) == {**NO_RESOURCES, "ports": 1}
            assert await list_ports(c, server_id) == [{**nic, "binding:host_id": ""}]
            assert off["addresses"] == booted["addresses"]
            assert await c.guests() == {}

            back = await run_move(c, server_id, "unshelve", None, as_="member")
            assert (back["status"], back[POWER]) == ("ACTIVE", 1)
            assert (await c.guests())[server_id] == (back[HOST], "running")
            assert await guest_disk(c, server_id) == disk
            assert await list_ports(c, server_id) == [{**nic, "binding:host_id": back[HOST]}]
            for key in ("image", "flavor", "addresses", "metadata", "created", "key_name"):
                assert back[key] == booted[key], key
            assert clock.parse(back[LAUNCHED] + "Z") >= clock.parse(booted[LAUNCHED] + "Z")
            allocation_count = await c.db.fetch_value(
                "SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server_id
            )
            assert allocation_count == 3
            await wait_for_no_snapshots(c)
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [entry["action"] for entry in listed] == ["unshelve", "shelveOffload", "shelve", "create"]
            assert len({entry["request_id"] for entry in listed}) == 4
            row = await c.db.fetch_one("SELECT shelved_at, shelved_image_id FROM servers WHERE id = $1", server_id)
            assert row == {"shelved_at": None, "shelved_image_id": None}

    run(scenario())


def test_shelve_truncates_snapshot_name_and_unshelve_starts_a_stopped_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active(name="n" * 255))["id"]
            await run_move(c, server_id, "os-stop", None)
            assert (await run_move(c, server_id, "shelve", None))["status"] == "SHELVED_OFFLOADED"
            (image,) = await list_snapshots(c)
            assert image["name"] == "n" * 247 + "-shelved"
            back = await run_move(c, server_id, "unshelve", None)
            assert (back["status"], back[POWER]) == ("ACTIVE", 1)

    run(scenario())


@proves("POST /servers/{server_id}/action#shelveOffload")
def test_unshelve_without_offload_stays_on_the_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            booted = await c.boot_active()
            server_id, disk = booted["id"], await guest_disk(c, booted["id"])
            shelved = await run_move(c, server_id, "shelve", None, as_="member")
            assert (shelved["status"], shelved[HOST], shelved[POWER]) == ("SHELVED", booted[HOST], 4)
            assert (await c.guests())[server_id] == (booted[HOST], "shutdown")
            assert await count_server_resources(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            assert len(await list_snapshots(c)) == 1

            back = await run_move(c, server_id, "unshelve", None, as_="member")
            assert (back["status"], back[HOST], back[POWER]) == ("ACTIVE", booted[HOST], 1)
            assert back[LAUNCHED] == booted[LAUNCHED]
            assert await guest_disk(c, server_id) == disk
            await wait_for_no_snapshots(c)

            await run_move(c, server_id, "shelve", None, as_="member")
            off = await run_move(c, server_id, "shelveOffload", None, as_="project-admin")
            assert (off["status"], off[HOST], off[POWER]) == ("SHELVED_OFFLOADED", None, 0)
            assert await count_server_resources(c, server_id) == {**NO_RESOURCES, "ports": 1}
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"
            assert await guest_disk(c, server_id) == disk

    run(scenario())


def test_shelve_actions_show_task_states_while_they_run(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:

                async def run_and_check(
                    action: str, step: str, status: str, task: str, **options: Any
                ) -> dict[str, Any]:
                    sim.add_failure("*", step, "hang", None, None)
                    assert (await act(c, server_id, action, **options)).status == 202
                    await wait_for_fields(c, server_id, status=status, OS_EXT_STS__task_state=task)
                    for other in ("shelve", "shelveOffload", "unshelve", "os-stop"):
                        assert (await action_refusal(c, server_id, other, None))[0] == 409
                    sim.clear()
                    return await c.wait_until_settled(server_id)

                assert (await run_and_check("shelve", "power_off", "ACTIVE", "shelving"))["status"] == "SHELVED"
                assert (await run_and_check("unshelve", "power_on", "SHELVED", "unshelving"))["status"] == "ACTIVE"
                uploading = "shelving_image_uploading"
                assert (await run_and_check("shelve", "snapshot", "ACTIVE", uploading))["status"] == "SHELVED"
                leaving = "shelving_offloading"
                shown = await run_and_check("shelveOffload", "destroy", "SHELVED", leaving, as_="admin")
                assert shown["status"] == "SHELVED_OFFLOADED"
                assert (await run_and_check("unshelve", "spawn", "SHELVED_OFFLOADED", "spawning"))["status"] == "ACTIVE"

    run(scenario())


def test_shelve_actions_are_refused_in_wrong_states(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            server_id = (await c.boot_active())["id"]

            async def assert_refused(state: str, *actions: str) -> None:
                for action in actions:
                    body = {"type": "HARD"} if action == "reboot" else None
                    code, message = await action_refusal(c, server_id, action, body)
                    assert (code, message.endswith(f"while it is in vm_state {state}")) == (409, True), message

            await assert_refused("active", "shelveOffload", "unshelve")
            await run_move(c, server_id, "shelve", None)
            await assert_refused("shelved", "shelve", "os-start", "os-stop", "reboot")
            await run_move(c, server_id, "shelveOffload", None)
            await assert_refused("shelved_offloaded", "shelve", "shelveOffload", "os-start", "os-stop", "reboot")
            missing = "11111111-1111-1111-1111-111111111111"
            for action in ("shelve", "shelveOffload", "unshelve"):
                assert (await action_refusal(c, missing, action, None))[0] == 404

    run(scenario())


def test_shelve_permissions_by_role(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            server_id = (await c.boot_active())["id"]
            for action in ("shelve", "shelveOffload", "unshelve"):
                assert (await action_refusal(c, server_id, action, None, as_="reader"))[0] == 403
                assert (await action_refusal(c, server_id, action, None, as_="other"))[0] == 404
            await run_move(c, server_id, "shelve", None, as_="member")
            for caller in ("member", "manager"):
                assert (await action_refusal(c, server_id, "shelveOffload", None, as_=caller))[0] == 403

    run(scenario())


def test_locked_server_is_shelved_by_administrators_only(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            server_id = (await c.boot_active())["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            locked = (409, f"Instance {server_id} is locked")
            assert await action_refusal(c, server_id, "shelve", None, as_="member") == locked
            await run_move(c, server_id, "shelve", None)
            assert await action_refusal(c, server_id, "unshelve", None, as_="member") == locked
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"

    run(scenario())


def test_unshelve_bodies_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1",)) as c:
            server_id = (await c.boot_active())["id"]
            # Clients send null, and tempest {}.
            assert (await run_move(c, server_id, "shelve", {}, version="2.1"))["status"] == "SHELVED_OFFLOADED"
            zone, host, unpin = {"availability_zone": "az1"}, {"host": "sim-001"}, {"availability_zone": None}
            wrong: dict[str, list[Any]] = {
                "2.77": [{}, host, {**zone, **host}, unpin, {"availability_zone": ""}, "az1", []],
                "2.90": [{}, host, {**zone, **host}, unpin],
                "2.91": [{}, {"zone": "az1"}, {**zone, "more": 1}, {"host": None}, {"host": ""}, {"host": 1}, [], True],
                "2.106": [{}, {"host": None}, {"host": "not a name"}, {"availability_zone": 1}],
            }
            for version, bodies in wrong.items():
                for body in bodies:
                    code, _ = await action_refusal(c, server_id, "unshelve", body, version=version)
                    assert code == 400, (version, body)
            right: dict[str, list[Any]] = {
                # Before 2.77 the body has no meaning.
                "2.1": [None, {"availability_zone": "unknown"}],
                "2.76": [{}, {"host": "unknown"}, "az1"],
                "2.77": [None, zone],
                "2.91": [None, zone, host, unpin],
            }
            for version, good in right.items():
                for body in good:
                    assert (await run_move(c, server_id, "unshelve", body, version=version))["status"] == "ACTIVE"
                    await run_move(c, server_id, "shelve", None, version=version)

    run(scenario())


def test_shelve_dry_runs_change_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1", "az2"), **NO_OFFLOAD) as c:
            server_id = (await c.boot_active())["id"]

            async def dry_run(action: str, body: Any = None) -> dict[str, Any]:
                before = await dump_tables(c.db)
                answer = await act(c, server_id, action, body, as_="admin", version="2.91", headers=DRY)
                assert answer.status == 200, answer.body
                assert await dump_tables(c.db) == before
                plan: dict[str, Any] = answer.json()["plan"]
                return plan

            assert (await dry_run("shelve"))["plans"] == []
            assert (await action_refusal(c, server_id, "unshelve", None, headers=DRY))[0] == 409
            await run_move(c, server_id, "shelve", None)
            assert (await dry_run("shelveOffload"))["plans"] == []
            assert (await dry_run("unshelve"))["plans"] == []
            await run_move(c, server_id, "shelveOffload", None)
            (plan,) = (await dry_run("unshelve", {"availability_zone": "az2"}))["plans"]
            assert plan["message"] == "1 of 3 hosts fits: 2 not in zone az2"
            (plan,) = (await dry_run("unshelve", {"host": "sim-003"}))["plans"]
            assert plan["chosen"]["host"] == "sim-003"
            assert (await action_refusal(c, server_id, "unshelve", {"host": "unknown"}, headers=DRY))[0] == 400

    run(scenario())


# Failures


@pytest.mark.parametrize("step", ["power_off", "snapshot"])
def test_failed_shelve_leaves_server_running(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            before, disk = await dump_server(c, server_id), await guest_disk(c, server_id)
            with rules(c) as sim:
                sim.add_failure("*", step, "error", 1, "the disk is on fire")
            shown = await run_move(c, server_id, "shelve", None, as_="member")
            assert (shown["status"], shown[POWER]) == ("ACTIVE", 1)
            name = {"power_off": "stop guest"}.get(step, step)
            assert shown["fault"]["message"] == f"The host could not {name}: refused by the hypervisor"
            assert (await dump_server(c, server_id), await guest_disk(c, server_id)) == (before, disk)
            assert await list_snapshots(c, "admin") == []
            action = await newest_action(c, server_id)
            assert (action["action"], action["message"]) == ("shelve", "Error")
            shown = await run_move(c, server_id, "shelve", None)
            assert (shown["status"], "fault" in shown) == ("SHELVED_OFFLOADED", False)

    run(scenario())


def test_failed_unshelve_leaves_server_shelved(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server_id = (await boot_shelved(c))["id"]
            before = await dump_server(c, server_id)
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", None, "the disk is on fire")
                shown = await run_move(c, server_id, "unshelve", None, as_="member")
                assert shown["status"] == "SHELVED_OFFLOADED"
                assert "Tried before: 2 refused by the hypervisor" in shown["fault"]["message"]
                assert await dump_server(c, server_id) == before
                assert len(await list_snapshots(c)) == 1
                assert (await newest_action(c, server_id))["message"] == "Error"
                sim.clear()
                sim.add_failure("*", "spawn", "error", 1, "the disk is on fire")
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE", (
                "another host builds the guest"
            )
            await wait_for_no_snapshots(c)

    run(scenario())


def test_unshelve_fails_if_the_snapshot_was_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await boot_shelved(c))["id"]
            before = await dump_server(c, server_id)
            (image,) = await list_snapshots(c)
            assert (await c.delete(f"/images/{image['id']}", root="/image/v2")).status == 204
            shown = await run_move(c, server_id, "unshelve", None)
            message = f"The snapshot of the server, image {image['id']}, could not be found."
            assert (shown["status"], shown["fault"]["message"]) == ("SHELVED_OFFLOADED", message)
            assert await dump_server(c, server_id) == before
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.wait_until_deleted(server_id)

    run(scenario())


def test_unreachable_image_service_delays_only_snapshot_deletion(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await boot_shelved(c))["id"]

            async def fail(*args: Any) -> None:
                raise Unreachable("no response")

            with monkeypatch.context() as patched:
                patched.setattr(c.services.image, "delete", fail)
                assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"
                await asyncio.sleep(0.05)
                assert (len(await list_snapshots(c)), await unfinished_kinds(c)) == (1, ["delete_image"])
            await finish_operations(c)
            assert await list_snapshots(c, "admin") == []

    run(scenario())


def test_unshelve_rebuilds_a_missing_guest_on_its_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **NO_OFFLOAD) as c:
            booted = await c.boot_active()
            server_id, disk = booted["id"], await guest_disk(c, booted["id"])
            await run_move(c, server_id, "shelve", None)
            with sim_store(c) as store:
                store.remove_guest(booted[HOST], server_id)
            shown = await run_move(c, server_id, "unshelve", None)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", booted[HOST])
            assert await guest_disk(c, server_id) == disk
            image = guest_on(c, shown[HOST], server_id).image
            assert image is not None
            assert image.properties["image_type"] == "snapshot"

    run(scenario())


# Unreachable hosts


def test_shelve_fails_if_the_host_is_unreachable(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            before = await dump_server(c, server["id"])
            await make_unreachable(c, server[HOST])
            shown = await run_move(c, server["id"], "shelve", None)
            assert shown["status"] == "ACTIVE"
            assert shown["fault"]["message"] == "The host could not stop guest: did not respond for 0.3 s"
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert await dump_server(c, server["id"]) == before
            assert await list_snapshots(c, "admin") == []

    run(scenario())


def test_shelve_is_undone_if_the_host_becomes_unreachable_during_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            before = await dump_server(c, server["id"])
            with rules(c) as sim:
                steps = ("snapshot", "power_on")
                rule_ids = [sim.add_failure(server[HOST], step, "unreachable", None, None) for step in steps]
                async with unreachable_after(sim, server[HOST], *rule_ids):
                    shown = await run_move(c, server["id"], "shelve", None)
                assert shown["status"] == "ACTIVE"
                assert (await unfinished_kinds(c), await list_snapshots(c, "admin")) == (["restore_guest"], [])
                sim.clear()
            await finish_operations(c)
            assert await dump_server(c, server["id"]) == before

    run(scenario())


def test_offload_from_unreachable_host_and_unshelve_on_another(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT, **WITHOUT_LIVENESS_CACHE, **NO_OFFLOAD) as c:
            server = await c.boot_active()
            server_id, disk = server["id"], await guest_disk(c, server["id"])
            await run_move(c, server_id, "shelve", None)
            await make_unreachable(c, server[HOST])
            off = await run_move(c, server_id, "shelveOffload", None)
            assert (off["status"], off[HOST]) == ("SHELVED_OFFLOADED", None)
            assert await unfinished_kinds(c) == ["clean_up_guest"]
            # Even if the host is up, the server is not placed there before its old guest is removed.
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = $1", clock.now())
            c.services.scheduler.record_build(server[HOST], True)
            answer = await act(
                c, server_id, "unshelve", {"host": server[HOST]}, as_="admin", version="2.91", headers=DRY
            )
            (plan,) = answer.json()["plan"]["plans"]
            assert (plan["placed"], "1 excluded" in plan["message"]) == (False, True)
            back = await run_move(c, server_id, "unshelve", None)
            assert (back["status"], back[HOST] != server[HOST]) == ("ACTIVE", True)
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert await c.guests() == {server_id: (back[HOST], "running")}
            assert await guest_disk(c, server_id) == disk

    run(scenario())


def test_unshelve_replaces_an_unreachable_destination(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **SHORT_HOST_TIMEOUT) as c:
            server_id = (await boot_shelved(c))["id"]
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                for _ in range(2):
                    back = await run_move(c, server_id, "unshelve", None)
                    assert (back["status"], back[HOST]) == ("ACTIVE", "sim-002")
                    await run_move(c, server_id, "shelve", None)
                back = await run_move(c, server_id, "unshelve", {"host": "sim-001"})
                assert back["status"] == "SHELVED_OFFLOADED", "a requested host is not replaced by another"
                sim.clear()
            await finish_operations(c)
            assert await count_server_resources(c, server_id) == {**NO_RESOURCES, "ports": 1}

    run(scenario())


def test_unshelve_without_offload_fails_if_the_host_is_unreachable(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **SHORT_HOST_TIMEOUT, **NO_OFFLOAD) as c:
            server = await boot_shelved(c, "SHELVED")
            before = await dump_server(c, server["id"])
            await make_unreachable(c, server[HOST])
            shown = await run_move(c, server["id"], "unshelve", None)
            assert shown["status"] == "SHELVED"
            await make_reachable(c, server[HOST])
            await finish_operations(c)
            assert await dump_server(c, server["id"]) == before
            assert len(await list_snapshots(c)) == 1
            assert (await run_move(c, server["id"], "unshelve", None))["status"] == "ACTIVE"

    run(scenario())


# Deletes


@pytest.mark.parametrize(
    ("config", "before", "action", "step"),
    [
        (NO_OFFLOAD, [], "shelve", "power_off"),
        (NO_OFFLOAD, [], "shelve", "snapshot"),
        (NO_OFFLOAD, ["shelve"], "shelveOffload", "destroy"),
        (NO_OFFLOAD, ["shelve"], "unshelve", "power_on"),
        ({}, ["shelve"], "unshelve", "spawn"),
        (NO_OFFLOAD, ["shelve"], None, None),
        ({}, ["shelve"], None, None),
    ],
)
def test_delete_removes_the_shelve_snapshot(
    database_url: str, config: dict[str, Any], before: list[str], action: str | None, step: str | None
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **config) as c:
            server_id = (await c.boot_active())["id"]
            for earlier_action in before:
                await run_move(c, server_id, earlier_action, None)
            with rules(c) as sim:
                if action is not None:
                    sim.add_failure("*", str(step), "hang", None, None)
                    assert (await act(c, server_id, action, as_="admin")).status == 202
                    async with asyncio.timeout(TIMEOUT_SECONDS):
                        while not any(rule.fired for rule in sim.all()):
                            await asyncio.sleep(0.01)
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                if step == "destroy":
                    sim.clear()
                await c.wait_until_deleted(server_id)
                sim.clear()
            await finish_operations(c)
            assert await count_server_resources(c, server_id) == NO_RESOURCES
            assert await list_snapshots(c, "admin") == []

    run(scenario())


# Server groups


def test_unshelve_obeys_the_server_group(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            group = await c.post(
                "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity"}}, version="2.64"
            )
            hints = {"group": group.json()["server_group"]["id"]}
            servers = []
            for name in ("a", "b"):
                server = {"name": name, "flavorRef": "1", "imageRef": c.image_id, "networks": "none"}
                answer = await c.post("/servers", {"server": server, "os:scheduler_hints": hints}, version="2.96")
                servers.append(await c.wait_until_settled(answer.json()["server"]["id"]))
            first, second = servers
            assert first[HOST] != second[HOST]
            await run_move(c, first["id"], "shelve", None)
            shown = await run_move(c, first["id"], "unshelve", {"host": second[HOST]})
            assert shown["status"] == "SHELVED_OFFLOADED"
            assert shown["fault"]["message"].startswith("No valid host was found")
            shown = await run_move(c, first["id"], "unshelve", None)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", first[HOST])

    run(scenario())
