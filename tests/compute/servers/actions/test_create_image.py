"""createImage: the content of the image, volume-backed servers, refusals, and cleanup after failures."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.policy import Policy
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, action_refusal, newest_action
from tests.compute.servers.shelved import guest_disk, list_snapshots
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import (
    IMAGE,
    NEWEST_VERSION,
    VOLUME,
    block_device,
    boot_from,
    expected_checksum,
    make_image,
    make_volume,
    show_volume,
    volume_checksum,
)

ROUTE = "POST /servers/{server_id}/action#createImage"
ATTACHED = "os-extended-volumes:volumes_attached"
CONTENT = b"old" * 1000


async def create_image(c: FullCloud, server_id: str, version: str = "2.96", **keys: Any) -> str:
    """The id of the new image, which exists already but may have no data yet."""
    answer = await act(c, server_id, "createImage", {"name": "copy", **keys}, version=version)
    assert answer.status == 202, answer.body
    if "location" in answer.headers:
        assert answer.body == b""
        base, image_id = answer.headers["location"].rsplit("/images/", 1)
        assert base == f"http://localhost{IMAGE}"
    else:
        image_id = answer.json()["image_id"]
    assert (await c.get(f"/images/{image_id}", root=IMAGE)).status == 200
    return str(image_id)


async def show_image(c: FullCloud, image_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await c.get(f"/images/{image_id}", root=IMAGE)).json()
    return shown


async def list_volume_snapshots(c: FullCloud) -> list[dict[str, Any]]:
    listed = await c.get("/snapshots/detail", root=VOLUME, headers=NEWEST_VERSION)
    found: list[dict[str, Any]] = listed.json()["snapshots"]
    return found


@proves(ROUTE)
def test_create_image_uploads_the_disk_as_image_of_the_project(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            base = await make_image(c, CONTENT, os_distro="plan9", img_signature="x", min_ram=64)
            server = await c.boot_active(imageRef=base, networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "hang", 1, None)
                image_id = await create_image(c, server["id"], metadata={"image_type": "test", "owner": "me", "k": "v"})
                queued_image = await show_image(c, image_id)
                assert queued_image["status"] == "queued"
                shown = await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="image_uploading")
                assert shown["status"] == "ACTIVE"
                sim.clear()
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            created = await show_image(c, image_id)
            assert (created["name"], created["status"], created["owner"], created["visibility"]) == (
                *("copy", "active", DEMO, "private"),
            )
            assert (created["image_type"], created["k"], created["os_distro"], created["min_ram"]) == (
                "test",
                "v",
                "plan9",
                64,
            )
            assert (created["base_image_ref"], created["instance_uuid"]) == (base, server["id"])
            assert "img_signature" not in created
            action = await newest_action(c, server["id"], as_="member")
            assert (action["action"], [entry["event"] for entry in action["events"]]) == (
                *("createImage", ["make image", "snapshot"]),
            )
            second_server = await c.boot_active(imageRef=image_id, networks="none")
            assert second_server["image"]["id"] == image_id

    run(scenario())


def test_create_image_response_and_metadata_quota_by_version(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, quota__metadata_items=2) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            for version, header in (("2.1", True), ("2.44", True), ("2.45", False), ("2.106", False)):
                answer = await act(c, server_id, "createImage", {"name": "copy"}, version=version)
                assert (answer.status, "location" in answer.headers, bool(answer.body)) == (202, header, not header)
                if header:
                    path = answer.headers["location"].removeprefix("http://localhost")
                    assert (await c.get(path, root="")).json()["name"] == "copy"
                await c.wait_until_settled(server_id)
            many = {str(number): "x" for number in range(3)}
            body = {"name": "x", "metadata": many}
            assert (await action_refusal(c, server_id, "createImage", body, version="2.38"))[0] == 403
            await create_image(c, server_id, "2.39", metadata=many)

    run(scenario())


def test_create_image_refusals_begin_no_operation(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active(networks="none")

            async def status(body: Any, **options: Any) -> int:
                return (await action_refusal(c, server["id"], "createImage", body, **{"as_": "member", **options}))[0]

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
            await c.wait_until_settled(server["id"])
            answer = await act(c, server["id"], "createImage", {"name": "dry"}, headers=DRY)
            assert answer.status == 200
            await act(c, server["id"], "os-stop")
            await c.wait_until_settled(server["id"])
            await create_image(c, server["id"])
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHUTOFF"
            await act(c, server["id"], "shelve", None)
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHELVED_OFFLOADED"
            assert await status({"name": "x"}) == 409

    run(scenario())


def test_failed_snapshot_deletes_the_image(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active(networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "error", 1, None)
            before = await guest_disk(c, server["id"])
            answer = await act(c, server["id"], "createImage", {"name": "copy"})
            assert answer.status == 202
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "could not snapshot" in shown["fault"]["message"]) == ("ACTIVE", True)
            assert (await list_snapshots(c), await guest_disk(c, server["id"])) == ([], before)

    run(scenario())


def test_create_image_ends_if_the_image_is_deleted_meanwhile(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await c.boot_active(networks="none")
            with rules(c) as sim:
                sim.add_failure(server[HOST], "snapshot", "hang", 1, None)
                image_id = await create_image(c, server["id"])
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="image_uploading")
                assert (await c.delete(f"/images/{image_id}", root=IMAGE)).status == 204
                sim.clear()
            assert (await c.wait_until_settled(server["id"]))["status"] == "ACTIVE"
            assert (await c.get(f"/images/{image_id}", root=IMAGE)).status == 404

    run(scenario())


@proves(ROUTE)
def test_create_image_of_volume_backed_server_makes_bootable_snapshots(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            base = await make_image(c, CONTENT, os_distro="plan9")
            first = block_device("image", base, volume_size=1, delete_on_termination=True)
            server = await boot_from(c, first, block_device("blank", None, volume_size=2), networks="none")
            image_id = await create_image(c, server["id"], metadata={"k": "v"})
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            created = await show_image(c, image_id)
            assert (created["status"], created["size"], created["owner"], created["k"]) == ("active", 0, DEMO, "v")
            assert (created["bdm_v2"], created["root_device_name"], created["os_distro"]) == (
                "True",
                "/dev/vda",
                "plan9",
            )
            mapping = orjson.loads(created["block_device_mapping"])
            found = {entry["id"]: entry for entry in await list_volume_snapshots(c)}
            assert [found[entry["snapshot_id"]]["volume_id"] for entry in mapping] == [
                entry["id"] for entry in server[ATTACHED]
            ]
            assert {entry["name"] for entry in found.values()} == {"snapshot for copy"}
            assert [
                (entry["source_type"], entry["destination_type"], entry["boot_index"], entry["volume_size"])
                for entry in mapping
            ] == [("snapshot", "volume", 0, 1), ("snapshot", "volume", None, 2)]

            second_server = await c.boot_active(imageRef=image_id, networks="none")
            volumes = [entry["id"] for entry in second_server[ATTACHED]]
            assert (second_server["image"], len(volumes)) == ("", 2)
            assert (await show_volume(c, volumes[0]))["snapshot_id"] == mapping[0]["snapshot_id"]
            assert await volume_checksum(c, volumes[0]) == expected_checksum(CONTENT)

    run(scenario())


@pytest.mark.parametrize("limit", [0, 1])
def test_snapshot_quota_failure_deletes_snapshots_and_image(sqlite_url: str, limit: int) -> None:
    """The quota allows no snapshot, or one of the two."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, volume_quota__snapshots=limit) as c:
            data = await make_volume(c)
            server = await boot_from(
                c, block_device("image", c.image_id, volume_size=1), block_device("volume", data), networks="none"
            )
            await act(c, server["id"], "createImage", {"name": "copy"})
            shown = await c.wait_until_settled(server["id"])
            assert (shown["status"], "uota" in shown["fault"]["message"]) == ("ACTIVE", True), shown["fault"]
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await list_volume_snapshots(c):
                    await asyncio.sleep(0.01)
            assert await list_snapshots(c) == []

    run(scenario())


def test_create_image_volume_backed_policy(sqlite_url: str, tmp_path: Any) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server = await boot_from(c, block_device("image", c.image_id, volume_size=1), networks="none")
            other = await c.boot_active(networks="none")
            file = tmp_path / "policy.yaml"
            file.write_text('"os_compute_api:servers:create_image:allow_volume_backed": "role:admin"\n')
            c.services.policy = Policy(file)
            assert (await action_refusal(c, server["id"], "createImage", {"name": "x"}, as_="member"))[0] == 403
            await create_image(c, other["id"])

    run(scenario())


@pytest.mark.parametrize("action", ["createImage", "createBackup", "shelve"])
@pytest.mark.parametrize("resource", ["image_count_total", "image_size_total"])
def test_snapshots_need_quota_for_images(database_url: str, action: str, resource: str) -> None:
    bodies = {
        "createImage": {"name": "copy"},
        "createBackup": {"name": "copy", "backup_type": "daily", "rotation": 2},
        "shelve": None,
    }

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1, **{f"image_quota__{resource}": 0}) as c:
            server = await c.boot_active()
            answer = await act(c, server["id"], action, bodies[action], version="2.96")
            assert answer.status == 202, answer.body
            shown = await c.wait_until_settled(server["id"])
            assert shown["status"] == "ACTIVE"
            if resource == "image_count_total":
                expected = "Quota exceeded for image_count_total"
            else:
                expected = "the image service does not store the data, because it exceeds a quota or limit"
            assert expected in shown["fault"]["message"]
            assert await list_snapshots(c) == []
            assert (await c.guests())[server["id"]] == (server[HOST], "running")

    run(scenario())
