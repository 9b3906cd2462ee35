"""rebuild: the new disk, changed fields, bodies by version, refusals, and restoring the old disk after failures."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from kilonova.compute import host_calls
from kilonova.doctor import examine
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations, unfinished_kinds
from tests.compute.placements.test_dry_run import DRY, dump_tables
from tests.compute.servers.moves import HOST, action_refusal, newest_action
from tests.compute.servers.support import (
    PUBLIC_KEY,
    act,
    guest_on,
    make_flavor,
    rules,
    sim_store,
    unreachable_after,
    wait_for_fields,
)
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ROUTE = "POST /servers/{server_id}/action#rebuild"
VM, POWER = "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state"
USER_DATA = base64.b64encode(b"#!/bin/sh").decode()


async def make_image(c: FullCloud, *, data: bytes = b"\0" * 1024, **keys: Any) -> str:
    body = {"name": "other", "disk_format": "raw", "container_format": "bare", "visibility": "public", **keys}
    answer = await c.post("/images", body, as_="admin", root="/image/v2")
    assert answer.status == 201, answer.body
    image_id: str = answer.json()["id"]
    if data:
        path, binary = f"/images/{image_id}/file", {"content-type": "application/octet-stream"}
        answer = await c.request("PUT", path, as_="admin", root="/image/v2", headers=binary, content=data)
        assert answer.status == 204, answer.body
    return image_id


async def rebuild(c: FullCloud, server_id: str, **keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The server in the response, and the server after the rebuild."""
    options = {key: keys.pop(key) for key in ("as_", "version") if key in keys}
    body = {"imageRef": c.image_id, **keys}
    answer = await act(c, server_id, "rebuild", body, **{"as_": "member", "version": "2.96", **options})
    assert answer.status == 202, answer.body
    return answer.json()["server"], await c.wait_until_settled(server_id)


async def guest_power_and_disk(c: FullCloud) -> tuple[str, str]:
    """Power and disk of the only guest. Checks that no slot exists."""
    await finish_operations(c)
    ((_, state),) = await c.list_guests_and_slots()
    assert not state.slot
    return state.power, state.disk


@proves(ROUTE)
def test_rebuild_makes_a_new_disk_from_another_image(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            image_id = await make_image(c, os_distro="plan9")
            server = await c.boot_active(name="web", metadata={"a": "b"}, user_data=USER_DATA)
            server_id, (_, disk) = server["id"], await guest_power_and_disk(c)
            allocations = await c.db.fetch("SELECT * FROM allocations ORDER BY 1, 2, 3")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "hang", 1, None)
            answer = await act(c, server_id, "rebuild", {"imageRef": image_id}, version="2.98")
            assert answer.status == 202, answer.body
            assert answer.headers["location"].endswith(f"/servers/{server_id}")
            shown = answer.json()["server"]
            assert (shown["status"], shown["OS-EXT-STS:task_state"], shown[VM]) == ("REBUILD", "rebuilding", "active")
            assert (shown["image"]["id"], shown["name"], shown["user_data"]) == (image_id, "web", USER_DATA)
            assert len(shown["adminPass"]) == 12
            # Until the end of the rebuild the server shows the old image.
            assert (await wait_for_fields(c, server_id, status="REBUILD"))["image"]["id"] == c.image_id
            with rules(c) as sim:
                sim.clear()
            after = await c.wait_until_settled(server_id)
            assert (after["status"], after["image"]["id"], after[POWER]) == ("ACTIVE", image_id, 1)
            for same in ("id", "name", "metadata", HOST, "addresses", "flavor", "key_name", "created"):
                assert after[same] == server[same], same
            assert after["OS-SRV-USG:launched_at"] > server["OS-SRV-USG:launched_at"]
            power, new = await guest_power_and_disk(c)
            assert (power, new != disk) == ("running", True)
            built = guest_on(c, server[HOST], server_id)
            assert built.image is not None
            assert (built.image.id, built.image.properties["os_distro"]) == (image_id, "plan9")
            assert await c.db.fetch("SELECT * FROM allocations ORDER BY 1, 2, 3") == allocations
            action = await newest_action(c, server_id, as_="member")
            assert (action["action"], action["message"]) == ("rebuild", None)

    run(scenario())


def test_rebuild_with_the_same_image_makes_a_new_disk(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            disk = await guest_power_and_disk(c)
            await rebuild(c, server["id"])
            assert await guest_power_and_disk(c) != disk
            link = f"http://images.example.com/v2/images/{c.image_id}"
            await rebuild(c, server["id"], imageRef=link, version="2.1")
            assert len({disk, await guest_power_and_disk(c)}) == 2

    run(scenario())


def test_rebuild_changes_all_requested_fields(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            await c.post("/os-keypairs", {"keypair": {"name": "mine", "public_key": PUBLIC_KEY}})
            server = await c.boot_active(name="old")
            keys = {
                "name": "new",
                "description": "again",
                "hostname": "new.example.com",
                "metadata": {"c": "d"},
                "key_name": "mine",
                "user_data": USER_DATA,
                "accessIPv4": "1.2.3.4",
                "accessIPv6": "80FE::0",
                "OS-DCF:diskConfig": "AUTO",
                "adminPass": "seekr3t",
                "preserve_ephemeral": False,
                "trusted_image_certificates": ["a", "b"],
            }
            plain = ("name", "description", "metadata", "key_name", "accessIPv4", "OS-DCF:diskConfig")
            answer, shown = await rebuild(c, server["id"], **keys)
            assert answer["adminPass"] == "seekr3t"
            for view in (answer, shown):
                for key in (*plain, "trusted_image_certificates"):
                    assert view[key] == keys[key], key
                assert (view["accessIPv6"], view["OS-EXT-SRV-ATTR:hostname"]) == ("80fe::", "new.example.com")
            assert (answer["user_data"], shown["OS-EXT-SRV-ATTR:user_data"]) == (USER_DATA, USER_DATA)
            built = guest_on(c, server[HOST], server["id"])
            assert (built.name, built.hostname, built.metadata) == ("new", "new.example.com", {"c": "d"})
            assert built.key is not None
            assert (built.key.public_key, built.user_data) == (PUBLIC_KEY, b"#!/bin/sh")

            answer, shown = await rebuild(c, server["id"], key_name=None, user_data=None, description=None)
            assert (answer["key_name"], answer["user_data"], answer["description"]) == (None, None, None)
            assert (shown["key_name"], shown["name"], shown["metadata"]) == (None, "new", {"c": "d"})
            assert (shown["description"], shown["OS-EXT-SRV-ATTR:user_data"]) == (None, None)
            assert shown["trusted_image_certificates"] == ["a", "b"]
            built = guest_on(c, server[HOST], server["id"])
            assert (built.key, built.user_data) == (None, None)
            _, shown = await rebuild(c, server["id"], trusted_image_certificates=None)
            assert shown["trusted_image_certificates"] is None

    run(scenario())


FIRST_VERSIONS = {
    "description": ("2.19", "x"),
    "key_name": ("2.54", None),
    "user_data": ("2.57", None),
    "trusted_image_certificates": ("2.63", None),
    "hostname": ("2.90", "label"),
}


def version_before(version: str) -> str:
    return f"2.{int(version.partition('.')[2]) - 1}"


def test_rebuild_keys_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]

            async def status(version: str, **keys: Any) -> int:
                body = {"imageRef": c.image_id, **keys}
                answer = await act(c, server_id, "rebuild", body, version=version, headers=DRY)
                return int(answer.status)

            for key, (version, value) in FIRST_VERSIONS.items():
                assert await status(version, **{key: value}) == 200, key
                assert await status(version_before(version), **{key: value}) == 400, key
            assert await status("2.94", hostname="a.b") == 200
            assert await status("2.93", hostname="a.b") == 400
            assert await status("2.56", personality=[]) == 200
            assert await status("2.57", personality=[]) == 400
            assert await status("2.96", reimage_boot_volume=True) == 400

    run(scenario())


BASE_FIELDS = {
    *("OS-DCF:diskConfig", "accessIPv4", "accessIPv6", "addresses", "adminPass", "created", "flavor", "hostId", "id"),
    *("image", "links", "metadata", "name", "progress", "status", "tenant_id", "updated", "user_id"),
}
ADDED_FIELDS = {
    "2.9": {"locked"},
    "2.19": {"description"},
    "2.26": {"tags"},
    "2.54": {"key_name"},
    "2.57": {"user_data"},
    "2.63": {"trusted_image_certificates"},
    "2.71": {"server_groups"},
    "2.73": {"locked_reason"},
}


def test_rebuild_response_fields_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]

            async def shown(version: str, as_: str = "member") -> dict[str, Any]:
                return (await rebuild(c, server_id, version=version, as_=as_))[0]

            expected = set(BASE_FIELDS)
            assert (await shown("2.1")).keys() == expected
            for version, fields in ADDED_FIELDS.items():
                assert (await shown(version_before(version))).keys() == expected, version
                expected |= fields
                assert (await shown(version)).keys() == expected, version
            old = await shown("2.74", "admin")
            assert old.keys() == expected
            assert {frozenset(entry) for entries in old["addresses"].values() for entry in entries} == {
                frozenset({"version", "addr"})
            }
            for version in ("2.75", "2.96", "2.98", "2.100"):
                whole_server = await c.show(server_id, version=version)
                renamed = whole_server.keys() - {"OS-EXT-SRV-ATTR:user_data"} | {"user_data", "adminPass"}
                assert (await shown(version, "admin")).keys() == renamed
            assert "OS-EXT-SRV-ATTR:host" not in await shown("2.96")
            assert ("id" in (await shown("2.46"))["flavor"], "ram" in (await shown("2.47"))["flavor"]) == (True, True)
            assert "properties" not in (await shown("2.97"))["image"]
            assert "properties" in (await shown("2.98"))["image"]

    run(scenario())


def test_rebuild_keeps_a_stopped_server_stopped(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            await act(c, server_id, "os-stop")
            await c.wait_until_settled(server_id)
            _, disk = await guest_power_and_disk(c)
            answer, shown = await rebuild(c, server_id)
            assert (answer["status"], shown["status"], shown[POWER]) == ("REBUILD", "SHUTOFF", 4)
            power, new = await guest_power_and_disk(c)
            assert (power, new != disk) == ("shutdown", True)

    run(scenario())


async def set_row(c: FullCloud, server_id: str, **columns: Any) -> None:
    async with c.db.transaction() as tx:
        for column, value in columns.items():
            await tx.execute(f"UPDATE servers SET {column} = $2 WHERE id = $1", server_id, value)


@pytest.mark.parametrize("missing_guest", [False, True])
def test_rebuild_repairs_a_server_in_error(sqlite_url: str, missing_guest: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            fault_json = orjson.dumps({"code": 500, "message": "oh", "details": None, "created_at": 1.0}).decode()
            await set_row(c, server["id"], vm_state="error", power_state=0, fault=fault_json)
            if missing_guest:
                with sim_store(c) as store:
                    store.remove_guest(server[HOST], server["id"])
            _, shown = await rebuild(c, server["id"])
            assert (shown["status"], shown[POWER], "fault" in shown) == ("ACTIVE", 1, False)
            assert (await guest_power_and_disk(c))[0] == "running"

    run(scenario())


def test_rebuild_refuses_bad_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            server_id = server["id"]

            async def refusal_message(status: int, version: str = "2.96", **keys: Any) -> str:
                body = {"imageRef": c.image_id, **keys}
                code, message = await action_refusal(c, server_id, "rebuild", body, as_="member", version=version)
                assert code == status, message
                return message

            unknown_id = "70a599e0-31e7-49b7-b260-868f441e862b"
            assert await refusal_message(400, imageRef=unknown_id) == f"Can not find requested image {unknown_id}."
            assert "is not active" in await refusal_message(400, imageRef=await make_image(c, data=b""))
            assert "memory is too small" in await refusal_message(400, imageRef=await make_image(c, min_ram=4096))
            assert "too small" in await refusal_message(400, imageRef=await make_image(c, min_disk=50))
            private = await make_image(c, visibility="private")
            assert "Can not find" in await refusal_message(400, imageRef=private)
            for keys in ({"imageRef": "x"}, {"imageRef": ""}, {"imageRef": None}, {"unknown": 1}, {"name": ""}):
                await refusal_message(400, **keys)
            assert await refusal_message(400, key_name="unknown") == "Invalid key_name provided."
            await refusal_message(400, user_data="no base64!")
            await refusal_message(400, accessIPv4="")
            await refusal_message(403, metadata={str(n): "x" for n in range(200)})
            assert "preserve_ephemeral" in await refusal_message(400, preserve_ephemeral=True)
            for certificates in ([], ["a", "a"], [""], [str(n) for n in range(51)], "a"):
                await refusal_message(400, trusted_image_certificates=certificates)
            assert "does not boot from a volume" in await refusal_message(400, "2.106", reimage_boot_volume=True)
            empty = await act(c, server_id, "rebuild", {})
            assert empty.status == 400

    run(scenario())


def test_rebuild_refuses_an_image_that_the_host_cannot_run(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            # The host is full. A rebuild needs no more than the server's allocation.
            await make_flavor(c, "whole", ram=16384, disk=100)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE inventories SET reserved = 0, allocation_ratio = 1")
                await tx.execute("UPDATE resource_providers SET generation = generation + 1")
            server = await c.boot_active(flavorRef="whole")
            wrong: tuple[dict[str, Any], ...] = {"trait:CUSTOM_GOLD": "required"}, {"hw_architecture": "s390x"}
            for properties in wrong:
                image_id = await make_image(c, **properties)
                code, message = await action_refusal(c, server["id"], "rebuild", {"imageRef": image_id}, as_="member")
                assert code == 400, message
                assert message.startswith("The server's host cannot run this image: "), message
                assert server[HOST] not in message
            image_id = await make_image(c, hw_cpu_policy="dedicated")
            code, message = await action_refusal(c, server["id"], "rebuild", {"imageRef": image_id}, as_="member")
            assert (code, "other resources" in message) == (400, True)
            _, shown = await rebuild(c, server["id"], imageRef=await make_image(c))
            assert shown["status"] == "ACTIVE"

    run(scenario())


def test_rebuild_refusals_by_state_lock_and_role(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]

            async def refusal_message(status: int, **options: Any) -> str:
                body = {"imageRef": c.image_id}
                code, message = await action_refusal(c, server_id, "rebuild", body, **{"as_": "member", **options})
                assert code == status, message
                return message

            await refusal_message(403, as_="reader")
            await refusal_message(404, as_="other")
            for state in ("building", "resized", "shelved", "shelved_offloaded"):
                await set_row(c, server_id, vm_state=state)
                assert "Cannot 'rebuild'" in await refusal_message(409), state
            await set_row(c, server_id, vm_state="error", host=None)
            assert "it has no host" in await refusal_message(409)
            await set_row(c, server_id, vm_state="active", host="sim-001", locked=True)
            assert "is locked" in await refusal_message(409)
            await rebuild(c, server_id, as_="admin")
            await set_row(c, server_id, locked=False)
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "hang", None, None)
                answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id})
                assert answer.status == 202
                assert "task_state rebuilding" in await refusal_message(409)
                sim.clear()
            await c.wait_until_settled(server_id)
            unknown_id = "70a599e0-31e7-49b7-b260-868f441e862b"
            answer = await act(c, unknown_id, "rebuild", {"imageRef": c.image_id})
            assert fault(answer)[0] == 404

    run(scenario())


def test_rebuild_dry_run_has_no_plans_and_writes_nothing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            before = await dump_tables(c.db)
            answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id}, headers=DRY)
            assert answer.status == 200, answer.body
            plan = answer.json()["plan"]
            assert (plan["servers"], plan["placed"], plan["plans"]) == (0, 0, [])
            unknown = {"imageRef": "70a599e0-31e7-49b7-b260-868f441e862b"}
            assert (await act(c, server_id, "rebuild", unknown, headers=DRY)).status == 400
            assert await dump_tables(c.db) == before

    run(scenario())


@pytest.fixture
def short_probe_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.3)


@pytest.mark.parametrize("step", ["power_off", "park", "spawn"])
def test_failed_rebuild_restores_the_old_disk(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            image_id = await make_image(c)
            server = await c.boot_active(name="old")
            before = await guest_power_and_disk(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], step, "error", None, "no cellar")
                _, shown = await rebuild(c, server["id"], imageRef=image_id, name="new")
                sim.clear()
            assert await guest_power_and_disk(c) == before
            for same in ("status", "name", "image", POWER, HOST, "OS-SRV-USG:launched_at"):
                assert shown[same] == server[same], same
            assert "no cellar" in shown["fault"]["details"]
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            _, shown = await rebuild(c, server["id"], imageRef=image_id, name="new")
            assert (shown["name"], "fault" in shown) == ("new", False)
            assert await guest_power_and_disk(c) != before

    run(scenario())


def test_doctor_ignores_a_slot_with_deferred_cleanup(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "discard", "error", None, None)
                await rebuild(c, server["id"], imageRef=await make_image(c))
                assert await unfinished_kinds(c) == ["clean_up_slot"]
                assert len(await c.list_slots()) == 1
                async with c.db.transaction() as tx:  # the doctor ignores recent operations
                    await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
                assert await examine(c.db, await c.list_guests_and_slots()) == []
                _, shown = await rebuild(c, server["id"])
                assert (shown["status"], len(await c.list_slots())) == ("ACTIVE", 2)
                sim.clear()
            await guest_power_and_disk(c)

    run(scenario())


UNDO_STEPS = ("destroy", "unpark", "power_on")


@pytest.mark.usefixtures("short_probe_timeout")
@pytest.mark.parametrize("step", ["power_off", "park", "spawn"])
def test_unreachable_host_restores_the_old_disk_when_it_is_back(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            before = await guest_power_and_disk(c)
            with rules(c) as sim:
                rule_ids = [
                    sim.add_failure(server[HOST], failing_step, "unreachable", None, None)
                    for failing_step in (step, *UNDO_STEPS)
                ]
                async with unreachable_after(sim, server[HOST], *rule_ids):
                    _, shown = await rebuild(c, server["id"], name="new")
                assert (shown["status"], shown["name"]) == ("ACTIVE", "s")
                assert shown["fault"]["message"].endswith("did not respond for 0.3 s")
                assert set(await unfinished_kinds(c)) == {"restore_guest"}
                sim.clear()
            assert await guest_power_and_disk(c) == before

    run(scenario())


@pytest.mark.usefixtures("short_probe_timeout")
def test_deferred_restore_does_not_replace_a_newer_rebuild(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            old = await guest_power_and_disk(c)
            with rules(c) as sim:
                rule_ids = [
                    sim.add_failure(server[HOST], failing_step, "unreachable", None, None)
                    for failing_step in ("spawn", *UNDO_STEPS)
                ]
                async with unreachable_after(sim, server[HOST], *rule_ids):
                    await rebuild(c, server["id"])
                assert set(await unfinished_kinds(c)) == {"restore_guest"}
                # The host responds again, but the deferred restore has not run yet.
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE operations SET run_at = run_at + 3600 WHERE finished_at IS NULL")
                sim.clear()
            _, shown = await rebuild(c, server["id"], name="newest")
            assert (shown["status"], shown["name"]) == ("ACTIVE", "newest")
            ((_, new),) = [found for found in await c.list_guests_and_slots() if not found[1].slot]
            assert await guest_power_and_disk(c) == ("running", new.disk)
            assert new.disk != old[1]

    run(scenario())


@pytest.mark.usefixtures("short_probe_timeout")
@pytest.mark.parametrize("unreachable", [False, True])
def test_delete_during_rebuild(database_url: str, unreachable: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **SHORT_HOST_TIMEOUT) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "hang", None, None)
                answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id})
                assert answer.status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                for failing_step in ("describe", "discard", *UNDO_STEPS) if unreachable else ():
                    sim.add_failure(server[HOST], failing_step, "unreachable", None, None)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.wait_until_deleted(server["id"])
                sim.clear()
            await finish_operations(c)
            assert await c.list_guests_and_slots() == []
            assert await c.db.fetch("SELECT * FROM allocations") == []

    run(scenario())
