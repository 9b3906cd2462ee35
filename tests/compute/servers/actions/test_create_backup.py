"""createBackup: rotation of backups, failures, and refused requests."""

from __future__ import annotations

from typing import Any

from tests.compute.operations.support import finish_operations
from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, rules
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import IMAGE, block_device, boot_from

ROUTE = "POST /servers/{server_id}/action#createBackup"


async def create_backup(
    c: FullCloud, server_id: str, name: str, rotation: Any, kind: str = "daily", **keys: Any
) -> Any:
    version = keys.pop("version", "2.96")
    body = {"name": name, "backup_type": kind, "rotation": rotation, **keys}
    answer = await act(c, server_id, "createBackup", body, version=version)
    assert answer.status == 202, answer.body
    await finish_operations(c)
    return answer


async def list_backups(c: FullCloud) -> list[str]:
    listed = (await c.get("/images?image_type=backup&sort=name:asc", root=IMAGE)).json()["images"]
    return [image["name"] for image in listed]


async def make_images_older(c: FullCloud) -> None:
    """Let the next image have a later `created_at`, which counts whole seconds."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE images SET created_at = created_at - 10")


@proves(ROUTE)
def test_backup_rotation_keeps_the_newest_of_each_type(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            other = (await c.boot_active(networks="none"))["id"]
            await create_backup(c, other, "of another", 1)
            for number, rotation in ((1, 2), (2, 2), (3, "2")):
                answer = await create_backup(
                    c, server_id, f"day {number}", rotation, metadata={"k": "v", "image_type": "x"}
                )
                await make_images_older(c)
            made = (await c.get(f"/images/{answer.json()['image_id']}", root=IMAGE)).json()
            properties = ("status", "image_type", "backup_type", "instance_uuid", "k")
            assert [made[key] for key in properties] == ["active", "backup", "daily", server_id, "v"]
            assert await list_backups(c) == ["day 2", "day 3", "of another"]
            await create_backup(c, server_id, "week 1", 1, "weekly")
            assert await list_backups(c) == ["day 2", "day 3", "of another", "week 1"]
            assert (await newest_action(c, server_id))["action"] == "createBackup"
            await make_images_older(c)
            old = await create_backup(c, server_id, "day 4", 1, version="2.44")
            assert (old.body, "/image/v2/images/" in old.headers["location"]) == (b"", True)
            assert await list_backups(c) == ["day 4", "of another", "week 1"]
            no_image = await create_backup(c, server_id, "nothing", 0)
            assert (no_image.body, "location" in no_image.headers) == (b"", False)
            assert await list_backups(c) == ["of another", "week 1"]

    run(scenario())


def test_failed_backup_deletes_no_older_one(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            await create_backup(c, server_id, "old", 1)
            with rules(c) as sim:
                sim.add_failure("*", "snapshot", "error", 1, "no")
            await create_backup(c, server_id, "new", 1)
            assert await list_backups(c) == ["old"]
            assert "fault" in await c.show(server_id)

    run(scenario())


def test_create_backup_refuses_bad_requests(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            good = {"name": "b", "backup_type": "daily", "rotation": 1}
            for change in (
                {"name": ""},
                {"rotation": -1},
                {"rotation": "x"},
                {"rotation": "9" * 5000},
                {"rotation": "-1"},
                {"rotation": None},
                {"backup_type": 1},
                {"metadata": {"k": 1}},
                {"more": 1},
            ):
                assert fault(await act(c, server_id, "createBackup", {**good, **change}))[0] == 400, change
            for missing in good:
                body = {key: value for key, value in good.items() if key != missing}
                assert fault(await act(c, server_id, "createBackup", body))[0] == 400, missing
            assert fault(await act(c, server_id, "createBackup", good, as_="reader"))[0] == 403
            from_volume = await boot_from(c, block_device("image", c.image_id, volume_size=1))
            status, _, message = fault(await act(c, from_volume["id"], "createBackup", good))
            assert (status, message) == (400, "Backup is not supported for volume-backed instances.")

    run(scenario())
