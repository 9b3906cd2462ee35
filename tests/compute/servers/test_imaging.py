"""Images of servers: what they hold, who may make them when, and what a failure leaves: nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.policy import Policy
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, newest_action, refused
from tests.compute.servers.shelved import disk, snapshots
from tests.compute.servers.support import act, rules, until
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.proves import proves
from tests.support.volumes import (
    IMAGE,
    NEWEST,
    VOLUME,
    boot_from,
    content,
    device,
    filled,
    make_image,
    make_volume,
    volume,
)
from tests.support.whole import PATIENCE, Whole, whole

ROUTE = "POST /servers/{server_id}/action#createImage"
ATTACHED = "os-extended-volumes:volumes_attached"
OLD = b"old" * 1000


async def create_image(c: Whole, server_id: str, version: str = "2.96", **keys: Any) -> str:
    """The new image's id; it is there already, and waits for its data."""
    answer = await act(c, server_id, "createImage", {"name": "copy", **keys}, version=version)
    assert answer.status == 202, answer.body
    if "location" in answer.headers:
        assert answer.body == b""
        image_id = answer.headers["location"].rsplit("/images/", 1)[1]
    else:
        image_id = answer.json()["image_id"]
    assert (await c.get(f"/images/{image_id}", root=IMAGE)).status == 200
    return str(image_id)


async def image(c: Whole, image_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await c.get(f"/images/{image_id}", root=IMAGE)).json()
    return shown


async def volume_snapshots(c: Whole) -> list[dict[str, Any]]:
    listed = await c.get("/snapshots/detail", root=VOLUME, headers=NEWEST)
    found: list[dict[str, Any]] = listed.json()["snapshots"]
    return found


@proves(ROUTE)
def test_the_disk_becomes_an_image_of_the_project(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            base = await make_image(c, OLD, os_distro="plan9", img_signature="x", min_ram=64)
            server = await c.active(imageRef=base, networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "hang", 1, None)
                image_id = await create_image(c, server["id"], metadata={"image_type": "test", "owner": "me", "k": "v"})
                waiting = await image(c, image_id)
                assert waiting["status"] == "queued"
                shown = await until(c, server["id"], OS_EXT_STS__task_state="image_uploading")
                assert shown["status"] == "ACTIVE"
                sim.clear()
            shown = await c.settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            made = await image(c, image_id)
            assert (made["name"], made["status"], made["owner"], made["visibility"]) == (
                *("copy", "active", DEMO, "private"),
            )
            assert (made["image_type"], made["k"], made["os_distro"], made["min_ram"]) == ("test", "v", "plan9", 64)
            assert (made["base_image_ref"], made["instance_uuid"]) == (base, server["id"])
            assert "img_signature" not in made
            action = await newest_action(c, server["id"], as_="member")
            assert (action["action"], [one["event"] for one in action["events"]]) == (
                *("createImage", ["make image", "snapshot"]),
            )
            again = await c.active(imageRef=image_id, networks="none")
            assert again["image"]["id"] == image_id

    run(scenario())


def test_the_answer_and_the_limit_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, quota__metadata_items=2) as c:
            server_id = (await c.active(networks="none"))["id"]
            for version, header in (("2.1", True), ("2.44", True), ("2.45", False), ("2.106", False)):
                answer = await act(c, server_id, "createImage", {"name": "copy"}, version=version)
                assert (answer.status, "location" in answer.headers, bool(answer.body)) == (202, header, not header)
                await c.settled(server_id)
            many = {str(number): "x" for number in range(3)}
            body = {"name": "x", "metadata": many}
            assert (await refused(c, server_id, "createImage", body, version="2.38"))[0] == 403
            await create_image(c, server_id, "2.39", metadata=many)

    run(scenario())


def test_what_is_refused_begins_nothing(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active(networks="none")

            async def status(body: Any, **options: Any) -> int:
                return (await refused(c, server["id"], "createImage", body, **{"as_": "member", **options}))[0]

            for body in ({}, {"name": ""}, {"name": "a" * 256}, {"name": "x", "rotation": 1}, None):
                assert await status(body) == 400, body
            for metadata in ({"": ""}, {"a" * 256: "b"}, {"a": "b" * 256}, {"a": 1}):
                assert await status({"name": "x", "metadata": metadata}) == 400, metadata
            assert await status({"name": "x"}, as_="reader") == 403
            assert await status({"name": "x"}, as_="other") == 404
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "hang", 1, None)
                await create_image(c, server["id"])
                assert await status({"name": "second"}) == 409, "one at a time"
                sim.clear()
            await c.settled(server["id"])
            answer = await act(c, server["id"], "createImage", {"name": "dry"}, headers=DRY)
            assert answer.status == 200
            await act(c, server["id"], "os-stop")
            await c.settled(server["id"])
            await create_image(c, server["id"])
            assert (await c.settled(server["id"]))["status"] == "SHUTOFF"
            await act(c, server["id"], "shelve", None)
            assert (await c.settled(server["id"]))["status"] == "SHELVED_OFFLOADED"
            assert await status({"name": "x"}) == 409

    run(scenario())


def test_a_host_that_cannot(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active(networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "error", 1, None)
            before = await disk(c, server["id"])
            answer = await act(c, server["id"], "createImage", {"name": "copy"})
            assert answer.status == 202
            shown = await c.settled(server["id"])
            assert (shown["status"], "could not snapshot" in shown["fault"]["message"]) == ("ACTIVE", True)
            assert (await snapshots(c), await disk(c, server["id"])) == ([], before)

    run(scenario())


def test_an_image_that_is_deleted_before_it_is_there(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await c.active(networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "hang", 1, None)
                image_id = await create_image(c, server["id"])
                await until(c, server["id"], OS_EXT_STS__task_state="image_uploading")
                assert (await c.delete(f"/images/{image_id}", root=IMAGE)).status == 204
                sim.clear()
            assert (await c.settled(server["id"]))["status"] == "ACTIVE"
            assert (await c.get(f"/images/{image_id}", root=IMAGE)).status == 404

    run(scenario())


@proves(ROUTE)
def test_volumes_become_snapshots_that_new_servers_are_made_of(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            base = await make_image(c, OLD, os_distro="plan9")
            first = device("image", base, volume_size=1, delete_on_termination=True)
            server = await boot_from(c, first, device("blank", None, volume_size=2), networks="none")
            image_id = await create_image(c, server["id"], metadata={"k": "v"})
            shown = await c.settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            made = await image(c, image_id)
            assert (made["status"], made["size"], made["owner"], made["k"]) == ("active", 0, DEMO, "v")
            assert (made["bdm_v2"], made["root_device_name"], made["os_distro"]) == ("True", "/dev/vda", "plan9")
            mapping = orjson.loads(made["block_device_mapping"])
            found = {one["id"]: one for one in await volume_snapshots(c)}
            assert [found[one["snapshot_id"]]["volume_id"] for one in mapping] == [
                one["id"] for one in server[ATTACHED]
            ]
            assert {one["name"] for one in found.values()} == {"snapshot for copy"}
            assert [
                (one["source_type"], one["destination_type"], one["boot_index"], one["volume_size"]) for one in mapping
            ] == [("snapshot", "volume", 0, 1), ("snapshot", "volume", None, 2)]

            again = await c.active(imageRef=image_id, networks="none")
            volumes = [one["id"] for one in again[ATTACHED]]
            assert (again["image"], len(volumes)) == ("", 2)
            assert (await volume(c, volumes[0]))["snapshot_id"] == mapping[0]["snapshot_id"]
            assert await content(c, volumes[0]) == filled(OLD)

    run(scenario())


@pytest.mark.parametrize("limit", [0, 1])
def test_no_room_for_the_snapshots(sqlite_url: str, limit: int) -> None:
    """Of two volumes none or one can have a snapshot: none is left, nor an image."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, volume_quota__snapshots=limit) as c:
            data = await make_volume(c)
            server = await boot_from(
                c, device("image", c.image_id, volume_size=1), device("volume", data), networks="none"
            )
            await act(c, server["id"], "createImage", {"name": "copy"})
            shown = await c.settled(server["id"])
            assert (shown["status"], "uota" in shown["fault"]["message"]) == ("ACTIVE", True), shown["fault"]
            async with asyncio.timeout(PATIENCE):
                while await volume_snapshots(c):
                    await asyncio.sleep(0.01)
            assert await snapshots(c) == []

    run(scenario())


def test_who_may_make_images_of_volumes(sqlite_url: str, tmp_path: Any) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server = await boot_from(c, device("image", c.image_id, volume_size=1), networks="none")
            other = await c.active(networks="none")
            file = tmp_path / "policy.yaml"
            file.write_text('"os_compute_api:servers:create_image:allow_volume_backed": "role:admin"\n')
            c.services.policy = Policy(file)
            assert (await refused(c, server["id"], "createImage", {"name": "x"}, as_="member"))[0] == 403
            await create_image(c, other["id"])

    run(scenario())
