"""Rebuild of volume-backed servers: failures, and the state afterwards.

See docs/specs/volume-rebuild.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kilonova.compute.operations.reimage import CONNECT as CONNECT_VOLUME
from kilonova.compute.operations.reimage import Reimage, reimage_seconds
from kilonova.config import load
from kilonova.http.client import ClientResponse
from kilonova.operations.definition import deadline_seconds
from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, rules
from tests.specs.test_volume_rebuild import BELOW, FIRST, NEW, OLD, OTHER, SAME, RebuildCase, write_to
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.volumes import (
    InterceptedVolumeService,
    attachments,
    block_device,
    boot_from,
    drop_volume_events,
    expected_checksum,
    make_image,
    volume_action,
    volume_checksum,
    wait_for_volume,
)


def answering(status: int) -> Any:
    """A hook that responds with this status to reimage requests."""

    async def hook(method: str, path: str, body: Any) -> ClientResponse | None:
        if method != "POST" or "os-reimage" not in body:
            return None
        return ClientResponse(status, {}, orjson.dumps({"oh": {"code": status, "message": "not today"}}))

    return hook


@pytest.mark.parametrize("status", [400, 403, 409, 500, 503])
def test_refused_reimage(sqlite_url: str, status: int) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, between = await RebuildCase.begin(c), InterceptedVolumeService(c)
            written, between.hook = write_to(c, case), answering(status)
            boots = await case.boots()
            shown = await case.rebuild(FIRST, name="again")
            assert (shown["status"], shown["name"]) == ("ACTIVE", "s")
            assert "not today" in shown["fault"]["message"]
            await case.check_in_order(written)
            assert await case.boots() == boots + 1
            action = await newest_action(c, case.id, as_="member")
            assert action["message"] == "Error"
            (failed,) = [one for one in action["events"] if one["result"] == "Error"]
            assert (failed["event"], "not today" in failed["details"]) == ("re-image volume", True)

    run(scenario())


@pytest.mark.parametrize(("image", "times"), [(SAME, 1), (OTHER, 1), (SAME, 9)])
def test_lost_response_of_reimage(sqlite_url: str, image: str, times: int) -> None:
    """The request is repeated. If that fails, too, the fault does not claim that the old data is kept."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, between = await RebuildCase.begin(c), InterceptedVolumeService(c)
            write_to(c, case)
            left = [answering(504)] * times

            async def after(method: str, path: str, body: Any) -> ClientResponse | None:
                if not left or "os-reimage" not in (body or {}):
                    return None
                if times > 1:  # not repeated while the reimage is seen to run
                    await wait_for_volume(c, case.root, "reserved")
                return await left.pop()(method, path, body)

            between.after = after
            shown = await case.rebuild(FIRST, image)
            if times > 1:
                assert (shown["status"], "not today" in shown["fault"]["message"]) == ("ERROR", True)
                assert await case.state() == case.without_guest
                between.after = None
                assert (await case.rebuild(FIRST, image))["status"] == "ACTIVE"
            await case.check_in_order(OLD if image == SAME else NEW)

    run(scenario())


def test_stopped_server_stays_stopped(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, between = await RebuildCase.begin(c), InterceptedVolumeService(c)
            await act(c, case.id, "os-stop")
            await c.wait_until_settled(case.id)
            between.hook = answering(400)
            assert (await case.rebuild(FIRST))["status"] == "SHUTOFF"
            assert await volume_checksum(c, case.root) == expected_checksum(OLD)
            between.hook = None
            assert (await case.rebuild(FIRST))["status"] == "SHUTOFF"
            assert await volume_checksum(c, case.root) == expected_checksum(NEW)
            assert (await case.state())["guests"] == [(case.host, "shutdown")]
            await act(c, case.id, "os-start")
            assert (await c.wait_until_settled(case.id))["status"] == "ACTIVE"

    run(scenario())


@pytest.mark.parametrize("repaired", ["reserved", "available"])
def test_failed_reimage(database_url: str, repaired: str) -> None:
    """The image is not what it says it is. When an operator has repaired the volume, it can be rebuilt.

    The stock client cannot say that it is reserved, though it is; it is not for anybody else either way.
    """

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            broken = await make_image(c, b"nothing of the kind", disk_format="qcow2")
            shown = await case.rebuild(FIRST, broken)
            assert shown["status"] == "ERROR"
            assert f"to volume {case.root}, which is in status error." in shown["fault"]["message"]
            assert await case.state() == {**case.without_guest, "volume": "error"}
            action = await newest_action(c, case.id, as_="member")
            assert action["message"] == "Error"
            assert next(one["event"] for one in action["events"] if one["result"] == "Error") == "connect volume"
            # Until an operator has repaired the volume, all attempts fail.
            shown = await case.rebuild(FIRST)
            assert (shown["status"], "in status error" in shown["fault"]["message"]) == ("ERROR", True)
            await volume_action(c, case.root, "os-reset_status", {"status": repaired})
            thief = await c.boot_active(networks="none")
            taking = {"volumeAttachment": {"volumeId": case.root}}
            answer = await c.post(f"/servers/{thief['id']}/os-volume_attachments", taking, version=FIRST)
            assert answer.status in (400, 409), answer.body
            assert (await c.delete(f"/servers/{thief['id']}")).status == 204
            await c.wait_until_deleted(thief["id"])
            shown = await case.rebuild(FIRST)
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            await case.check_in_order(NEW)

    run(scenario())


def test_host_that_fails_to_build_the_guest(sqlite_url: str) -> None:
    """The volume has the new data, and the next rebuild can use or replace it."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            for again in ((FIRST, {}), (BELOW, {"image": OTHER})):
                with rules(c) as sim:
                    sim.add_failure(case.host, "spawn", "error", 1, None)
                shown = await case.rebuild(FIRST)
                assert (shown["status"], "build guest" in shown["fault"]["message"]) == ("ERROR", True)
                assert await case.state() == case.without_guest
                version, keys = again
                assert (await case.rebuild(version, **keys))["status"] == "ACTIVE"
                await case.check_in_order(NEW)

    run(scenario())


def test_lost_event_only_delays(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, told = await RebuildCase.begin(c), drop_volume_events(c)
            assert (await case.rebuild(FIRST))["status"] == "ACTIVE"
            await case.check_in_order(NEW)
            (event,) = told[0]["events"]
            assert (event["name"], event["tag"]) == ("volume-reimaged", case.root)

    run(scenario())


def test_early_event(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, go_on = await RebuildCase.begin(c), slow_images(c, monkeypatch)
            assert (await case.request(FIRST)).status == 202
            await wait_for_volume(c, case.root, "downloading")
            event = {"name": "volume-reimaged", "server_uuid": case.id, "tag": case.root, "status": "completed"}
            body = {"events": [event]}
            answer = await c.post("/os-server-external-events", body, as_="service", version=FIRST)
            assert answer.status == 200, answer.body
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (await newest_action(c, case.id, as_="member"))["events"][-1]["event"] != "connect volume":
                    await asyncio.sleep(0.01)
            assert (await c.show(case.id))["status"] == "REBUILD"
            go_on.set()
            assert (await c.wait_until_settled(case.id))["status"] == "ACTIVE"
            await case.check_in_order(NEW)

    run(scenario())


def slow_images(c: FullCloud, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Image data is not sent before this event is set."""
    go_on, image = asyncio.Event(), c.services.image
    download = image.download

    @asynccontextmanager
    async def later(image_id: str, token: str) -> AsyncIterator[AsyncIterator[bytes]]:
        await go_on.wait()
        async with download(image_id, token) as chunks:
            yield chunks

    monkeypatch.setattr(image, "download", later)
    return go_on


def test_timeout_depends_on_image_size(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is proportional to the image size, and doubled. A later event is ignored."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, compute__reimage_seconds_per_gib=0.2) as c:
            case, go_on = await RebuildCase.begin(c), slow_images(c, monkeypatch)
            shown = await case.rebuild(FIRST)
            assert shown["status"] == "ERROR"
            assert "'wait for the volume' did not end within 0.2" in shown["fault"]["message"]
            assert await case.state() == {**case.without_guest, "volume": "downloading"}
            shown = await case.rebuild(FIRST, SAME)
            assert (shown["status"], "in status downloading" in shown["fault"]["message"]) == ("ERROR", True)
            go_on.set()
            await wait_for_volume(c, case.root, "reserved")
            assert await volume_checksum(c, case.root) == expected_checksum(NEW)
            c.services.config.compute.reimage_seconds_per_gib = 20.0
            assert (await case.rebuild(FIRST, SAME))["status"] == "ACTIVE"
            await case.check_in_order(OLD)

    run(scenario())


@pytest.mark.parametrize(("size", "seconds"), [(0, 20.0), (2**30, 40.0), (5 * 2**29, 70.0)])
def test_timeout_calculation(size: int, seconds: float) -> None:
    op: Any = SimpleNamespace(
        params=SimpleNamespace(image_bytes=size), services=SimpleNamespace(config=load(environ={}))
    )
    assert reimage_seconds(op) == seconds
    entry = Reimage.table().find(CONNECT_VOLUME)
    assert entry is not None
    assert deadline_seconds(entry, op) > seconds, "an event can be early"


def test_delete_server_during_reimage(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, go_on = await RebuildCase.begin(c), slow_images(c, monkeypatch)
            assert (await case.request(FIRST)).status == 202
            await wait_for_volume(c, case.root, "downloading")
            assert (await c.delete(f"/servers/{case.id}")).status == 204
            await c.wait_until_deleted(case.id)
            go_on.set()
            await wait_for_volume(c, case.root, "available")
            assert (await attachments(c, case.root), await c.list_guests_and_slots()) == ([], [])
            assert await volume_checksum(c, case.root) == expected_checksum(NEW)

    run(scenario())


def test_delete_on_termination_during_reimage(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW)}
            root = block_device("image", images[SAME], volume_size=1, delete_on_termination=True)
            case = RebuildCase(c, await boot_from(c, root, networks="none"), images)
            go_on = slow_images(c, monkeypatch)
            assert (await case.request(FIRST)).status == 202
            await wait_for_volume(c, case.root, "downloading")
            assert (await c.delete(f"/servers/{case.id}")).status == 204
            await c.wait_until_deleted(case.id)
            go_on.set()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await c.db.fetch_value("SELECT 1 FROM operations WHERE finished_at IS NULL"):
                    await asyncio.sleep(0.01)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 0
            assert list((c.services.config.data_dir / "volumes").rglob("*.*")) == []

    run(scenario())
