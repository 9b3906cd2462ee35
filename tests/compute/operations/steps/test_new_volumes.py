"""Steps for the volumes of a new server: repeated and failed creation, undo, and deletion with the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.steps import new_volumes
from kilonova.compute.operations.steps.new_volumes import CreatedVolumes
from kilonova.ids import new_id
from kilonova.operations import Failed, Operation
from kilonova.volume.operations import content
from tests.compute.block_devices.support import create_snapshot
from tests.compute.block_devices.test_requests import ATTACHED, booted, deleted, to_volume
from tests.compute.operations.steps.support import begin_leased_boot
from tests.compute.operations.volume_worlds import device_of
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.volumes import make_volume, show_volume, wait_for_volume


async def begin_boot(c: FullCloud, *existing: str, blank: int = 1) -> Operation:
    """The boot of a server with existing and blank volumes."""
    op = await begin_leased_boot(c)
    server_id = str(op.server_id)
    requested = [device_of(server_id, volume_id, root=False) for volume_id in existing]
    for _ in range(blank):
        requested.append(
            BlockDevice(
                uuid=new_id(),
                server_id=server_id,
                source_type="blank",
                destination_type="volume",
                volume_size=2,
                delete_on_termination=True,
                multiattach=False,
                created_at=clock.now(),
            )
        )
    async with c.db.transaction() as tx:
        await devices.insert(tx, requested)
    return op


async def volume_ids(c: FullCloud, op: Operation) -> list[str | None]:
    return [device.volume_id for device in await devices.of_server(c.db, str(op.server_id))]


async def forget_volumes(c: FullCloud, op: Operation) -> None:
    """As if the worker had died before it stored the ids of the volumes."""
    async with c.db.transaction() as tx:
        for device in await devices.of_server(tx, str(op.server_id)):
            await devices.set_volume(tx, device.uuid, None)
            await devices.set_attachment(tx, device.uuid, None)


async def count_volumes(c: FullCloud) -> int:
    count: int = await c.db.fetch_value("SELECT COUNT(*) FROM volumes")
    return count


def test_repeated_create_finds_volume_of_its_device(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op, other = await begin_boot(c, blank=2), await begin_boot(c)
            assert await new_volumes.create(other) == CreatedVolumes(2)
            assert await new_volumes.create(op) == CreatedVolumes(4)
            created = await volume_ids(c, op)
            assert len({*created, *await volume_ids(c, other)}) == 3
            await forget_volumes(c, op)
            await new_volumes.create(op)
            assert await volume_ids(c, op) == created
            assert await count_volumes(c) == 3

    run(scenario())


def test_repeated_create_finds_volume_without_metadata_filter(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume service that ignores the filter returns the volumes of other devices too."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            listed = c.services.volume.volumes

            async def unfiltered(auth: Any, query: dict[str, str]) -> Any:
                return await listed(auth, {key: value for key, value in query.items() if key != "metadata"})

            monkeypatch.setattr(c.services.volume, "volumes", unfiltered)
            op, other = await begin_boot(c), await begin_boot(c)
            for each in (other, op):
                await new_volumes.create(each)
            created = await volume_ids(c, op)
            assert created != await volume_ids(c, other)
            await forget_volumes(c, op)
            await new_volumes.create(op)
            assert await volume_ids(c, op) == created

    run(scenario())


def test_volume_being_deleted_is_not_reused(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_boot(c)
            await new_volumes.create(op)
            (first,) = await volume_ids(c, op)
            await forget_volumes(c, op)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE volumes SET status = 'deleting' WHERE id = $1", first)
            await new_volumes.create(op)
            (second,) = await volume_ids(c, op)
            assert second != first

    run(scenario())


def test_undo_deletes_created_and_keeps_existing_volumes(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            existing = await make_volume(c)
            op = await begin_boot(c, existing)
            assert await new_volumes.create(op) == CreatedVolumes(2)
            assert (await show_volume(c, existing))["status"] == "reserved"
            assert await new_volumes.are_ready(op) is True
            for _ in range(2):
                await new_volumes.delete_created(op)
                assert await volume_ids(c, op) == [existing, None]
            await wait_for_volume(c, existing, "available")
            async with asyncio.timeout(60):
                while await count_volumes(c) > 1:
                    await asyncio.sleep(0.005)

    run(scenario())


@pytest.mark.parametrize("status", ["error", "gone"])
def test_volume_that_was_not_created_fails_the_step(database_url: str, status: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            op = await begin_boot(c)
            await new_volumes.create(op)
            (device,) = await devices.of_server(c.db, str(op.server_id))
            volume_id = new_id() if status == "gone" else device.volume_id
            async with c.db.transaction() as tx:
                await devices.set_volume(tx, device.uuid, volume_id)
                await devices.set_attachment(tx, device.uuid, None)
                await tx.execute("UPDATE volumes SET status = 'error' WHERE id = $1", volume_id)
            message = f"Volume {volume_id} did not finish being created: its status is {status}."
            with pytest.raises(Failed, match=message):
                await new_volumes.are_ready(op)

    run(scenario())


def test_server_without_volumes_creates_none(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            op = await begin_boot(c, blank=0)
            assert await new_volumes.create(op) is None
            assert await new_volumes.are_ready(op) is True

    run(scenario())


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Image data of volumes is not written until this event is set."""
    gate, write = asyncio.Event(), content.write

    async def slowly(*args: Any) -> Any:
        await gate.wait()
        return await write(*args)

    monkeypatch.setattr(content, "write", slowly)
    return gate


def test_failed_volume_creation_fails_the_boot(sqlite_url: str) -> None:
    """The fault has the volume service's reason, and no volume remains."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, volume_quota__volumes=1) as c:
            root = to_volume("image", c.image_id, boot_index=0, volume_size=1)
            made = await c.boot(imageRef="", block_device_mapping_v2=[root, to_volume("blank", volume_size=1)])
            shown = await c.wait_until_settled(made["id"])
            assert shown["status"] == "ERROR"
            assert "uota" in shown["fault"]["message"], shown["fault"]
            assert shown[ATTACHED] == []
            await deleted(c, shown)

    run(scenario())


def test_boot_waits_for_slow_volume_creation(sqlite_url: str, slow_copies: asyncio.Event) -> None:
    """Other operations continue, and the server can be deleted during the wait."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root = to_volume("image", c.image_id, boot_index=0, volume_size=1)
            made = [await c.boot(imageRef="", block_device_mapping_v2=[root]) for _ in range(2)]
            waiting = "SELECT COUNT(*) FROM operations WHERE kind = 'boot' AND state = 'waiting'"
            while await c.db.fetch_value(waiting) < 2:
                await asyncio.sleep(0.01)
            assert (await c.show(made[0]["id"]))["OS-EXT-STS:task_state"] == "block_device_mapping"
            await deleted(c, made[0])
            slow_copies.set()
            shown = await c.wait_until_settled(made[1]["id"])
            assert (shown["status"], len(shown[ATTACHED])) == ("ACTIVE", 1)
            while await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
                await asyncio.sleep(0.01)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 1
            assert len(list((Path(c.services.config.data) / "volumes").glob("*.*"))) == 1

    run(scenario())


def test_volume_that_cannot_be_deleted_does_not_block_server_deletion(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            root = to_volume("image", c.image_id, boot_index=0, volume_size=1, delete_on_termination=True)
            shown = await booted(c, root)
            (attached,) = shown[ATTACHED]
            await create_snapshot(c, attached["id"])
            await deleted(c, shown)
            assert (await wait_for_volume(c, attached["id"], "available"))["attachments"] == []

    run(scenario())
