"""Rebuilding: a new disk from an image, what changes with it, who may when, and what a failure leaves: everything."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.compute.operations import leftovers
from kilonova.doctor import examine
from kilonova.policy import Policy
from tests.compute.operations.test_silence import QUICK, all_done, unfinished
from tests.compute.placements.test_dry_run import DRY
from tests.compute.placements.test_dry_run import everything as tables
from tests.compute.servers.moves import HOST, newest_action, refused
from tests.compute.servers.support import KEY, act, guest_on, hypervisors, make_flavor, rules, silent_from, until
from tests.support import run
from tests.support.cloud import fault
from tests.support.proves import proves
from tests.support.whole import Whole, whole

ROUTE = "POST /servers/{server_id}/action#rebuild"
VM, POWER = "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state"
DATA = base64.b64encode(b"#!/bin/sh").decode()


async def make_image(c: Whole, *, data: bytes = b"\0" * 1024, **keys: Any) -> str:
    body = {"name": "other", "disk_format": "raw", "container_format": "bare", "visibility": "public", **keys}
    answer = await c.post("/images", body, as_="admin", root="/image/v2")
    assert answer.status == 201, answer.body
    image_id: str = answer.json()["id"]
    if data:
        path, binary = f"/images/{image_id}/file", {"content-type": "application/octet-stream"}
        answer = await c.request("PUT", path, as_="admin", root="/image/v2", headers=binary, content=data)
        assert answer.status == 204, answer.body
    return image_id


async def rebuild(c: Whole, server_id: str, **keys: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the answer shows, and the server when it is over."""
    options = {key: keys.pop(key) for key in ("as_", "version") if key in keys}
    asked = {"imageRef": c.image_id, **keys}
    answer = await act(c, server_id, "rebuild", asked, **{"as_": "member", "version": "2.96", **options})
    assert answer.status == 202, answer.body
    return answer.json()["server"], await c.settled(server_id)


async def machine(c: Whole) -> tuple[str, str]:
    """Power and disk of the only guest, beside which nothing is kept."""
    await all_done(c)
    ((_, state),) = await c.everything()
    assert not state.slot
    return state.power, state.disk


@proves(ROUTE)
def test_a_server_gets_a_new_disk_of_another_image(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            image_id = await make_image(c, os_distro="plan9")
            server = await c.active(name="web", metadata={"a": "b"}, user_data=DATA)
            server_id, (_, disk) = server["id"], await machine(c)
            shares = await c.db.fetch("SELECT * FROM allocations ORDER BY 1, 2, 3")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "hang", 1, None)
            answer = await act(c, server_id, "rebuild", {"imageRef": image_id}, version="2.98")
            assert answer.status == 202, answer.body
            assert answer.headers["location"].endswith(f"/servers/{server_id}")
            shown = answer.json()["server"]
            assert (shown["status"], shown["OS-EXT-STS:task_state"], shown[VM]) == ("REBUILD", "rebuilding", "active")
            assert (shown["image"]["id"], shown["name"], shown["user_data"]) == (image_id, "web", DATA)
            assert len(shown["adminPass"]) == 12
            # Until it is done the server is what it was.
            assert (await until(c, server_id, status="REBUILD"))["image"]["id"] == c.image_id
            with rules(c) as sim:
                sim.clear()
            after = await c.settled(server_id)
            assert (after["status"], after["image"]["id"], after[POWER]) == ("ACTIVE", image_id, 1)
            for same in ("id", "name", "metadata", HOST, "addresses", "flavor", "key_name", "created"):
                assert after[same] == server[same], same
            assert after["OS-SRV-USG:launched_at"] > server["OS-SRV-USG:launched_at"]
            power, new = await machine(c)
            assert (power, new != disk) == ("running", True)
            built = guest_on(c, server[HOST], server_id)
            assert built.image is not None
            assert (built.image.id, built.image.properties["os_distro"]) == (image_id, "plan9")
            assert await c.db.fetch("SELECT * FROM allocations ORDER BY 1, 2, 3") == shares
            action = await newest_action(c, server_id, as_="member")
            assert (action["action"], action["message"]) == ("rebuild", None)

    run(scenario())


def test_the_same_image_makes_a_new_disk_too(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active()
            disk = await machine(c)
            await rebuild(c, server["id"])
            assert await machine(c) != disk
            link = f"http://images.example.com/v2/images/{c.image_id}"
            await rebuild(c, server["id"], imageRef=link, version="2.1")
            assert len({disk, await machine(c)}) == 2

    run(scenario())


def test_everything_that_can_change_along(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            await c.post("/os-keypairs", {"keypair": {"name": "mine", "public_key": KEY}})
            server = await c.active(name="old")
            keys = {
                "name": "new",
                "description": "again",
                "hostname": "new.example.com",
                "metadata": {"c": "d"},
                "key_name": "mine",
                "user_data": DATA,
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
            for one in (answer, shown):
                for key in (*plain, "trusted_image_certificates"):
                    assert one[key] == keys[key], key
                assert (one["accessIPv6"], one["OS-EXT-SRV-ATTR:hostname"]) == ("80fe::", "new.example.com")
            assert (answer["user_data"], shown["OS-EXT-SRV-ATTR:user_data"]) == (DATA, DATA)
            built = guest_on(c, server[HOST], server["id"])
            assert (built.name, built.hostname, built.metadata) == ("new", "new.example.com", {"c": "d"})
            assert built.key is not None
            assert (built.key.public_key, built.user_data) == (KEY, b"#!/bin/sh")

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


TRUSTED = {"trusted_image_certificates": ["a"]}


def test_certificates_from_the_beginning(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active(version="2.63", **TRUSTED)
            assert (await c.show(server["id"], version="2.63"))["trusted_image_certificates"] == ["a"]
            assert "trusted_image_certificates" not in await c.show(server["id"], version="2.62")
            body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
            for version, certificates in (("2.62", ["a"]), ("2.63", []), ("2.63", ["a", "a"])):
                asked = {**body, "trusted_image_certificates": certificates}
                assert (await c.post("/servers", {"server": asked}, version=version)).status == 400
            names = [f"os_compute_api:servers:{action}:trusted_certs" for action in ("create", "rebuild")]
            rules = tmp_path / "policy.yaml"
            rules.write_text("".join(f'"{name}": "role:admin"\n' for name in names))
            c.services.policy = Policy(rules)
            assert (await c.post("/servers", {"server": {**body, **TRUSTED}}, version="2.63")).status == 403
            again = {"imageRef": c.image_id, **TRUSTED}
            assert (await act(c, server["id"], "rebuild", again, version="2.63")).status == 403

    run(scenario())


SINCE = {
    "description": ("2.19", "x"),
    "key_name": ("2.54", None),
    "user_data": ("2.57", None),
    "trusted_image_certificates": ("2.63", None),
    "hostname": ("2.90", "label"),
}


def below(version: str) -> str:
    return f"2.{int(version.partition('.')[2]) - 1}"


def test_each_key_has_its_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]

            async def status(version: str, **keys: Any) -> int:
                body = {"imageRef": c.image_id, **keys}
                answer = await act(c, server_id, "rebuild", body, version=version, headers=DRY)
                return int(answer.status)

            for key, (version, value) in SINCE.items():
                assert await status(version, **{key: value}) == 200, key
                assert await status(below(version), **{key: value}) == 400, key
            assert await status("2.94", hostname="a.b") == 200
            assert await status("2.93", hostname="a.b") == 400
            assert await status("2.56", personality=[]) == 200
            assert await status("2.57", personality=[]) == 400
            file = {"path": "/etc/motd", "contents": "aGk="}
            assert await status("2.56", personality=[file]) == 400
            assert await status("2.96", reimage_boot_volume=True) == 400

    run(scenario())


ALWAYS = {
    *("OS-DCF:diskConfig", "accessIPv4", "accessIPv6", "addresses", "adminPass", "created", "flavor", "hostId", "id"),
    *("image", "links", "metadata", "name", "progress", "status", "tenant_id", "updated", "user_id"),
}
GAINS = {
    "2.9": {"locked"},
    "2.19": {"description"},
    "2.26": {"tags"},
    "2.54": {"key_name"},
    "2.57": {"user_data"},
    "2.63": {"trusted_image_certificates"},
    "2.71": {"server_groups"},
    "2.73": {"locked_reason"},
}


def test_the_answer_grows_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]

            async def shown(version: str, as_: str = "member") -> dict[str, Any]:
                return (await rebuild(c, server_id, version=version, as_=as_))[0]

            expected = set(ALWAYS)
            assert (await shown("2.1")).keys() == expected
            for version, fields in GAINS.items():
                assert (await shown(below(version))).keys() == expected, version
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


def test_a_stopped_server_stays_stopped(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            await act(c, server_id, "os-stop")
            await c.settled(server_id)
            _, disk = await machine(c)
            answer, shown = await rebuild(c, server_id)
            assert (answer["status"], shown["status"], shown[POWER]) == ("REBUILD", "SHUTOFF", 4)
            power, new = await machine(c)
            assert (power, new != disk) == ("shutdown", True)

    run(scenario())


async def set_row(c: Whole, server_id: str, **columns: Any) -> None:
    async with c.db.transaction() as tx:
        for column, value in columns.items():
            await tx.execute(f"UPDATE servers SET {column} = $2 WHERE id = $1", server_id, value)


@pytest.mark.parametrize("lost", [False, True])
def test_a_server_in_error_is_made_well(sqlite_url: str, lost: bool) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active()
            trouble = orjson.dumps({"code": 500, "message": "oh", "details": None, "created_at": 1.0}).decode()
            await set_row(c, server["id"], vm_state="error", power_state=0, fault=trouble)
            if lost:
                with hypervisors(c) as store:
                    store.remove_guest(server[HOST], server["id"])
            _, shown = await rebuild(c, server["id"])
            assert (shown["status"], shown[POWER], "fault" in shown) == ("ACTIVE", 1, False)
            assert (await machine(c))[0] == "running"

    run(scenario())


def test_what_is_refused_begins_nothing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active()
            server_id = server["id"]

            async def said(status: int, version: str = "2.96", **keys: Any) -> str:
                body = {"imageRef": c.image_id, **keys}
                code, message = await refused(c, server_id, "rebuild", body, as_="member", version=version)
                assert code == status, message
                return message

            nobody = "70a599e0-31e7-49b7-b260-868f441e862b"
            assert await said(400, imageRef=nobody) == f"Can not find requested image {nobody}."
            assert "is not active" in await said(400, imageRef=await make_image(c, data=b""))
            assert "memory is too small" in await said(400, imageRef=await make_image(c, min_ram=4096))
            assert "too small" in await said(400, imageRef=await make_image(c, min_disk=50))
            private = await make_image(c, visibility="private")
            assert "Can not find" in await said(400, imageRef=private)
            for keys in ({"imageRef": "x"}, {"imageRef": ""}, {"imageRef": None}, {"unknown": 1}, {"name": ""}):
                await said(400, **keys)
            assert await said(400, key_name="nobody's") == "Invalid key_name provided."
            await said(400, user_data="no base64!")
            await said(400, accessIPv4="")
            await said(403, metadata={str(n): "x" for n in range(200)})
            assert "preserve_ephemeral" in await said(400, preserve_ephemeral=True)
            for certificates in ([], ["a", "a"], [""], [str(n) for n in range(51)], "a"):
                await said(400, trusted_image_certificates=certificates)
            assert "does not boot from a volume" in await said(400, "2.106", reimage_boot_volume=True)
            empty = await act(c, server_id, "rebuild", {})
            assert empty.status == 400

    run(scenario())


def test_an_image_that_the_host_is_not_made_for(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            # The host is full: what the server has is enough for it.
            await make_flavor(c, "whole", ram=16384, disk=100)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE inventories SET reserved = 0, allocation_ratio = 1")
                await tx.execute("UPDATE resource_providers SET generation = generation + 1")
            server = await c.active(flavorRef="whole")
            wrong: tuple[dict[str, Any], ...] = {"trait:CUSTOM_GOLD": "required"}, {"hw_architecture": "s390x"}
            for properties in wrong:
                image_id = await make_image(c, **properties)
                code, message = await refused(c, server["id"], "rebuild", {"imageRef": image_id}, as_="member")
                assert code == 400, message
                assert message.startswith("The server's host cannot have a server of this image: "), message
                assert server[HOST] not in message
            image_id = await make_image(c, hw_cpu_policy="dedicated")
            code, message = await refused(c, server["id"], "rebuild", {"imageRef": image_id}, as_="member")
            assert (code, "other resources" in message) == (400, True)
            _, shown = await rebuild(c, server["id"], imageRef=await make_image(c))
            assert shown["status"] == "ACTIVE"

    run(scenario())


def test_states_locks_and_policy(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]

            async def said(status: int, **options: Any) -> str:
                body = {"imageRef": c.image_id}
                code, message = await refused(c, server_id, "rebuild", body, **{"as_": "member", **options})
                assert code == status, message
                return message

            await said(403, as_="reader")
            await said(404, as_="other")
            for state in ("building", "resized", "shelved", "shelved_offloaded"):
                await set_row(c, server_id, vm_state=state)
                assert "Cannot 'rebuild'" in await said(409), state
            await set_row(c, server_id, vm_state="error", host=None)
            assert "no host has it" in await said(409)
            await set_row(c, server_id, vm_state="active", host="sim-001", locked=True)
            assert "is locked" in await said(409)
            await rebuild(c, server_id, as_="admin")
            await set_row(c, server_id, locked=False)
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "hang", None, None)
                answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id})
                assert answer.status == 202
                assert "task_state rebuilding" in await said(409)
                sim.clear()
            await c.settled(server_id)
            nowhere = "70a599e0-31e7-49b7-b260-868f441e862b"
            answer = await act(c, nowhere, "rebuild", {"imageRef": c.image_id})
            assert fault(answer)[0] == 404

    run(scenario())


def test_a_dry_run_has_no_plans_and_writes_nothing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            before = await tables(c.db)
            answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id}, headers=DRY)
            assert answer.status == 200, answer.body
            plan = answer.json()["plan"]
            assert (plan["servers"], plan["placed"], plan["plans"]) == (0, 0, [])
            nobody = {"imageRef": "70a599e0-31e7-49b7-b260-868f441e862b"}
            assert (await act(c, server_id, "rebuild", nobody, headers=DRY)).status == 400
            assert await tables(c.db) == before

    run(scenario())


@pytest.fixture
def short_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PING", 0.3)


@pytest.mark.parametrize("step", ["power_off", "park", "spawn"])
def test_a_host_that_cannot_leaves_the_old_disk_running(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            image_id = await make_image(c)
            server = await c.active(name="old")
            before = await machine(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], step, "error", None, "no cellar")
                _, shown = await rebuild(c, server["id"], imageRef=image_id, name="new")
                sim.clear()
            assert await machine(c) == before
            for same in ("status", "name", "image", POWER, HOST, "OS-SRV-USG:launched_at"):
                assert shown[same] == server[same], same
            assert "no cellar" in shown["fault"]["details"]
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            _, shown = await rebuild(c, server["id"], imageRef=image_id, name="new")
            assert (shown["name"], "fault" in shown) == ("new", False)
            assert await machine(c) != before

    run(scenario())


def test_what_is_yet_to_be_discarded_is_no_finding(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "discard", "error", None, None)
                await rebuild(c, server["id"], imageRef=await make_image(c))
                assert await unfinished(c) == ["clear slot"]
                assert len(await c.kept()) == 1
                async with c.db.transaction() as tx:  # as if it were long ago
                    await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
                assert await examine(c.db, await c.everything()) == []
                _, shown = await rebuild(c, server["id"])
                assert (shown["status"], len(await c.kept())) == ("ACTIVE", 2)
                sim.clear()
            await machine(c)

    run(scenario())


SILENT = ("destroy", "unpark", "power_on")


@pytest.mark.usefixtures("short_ping")
@pytest.mark.parametrize("step", ["power_off", "park", "spawn"])
def test_a_host_that_falls_silent_has_the_old_disk_when_it_is_back(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK) as c:
            server = await c.active()
            before = await machine(c)
            with rules(c) as sim:
                asked = [sim.add_failure(server[HOST], each, "unreachable", None, None) for each in (step, *SILENT)]
                async with silent_from(sim, server[HOST], *asked):
                    _, shown = await rebuild(c, server["id"], name="new")
                assert (shown["status"], shown["name"]) == ("ACTIVE", "s")
                assert shown["fault"]["message"].endswith("did not answer for 0.3 s")
                assert set(await unfinished(c)) == {"restore guest"}
                sim.clear()
            assert await machine(c) == before

    run(scenario())


@pytest.mark.usefixtures("short_ping")
def test_a_guest_that_is_to_come_back_does_not_replace_a_later_one(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK) as c:
            server = await c.active()
            old = await machine(c)
            with rules(c) as sim:
                asked = [sim.add_failure(server[HOST], each, "unreachable", None, None) for each in ("spawn", *SILENT)]
                async with silent_from(sim, server[HOST], *asked):
                    await rebuild(c, server["id"])
                assert set(await unfinished(c)) == {"restore guest"}
                # It answers again, but nobody has come to the guest in the slot yet.
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE operations SET run_at = run_at + 3600 WHERE finished_at IS NULL")
                sim.clear()
            _, shown = await rebuild(c, server["id"], name="newest")
            assert (shown["status"], shown["name"]) == ("ACTIVE", "newest")
            ((_, new),) = [each for each in await c.everything() if not each[1].slot]
            assert await machine(c) == ("running", new.disk)
            assert new.disk != old[1]

    run(scenario())


@pytest.mark.usefixtures("short_ping")
@pytest.mark.parametrize("silent", [False, True])
def test_a_server_is_deleted_while_it_is_rebuilt(database_url: str, silent: bool) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1, **QUICK) as c:
            server = await c.active()
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "hang", None, None)
                answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id})
                assert answer.status == 202
                await until(c, server["id"], OS_EXT_STS__task_state="rebuilding")
                for each in ("describe", "discard", *SILENT) if silent else ():
                    sim.add_failure(server[HOST], each, "unreachable", None, None)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.gone(server["id"])
                sim.clear()
            await all_done(c)
            assert await c.everything() == []
            assert await c.db.fetch("SELECT * FROM allocations") == []

    run(scenario())
