"""Shelving: what a server gives up and keeps, how it comes back, and when any of it is refused or fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import Unreachable
from tests.compute.operations.test_silence import QUICK, all_done, unfinished
from tests.compute.placements.test_dry_run import DRY
from tests.compute.placements.test_dry_run import everything as tables
from tests.compute.servers.moves import HOST, everything, find_again, lose, moved, newest_action, refused
from tests.compute.servers.shelved import KEPT, disk, dropped, shelved, snapshots
from tests.compute.servers.support import NOTHING, act, guest_on, holdings, hypervisors, port, rules, silent_from, until
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.proves import proves
from tests.support.whole import PATIENCE, WATCHFUL, Whole, whole

TASK, POWER = "OS-EXT-STS:task_state", "OS-EXT-STS:power_state"
LAUNCHED = "OS-SRV-USG:launched_at"


async def ports(c: Whole, server_id: str) -> list[dict[str, Any]]:
    rows = await c.db.fetch("SELECT id FROM ports WHERE device_id = $1 ORDER BY 1", server_id)
    found = [await port(c, row["id"]) for row in rows]
    return [{key: one[key] for key in ("id", "fixed_ips", "binding:host_id", "device_owner")} for one in found]


@proves("POST /servers/{server_id}/action#shelve", "POST /servers/{server_id}/action#unshelve")
def test_a_shelved_server_leaves_its_host_and_comes_back_with_its_disk(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            booted = await c.active(name="web", metadata={"a": "b"})
            server_id, was = booted["id"], await disk(c, booted["id"])
            (nic,) = await ports(c, server_id)
            assert nic["binding:host_id"] == booted[HOST]

            off = await moved(c, server_id, "shelve", None, as_="member")
            assert (off["status"], off["OS-EXT-STS:vm_state"]) == ("SHELVED_OFFLOADED", "shelved_offloaded")
            assert (off[HOST], off["OS-EXT-SRV-ATTR:hypervisor_hostname"], off[POWER]) == (None, None, 0)
            assert off["hostId"] == ""
            assert await holdings(c, server_id) == {**NOTHING, "ports": 1}
            assert await ports(c, server_id) == [{**nic, "binding:host_id": ""}]
            assert off["addresses"] == booted["addresses"]
            assert await c.guests() == {}

            back = await moved(c, server_id, "unshelve", None, as_="member")
            assert (back["status"], back[POWER]) == ("ACTIVE", 1)
            assert (await c.guests())[server_id] == (back[HOST], "running")
            assert await disk(c, server_id) == was
            assert await ports(c, server_id) == [{**nic, "binding:host_id": back[HOST]}]
            for same in ("image", "flavor", "addresses", "metadata", "created", "key_name"):
                assert back[same] == booted[same], same
            assert clock.parse(back[LAUNCHED] + "Z") >= clock.parse(booted[LAUNCHED] + "Z")
            held = await c.db.fetch_value("SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server_id)
            assert held == 3
            await dropped(c)
            listed = (await c.get(f"/servers/{server_id}/os-instance-actions")).json()["instanceActions"]
            assert [one["action"] for one in listed] == ["unshelve", "shelveOffload", "shelve", "create"]
            assert len({one["request_id"] for one in listed}) == 4
            row = await c.db.fetch_one("SELECT shelved_at, shelved_image_id FROM servers WHERE id = $1", server_id)
            assert row == {"shelved_at": None, "shelved_image_id": None}

    run(scenario())


def test_the_snapshot_is_an_image_of_the_project(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server = await shelved(c, name="web")
            (image,) = await snapshots(c)
            wanted = {
                "name": "web-shelved",
                "owner": DEMO,
                "visibility": "private",
                "status": "active",
                "disk_format": "raw",
                "container_format": "bare",
                "min_disk": 1,
                "min_ram": 0,
                "image_type": "snapshot",
                "image_location": "snapshot",
                "image_state": "available",
                "instance_uuid": server["id"],
                "user_id": "member-id",
                "base_image_ref": c.image_id,
                "hw_rng_model": "virtio",
            }
            assert {key: image[key] for key in wanted} == wanted
            assert image["size"] > 0
            assert await snapshots(c, "other") == []
            another = await c.active(name="copy", imageRef=image["id"])
            assert await disk(c, another["id"]), "it can be booted from like any other image"

    run(scenario())


def test_the_snapshot_says_of_its_base_only_what_is_still_true(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            base = {"disk_format": "iso", "container_format": "ova", "min_ram": 64, "min_disk": 1, "os_distro": "x"}
            signed = {"img_signature": "secret", "img_signature_hash_method": "SHA-256", "image_type": "installer"}
            made = await c.services.image.create({"name": "base", "visibility": "public", **base, **signed}, "admin")
            await c.services.image.upload(made["id"], b"disk", "admin")
            await shelved(c, imageRef=made["id"], flavorRef="2")
            (image,) = [one for one in await snapshots(c) if one["id"] != made["id"]]
            shown = {key: image.get(key) for key in (*base, *signed, "base_image_ref")}
            assert shown == {
                "disk_format": "raw",
                "container_format": "bare",
                "min_ram": 64,
                "min_disk": 20,
                "os_distro": "x",
                "img_signature": None,
                "img_signature_hash_method": None,
                "image_type": "snapshot",
                "base_image_ref": made["id"],
            }

    run(scenario())


def test_a_long_name_is_cut_and_a_stopped_server_comes_back_running(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active(name="n" * 255))["id"]
            await moved(c, server_id, "os-stop", None)
            assert (await moved(c, server_id, "shelve", None))["status"] == "SHELVED_OFFLOADED"
            (image,) = await snapshots(c)
            assert image["name"] == "n" * 247 + "-shelved"
            back = await moved(c, server_id, "unshelve", None)
            assert (back["status"], back[POWER]) == ("ACTIVE", 1)

    run(scenario())


@proves("POST /servers/{server_id}/action#shelveOffload")
def test_a_server_that_is_kept_on_its_host_comes_back_in_place(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            booted = await c.active()
            server_id, was = booted["id"], await disk(c, booted["id"])
            kept = await moved(c, server_id, "shelve", None, as_="member")
            assert (kept["status"], kept[HOST], kept[POWER]) == ("SHELVED", booted[HOST], 4)
            assert (await c.guests())[server_id] == (booted[HOST], "shutdown")
            assert await holdings(c, server_id) == {"allocations": 3, "ports": 1, "guests": 1}
            assert len(await snapshots(c)) == 1

            back = await moved(c, server_id, "unshelve", None, as_="member")
            assert (back["status"], back[HOST], back[POWER]) == ("ACTIVE", booted[HOST], 1)
            assert back[LAUNCHED] == booted[LAUNCHED]
            assert await disk(c, server_id) == was
            await dropped(c)

            await moved(c, server_id, "shelve", None, as_="member")
            off = await moved(c, server_id, "shelveOffload", None, as_="project-admin")
            assert (off["status"], off[HOST], off[POWER]) == ("SHELVED_OFFLOADED", None, 0)
            assert await holdings(c, server_id) == {**NOTHING, "ports": 1}
            assert (await moved(c, server_id, "unshelve", None))["status"] == "ACTIVE"
            assert await disk(c, server_id) == was

    run(scenario())


def test_what_is_seen_meanwhile(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            server_id = (await c.active())["id"]
            with rules(c) as sim:

                async def seen(action: str, step: str, status: str, task: str, **options: Any) -> dict[str, Any]:
                    sim.add_failure("*", step, "hang", None, None)
                    assert (await act(c, server_id, action, **options)).status == 202
                    await until(c, server_id, status=status, OS_EXT_STS__task_state=task)
                    for other in ("shelve", "shelveOffload", "unshelve", "os-stop"):
                        assert (await refused(c, server_id, other, None))[0] == 409
                    sim.clear()
                    return await c.settled(server_id)

                assert (await seen("shelve", "power_off", "ACTIVE", "shelving"))["status"] == "SHELVED"
                assert (await seen("unshelve", "power_on", "SHELVED", "unshelving"))["status"] == "ACTIVE"
                uploading = "shelving_image_uploading"
                assert (await seen("shelve", "snapshot", "ACTIVE", uploading))["status"] == "SHELVED"
                leaving = "shelving_offloading"
                shown = await seen("shelveOffload", "destroy", "SHELVED", leaving, as_="admin")
                assert shown["status"] == "SHELVED_OFFLOADED"
                assert (await seen("unshelve", "spawn", "SHELVED_OFFLOADED", "spawning"))["status"] == "ACTIVE"

    run(scenario())


def test_what_the_state_does_not_allow_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            server_id = (await c.active())["id"]

            async def refuses(state: str, *names: str) -> None:
                for action in names:
                    body = {"type": "HARD"} if action == "reboot" else None
                    code, message = await refused(c, server_id, action, body)
                    assert (code, message.endswith(f"while it is in vm_state {state}")) == (409, True), message

            await refuses("active", "shelveOffload", "unshelve")
            await moved(c, server_id, "shelve", None)
            await refuses("shelved", "shelve", "os-start", "os-stop", "reboot")
            await moved(c, server_id, "shelveOffload", None)
            await refuses("shelved_offloaded", "shelve", "shelveOffload", "os-start", "os-stop", "reboot")
            missing = "11111111-1111-1111-1111-111111111111"
            for action in ("shelve", "shelveOffload", "unshelve"):
                assert (await refused(c, missing, action, None))[0] == 404

    run(scenario())


def test_who_may(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            server_id = (await c.active())["id"]
            for action in ("shelve", "shelveOffload", "unshelve"):
                assert (await refused(c, server_id, action, None, as_="reader"))[0] == 403
                assert (await refused(c, server_id, action, None, as_="other"))[0] == 404
            await moved(c, server_id, "shelve", None, as_="member")
            for who in ("member", "manager"):
                assert (await refused(c, server_id, "shelveOffload", None, as_=who))[0] == 403

    run(scenario())


def test_a_locked_server_is_for_administrators(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            server_id = (await c.active())["id"]
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET locked = TRUE WHERE id = $1", server_id)
            locked = (409, f"Instance {server_id} is locked")
            assert await refused(c, server_id, "shelve", None, as_="member") == locked
            await moved(c, server_id, "shelve", None)
            assert await refused(c, server_id, "unshelve", None, as_="member") == locked
            assert (await moved(c, server_id, "unshelve", None))["status"] == "ACTIVE"

    run(scenario())


def test_bodies_of_old_and_new_versions(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, zones=("az1",)) as c:
            server_id = (await c.active())["id"]
            # Clients send null, and tempest {}.
            assert (await moved(c, server_id, "shelve", {}, version="2.1"))["status"] == "SHELVED_OFFLOADED"
            zone, host, unpin = {"availability_zone": "az1"}, {"host": "sim-001"}, {"availability_zone": None}
            wrong: dict[str, list[Any]] = {
                "2.1": [{}, zone, host, "az1"],
                "2.76": [{}, zone, host, unpin],
                "2.77": [{}, host, {**zone, **host}, unpin, {"availability_zone": ""}, "az1", []],
                "2.90": [{}, host, {**zone, **host}, unpin],
                "2.91": [{}, {"zone": "az1"}, {**zone, "more": 1}, {"host": None}, {"host": ""}, {"host": 1}, [], True],
                "2.106": [{}, {"host": None}, {"host": "not a name"}, {"availability_zone": 1}],
            }
            for version, bodies in wrong.items():
                for body in bodies:
                    code, _ = await refused(c, server_id, "unshelve", body, version=version)
                    assert code == 400, (version, body)
            right: dict[str, list[Any]] = {
                "2.1": [None],
                "2.76": [None],
                "2.77": [None, zone],
                "2.91": [None, zone, host, unpin],
            }
            for version, good in right.items():
                for body in good:
                    assert (await moved(c, server_id, "unshelve", body, version=version))["status"] == "ACTIVE"
                    await moved(c, server_id, "shelve", None, version=version)

    run(scenario())


def test_everything_can_be_tried_without_being_done(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, zones=("az1", "az2"), **KEPT) as c:
            server_id = (await c.active())["id"]

            async def tried(action: str, body: Any = None) -> dict[str, Any]:
                before = await tables(c.db)
                answer = await act(c, server_id, action, body, as_="admin", version="2.91", headers=DRY)
                assert answer.status == 200, answer.body
                assert await tables(c.db) == before
                plan: dict[str, Any] = answer.json()["plan"]
                return plan

            assert (await tried("shelve"))["plans"] == []
            assert (await refused(c, server_id, "unshelve", None, headers=DRY))[0] == 409
            await moved(c, server_id, "shelve", None)
            assert (await tried("shelveOffload"))["plans"] == []
            assert (await tried("unshelve"))["plans"] == []
            await moved(c, server_id, "shelveOffload", None)
            (plan,) = (await tried("unshelve", {"availability_zone": "az2"}))["plans"]
            assert plan["message"] == "1 of 3 hosts fits: 2 not in zone az2"
            (plan,) = (await tried("unshelve", {"host": "sim-003"}))["plans"]
            assert plan["chosen"]["host"] == "sim-003"
            assert (await refused(c, server_id, "unshelve", {"host": "nobody"}, headers=DRY))[0] == 400

    run(scenario())


# What goes wrong


@pytest.mark.parametrize("step", ["power_off", "snapshot"])
def test_a_server_that_cannot_be_shelved_goes_on_running(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await c.active())["id"]
            before, was = await everything(c, server_id), await disk(c, server_id)
            with rules(c) as sim:
                sim.add_failure("*", step, "error", 1, "the disk is on fire")
            shown = await moved(c, server_id, "shelve", None, as_="member")
            assert (shown["status"], shown[POWER]) == ("ACTIVE", 1)
            name = {"power_off": "stop guest"}.get(step, step)
            assert shown["fault"]["message"] == f"The host could not {name}: refused by the hypervisor"
            assert (await everything(c, server_id), await disk(c, server_id)) == (before, was)
            assert await snapshots(c, "admin") == []
            action = await newest_action(c, server_id)
            assert (action["action"], action["message"]) == ("shelve", "Error")
            shown = await moved(c, server_id, "shelve", None)
            assert (shown["status"], "fault" in shown) == ("SHELVED_OFFLOADED", False)

    run(scenario())


def test_a_server_that_nobody_can_build_stays_shelved(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server_id = (await shelved(c))["id"]
            before = await everything(c, server_id)
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", None, "the disk is on fire")
                shown = await moved(c, server_id, "unshelve", None, as_="member")
                assert shown["status"] == "SHELVED_OFFLOADED"
                assert "Tried before: 2 refused by the hypervisor" in shown["fault"]["message"]
                assert await everything(c, server_id) == before
                assert len(await snapshots(c)) == 1
                assert (await newest_action(c, server_id))["message"] == "Error"
                sim.clear()
                sim.add_failure("*", "spawn", "error", 1, "the disk is on fire")
            assert (await moved(c, server_id, "unshelve", None))["status"] == "ACTIVE", "by another host"
            await dropped(c)

    run(scenario())


def test_a_snapshot_that_the_project_has_deleted_is_missed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await shelved(c))["id"]
            before = await everything(c, server_id)
            (image,) = await snapshots(c)
            assert (await c.delete(f"/images/{image['id']}", root="/image/v2")).status == 204
            shown = await moved(c, server_id, "unshelve", None)
            message = f"The snapshot of the server, image {image['id']}, could not be found."
            assert (shown["status"], shown["fault"]["message"]) == ("SHELVED_OFFLOADED", message)
            assert await everything(c, server_id) == before
            assert (await c.delete(f"/servers/{server_id}")).status == 204
            await c.gone(server_id)

    run(scenario())


def test_a_snapshot_that_its_owner_protects_is_kept(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await shelved(c))["id"]
            (image,) = await snapshots(c)
            change = [{"op": "replace", "path": "/protected", "value": True}]
            await c.services.image.patch(image["id"], change, "member")
            assert (await moved(c, server_id, "unshelve", None))["status"] == "ACTIVE"
            await all_done(c)
            assert len(await snapshots(c)) == 1

    run(scenario())


def test_an_image_service_that_is_away_delays_only_the_end_of_the_image(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with whole(database_url) as c:
            server_id = (await shelved(c))["id"]

            async def away(*args: Any) -> None:
                raise Unreachable("nobody there")

            with monkeypatch.context() as patched:
                patched.setattr(c.services.image, "delete", away)
                assert (await moved(c, server_id, "unshelve", None))["status"] == "ACTIVE"
                await asyncio.sleep(0.05)
                assert (len(await snapshots(c)), await unfinished(c)) == (1, ["drop image"])
            await all_done(c)
            assert await snapshots(c, "admin") == []

    run(scenario())


def test_a_guest_that_an_offload_destroyed_in_vain_is_built_again_in_place(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **KEPT) as c:
            booted = await c.active()
            server_id, was = booted["id"], await disk(c, booted["id"])
            await moved(c, server_id, "shelve", None)
            with hypervisors(c) as hosts:
                hosts.remove_guest(booted[HOST], server_id)
            shown = await moved(c, server_id, "unshelve", None)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", booted[HOST])
            assert await disk(c, server_id) == was
            image = guest_on(c, shown[HOST], server_id).image
            assert image is not None
            assert image.properties["image_type"] == "snapshot"

    run(scenario())


# Hosts that do not answer


def test_a_server_whose_host_is_silent_is_not_shelved(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **QUICK) as c:
            server = await c.active()
            before = await everything(c, server["id"])
            await lose(c, server[HOST])
            shown = await moved(c, server["id"], "shelve", None)
            assert shown["status"] == "ACTIVE"
            assert shown["fault"]["message"] == "The host could not stop guest: did not answer for 0.3 s"
            await find_again(c, server[HOST])
            await all_done(c)
            assert await everything(c, server["id"]) == before
            assert await snapshots(c, "admin") == []

    run(scenario())


def test_a_snapshot_that_a_host_falls_silent_over_is_given_up(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **QUICK) as c:
            server = await c.active()
            before = await everything(c, server["id"])
            with rules(c) as sim:
                steps = ("snapshot", "power_on")
                asked = [sim.add_failure(server[HOST], step, "unreachable", None, None) for step in steps]
                async with silent_from(sim, server[HOST], *asked):
                    shown = await moved(c, server["id"], "shelve", None)
                assert shown["status"] == "ACTIVE"
                assert (await unfinished(c), await snapshots(c, "admin")) == (["restore guest"], [])
                sim.clear()
            await all_done(c)
            assert await everything(c, server["id"]) == before, "and its guest runs again"

    run(scenario())


def test_a_server_leaves_a_silent_host_and_comes_back_elsewhere(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK, **WATCHFUL, **KEPT) as c:
            server = await c.active()
            server_id, was = server["id"], await disk(c, server["id"])
            await moved(c, server_id, "shelve", None)
            await lose(c, server[HOST])
            off = await moved(c, server_id, "shelveOffload", None)
            assert (off["status"], off[HOST]) == ("SHELVED_OFFLOADED", None)
            assert await unfinished(c) == ["clear guest"]
            # Even were it up, it has the old guest to remove: nothing new of the server goes there.
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = $1", clock.now())
            c.services.scheduler.built(server[HOST], True)
            answer = await act(
                c, server_id, "unshelve", {"host": server[HOST]}, as_="admin", version="2.91", headers=DRY
            )
            (plan,) = answer.json()["plan"]["plans"]
            assert (plan["placed"], "1 excluded" in plan["message"]) == (False, True)
            back = await moved(c, server_id, "unshelve", None)
            assert (back["status"], back[HOST] != server[HOST]) == ("ACTIVE", True)
            await find_again(c, server[HOST])
            await all_done(c)
            assert await c.guests() == {server_id: (back[HOST], "running")}
            assert await disk(c, server_id) == was

    run(scenario())


def test_a_silent_destination_is_left_for_the_next(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server_id = (await shelved(c))["id"]
            with rules(c) as sim:
                sim.add_failure("sim-001", "*", "unreachable", None, None)
                for _ in range(2):
                    back = await moved(c, server_id, "unshelve", None)
                    assert (back["status"], back[HOST]) == ("ACTIVE", "sim-002")
                    await moved(c, server_id, "shelve", None)
                back = await moved(c, server_id, "unshelve", {"host": "sim-001"})
                assert back["status"] == "SHELVED_OFFLOADED", "a host that was asked for is not replaced by another"
                sim.clear()
            await all_done(c)
            assert await holdings(c, server_id) == {**NOTHING, "ports": 1}

    run(scenario())


def test_a_server_does_not_come_back_in_place_on_a_silent_host(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **QUICK, **KEPT) as c:
            server = await shelved(c, "SHELVED")
            before = await everything(c, server["id"])
            await lose(c, server[HOST])
            shown = await moved(c, server["id"], "unshelve", None)
            assert shown["status"] == "SHELVED"
            await find_again(c, server[HOST])
            await all_done(c)
            assert await everything(c, server["id"]) == before
            assert len(await snapshots(c)) == 1
            assert (await moved(c, server["id"], "unshelve", None))["status"] == "ACTIVE"

    run(scenario())


# Deletes


@pytest.mark.parametrize(
    ("config", "before", "action", "step"),
    [
        (KEPT, [], "shelve", "power_off"),
        (KEPT, [], "shelve", "snapshot"),
        (KEPT, ["shelve"], "shelveOffload", "destroy"),
        (KEPT, ["shelve"], "unshelve", "power_on"),
        ({}, ["shelve"], "unshelve", "spawn"),
        (KEPT, ["shelve"], None, None),
        ({}, ["shelve"], None, None),
    ],
)
def test_a_delete_takes_the_snapshot_along(
    database_url: str, config: dict[str, Any], before: list[str], action: str | None, step: str | None
) -> None:
    async def scenario() -> None:
        async with whole(database_url, **config) as c:
            server_id = (await c.active())["id"]
            for earlier in before:
                await moved(c, server_id, earlier, None)
            with rules(c) as sim:
                if action is not None:
                    sim.add_failure("*", str(step), "hang", None, None)
                    assert (await act(c, server_id, action, as_="admin")).status == 202
                    async with asyncio.timeout(PATIENCE):
                        while not any(rule.fired for rule in sim.all()):
                            await asyncio.sleep(0.01)
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                if step == "destroy":
                    sim.clear()
                await c.gone(server_id)
                sim.clear()
            await all_done(c)
            assert await holdings(c, server_id) == NOTHING
            assert await snapshots(c, "admin") == []

    run(scenario())


# Server groups


def test_a_server_group_is_obeyed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            made = await c.post(
                "/os-server-groups", {"server_group": {"name": "g", "policy": "anti-affinity"}}, version="2.64"
            )
            hints = {"group": made.json()["server_group"]["id"]}
            servers = []
            for name in ("a", "b"):
                server = {"name": name, "flavorRef": "1", "imageRef": c.image_id, "networks": "none"}
                answer = await c.post("/servers", {"server": server, "os:scheduler_hints": hints}, version="2.96")
                servers.append(await c.settled(answer.json()["server"]["id"]))
            first, second = servers
            assert first[HOST] != second[HOST]
            await moved(c, first["id"], "shelve", None)
            shown = await moved(c, first["id"], "unshelve", {"host": second[HOST]})
            assert shown["status"] == "SHELVED_OFFLOADED"
            assert shown["fault"]["message"].startswith("No valid host was found")
            shown = await moved(c, first["id"], "unshelve", None)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", first[HOST])

    run(scenario())
