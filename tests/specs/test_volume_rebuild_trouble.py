"""Rebuild of servers that boot from volumes: what goes wrong on the way, and what is left then.

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
from kilonova.compute.operations.reimage import Reimage, patience
from kilonova.config import load
from kilonova.http.client import Response
from kilonova.operations.table import deadline_of
from tests.compute.servers.moves import newest_action
from tests.compute.servers.support import act, rules
from tests.specs.test_volume_rebuild import BELOW, FIRST, NEW, OLD, OTHER, SAME, Story, write_to
from tests.support import run
from tests.support.volumes import (
    Between,
    attachments,
    boot_from,
    content,
    device,
    filled,
    make_image,
    swallow_events,
    volume_act,
    volume_until,
)
from tests.support.whole import PATIENCE, Whole, whole


def answering(status: int) -> Any:
    """A hook: whoever asks for a new content is answered this."""

    async def hook(method: str, path: str, body: Any) -> Response | None:
        if method != "POST" or "os-reimage" not in body:
            return None
        return Response(status, {}, orjson.dumps({"oh": {"code": status, "message": "not today"}}))

    return hook


@pytest.mark.parametrize("status", [400, 403, 409, 500, 503])
def test_the_volume_service_refuses(sqlite_url: str, status: int) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, between = await Story.begin(c), Between(c)
            written, between.hook = write_to(c, story), answering(status)
            boots = await story.boots()
            shown = await story.rebuild(FIRST, name="again")
            assert (shown["status"], shown["name"]) == ("ACTIVE", "s")
            assert "not today" in shown["fault"]["message"]
            await story.is_in_order(written)
            assert await story.boots() == boots + 1
            action = await newest_action(c, story.id, as_="member")
            assert action["message"] == "Error"
            (failed,) = [one for one in action["events"] if one["result"] == "Error"]
            assert (failed["event"], "not today" in failed["details"]) == ("re-image volume", True)

    run(scenario())


@pytest.mark.parametrize(("image", "times"), [(SAME, 1), (OTHER, 1), (SAME, 9)])
def test_the_volume_service_agrees_and_nobody_hears_it(sqlite_url: str, image: str, times: int) -> None:
    """It is asked again; and when that was in vain, nobody says that the old data is still there."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, between = await Story.begin(c), Between(c)
            write_to(c, story)
            left = [answering(504)] * times

            async def after(method: str, path: str, body: Any) -> Response | None:
                if not left or "os-reimage" not in (body or {}):
                    return None
                if times > 1:  # nobody asks again for what is seen to be under way
                    await volume_until(c, story.root, "reserved")
                return await left.pop()(method, path, body)

            between.after = after
            shown = await story.rebuild(FIRST, image)
            if times > 1:
                assert (shown["status"], "not today" in shown["fault"]["message"]) == ("ERROR", True)
                assert await story.state() == story.without_guest
                between.after = None
                assert (await story.rebuild(FIRST, image))["status"] == "ACTIVE"
            await story.is_in_order(OLD if image == SAME else NEW)

    run(scenario())


def test_a_stopped_server_is_stopped_again(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, between = await Story.begin(c), Between(c)
            await act(c, story.id, "os-stop")
            await c.settled(story.id)
            between.hook = answering(400)
            assert (await story.rebuild(FIRST))["status"] == "SHUTOFF"
            assert await content(c, story.root) == filled(OLD)
            between.hook = None
            assert (await story.rebuild(FIRST))["status"] == "SHUTOFF"
            assert await content(c, story.root) == filled(NEW)
            assert (await story.state())["guests"] == [(story.host, "shutdown")]
            await act(c, story.id, "os-start")
            assert (await c.settled(story.id))["status"] == "ACTIVE"

    run(scenario())


@pytest.mark.parametrize("repaired", ["reserved", "available"])
def test_the_content_cannot_be_written(database_url: str, repaired: str) -> None:
    """The image is not what it says it is. When an operator has repaired the volume, it can be rebuilt.

    The stock client cannot say that it is reserved, though it is; it is not for anybody else either way.
    """

    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            story = await Story.begin(c)
            broken = await make_image(c, b"nothing of the kind", disk_format="qcow2")
            shown = await story.rebuild(FIRST, broken)
            assert shown["status"] == "ERROR"
            assert f"to volume {story.root}, which is in status error." in shown["fault"]["message"]
            assert await story.state() == {**story.without_guest, "volume": "error"}
            action = await newest_action(c, story.id, as_="member")
            assert action["message"] == "Error"
            assert next(one["event"] for one in action["events"] if one["result"] == "Error") == "connect volume"
            # As long as nobody has looked at it, nothing helps.
            shown = await story.rebuild(FIRST)
            assert (shown["status"], "in status error" in shown["fault"]["message"]) == ("ERROR", True)
            await volume_act(c, story.root, "os-reset_status", {"status": repaired})
            thief = await c.active(networks="none")
            taking = {"volumeAttachment": {"volumeId": story.root}}
            answer = await c.post(f"/servers/{thief['id']}/os-volume_attachments", taking, version=FIRST)
            assert answer.status in (400, 409), answer.body
            assert (await c.delete(f"/servers/{thief['id']}")).status == 204
            await c.gone(thief["id"])
            shown = await story.rebuild(FIRST)
            assert (shown["status"], "fault" in shown) == ("ACTIVE", False)
            await story.is_in_order(NEW)

    run(scenario())


def test_a_host_that_cannot_build_the_guest(sqlite_url: str) -> None:
    """The old data is gone by then; the new data waits for the next try, also for one that keeps it."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story = await Story.begin(c)
            for again in ((FIRST, {}), (BELOW, {"image": OTHER})):
                with rules(c) as sim:
                    sim.add_failure(story.host, "spawn", "error", 1, None)
                shown = await story.rebuild(FIRST)
                assert (shown["status"], "build guest" in shown["fault"]["message"]) == ("ERROR", True)
                assert await story.state() == story.without_guest
                version, keys = again
                assert (await story.rebuild(version, **keys))["status"] == "ACTIVE"
                await story.is_in_order(NEW)

    run(scenario())


def test_a_lost_event_costs_time_alone(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, told = await Story.begin(c), swallow_events(c)
            assert (await story.rebuild(FIRST))["status"] == "ACTIVE"
            await story.is_in_order(NEW)
            (event,) = told[0]["events"]
            assert (event["name"], event["tag"]) == ("volume-reimaged", story.root)

    run(scenario())


def test_an_event_that_comes_too_early(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, go_on = await Story.begin(c), slow_images(c, monkeypatch)
            assert (await story.ask(FIRST)).status == 202
            await volume_until(c, story.root, "downloading")
            event = {"name": "volume-reimaged", "server_uuid": story.id, "tag": story.root, "status": "completed"}
            body = {"events": [event]}
            answer = await c.post("/os-server-external-events", body, as_="service", version=FIRST)
            assert answer.status == 200, answer.body
            async with asyncio.timeout(PATIENCE):
                while (await newest_action(c, story.id, as_="member"))["events"][-1]["event"] != "connect volume":
                    await asyncio.sleep(0.01)
            assert (await c.show(story.id))["status"] == "REBUILD"
            go_on.set()
            assert (await c.settled(story.id))["status"] == "ACTIVE"
            await story.is_in_order(NEW)

    run(scenario())


def slow_images(c: Whole, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on nobody gets an image's data before this is set."""
    go_on, image = asyncio.Event(), c.services.image
    download = image.download

    @asynccontextmanager
    async def later(image_id: str, token: str) -> AsyncIterator[AsyncIterator[bytes]]:
        await go_on.wait()
        async with download(image_id, token) as chunks:
            yield chunks

    monkeypatch.setattr(image, "download", later)
    return go_on


def test_it_waits_as_long_as_the_image_is_large(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many seconds per GiB, and as many again. What comes after that comes too late, and does no harm."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, compute__reimage_seconds=0.2) as c:
            story, go_on = await Story.begin(c), slow_images(c, monkeypatch)
            shown = await story.rebuild(FIRST)
            assert shown["status"] == "ERROR"
            assert "'wait for the volume' did not end within 0.2" in shown["fault"]["message"]
            assert await story.state() == {**story.without_guest, "volume": "downloading"}
            shown = await story.rebuild(FIRST, SAME)
            assert (shown["status"], "in status downloading" in shown["fault"]["message"]) == ("ERROR", True)
            go_on.set()
            await volume_until(c, story.root, "reserved")
            assert await content(c, story.root) == filled(NEW)
            c.services.config.compute.reimage_seconds = 20.0
            assert (await story.rebuild(FIRST, SAME))["status"] == "ACTIVE"
            await story.is_in_order(OLD)

    run(scenario())


@pytest.mark.parametrize(("size", "seconds"), [(0, 20.0), (2**30, 40.0), (5 * 2**29, 70.0)])
def test_how_long_it_waits(size: int, seconds: float) -> None:
    op: Any = SimpleNamespace(params={"image_bytes": size}, services=SimpleNamespace(config=load(environ={})))
    assert patience(op) == seconds
    entry = Reimage.table().find(CONNECT_VOLUME)
    assert entry is not None
    assert deadline_of(entry, op) > seconds, "an event can be early"


def test_a_server_is_deleted_while_its_volume_is_written(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, go_on = await Story.begin(c), slow_images(c, monkeypatch)
            assert (await story.ask(FIRST)).status == 202
            await volume_until(c, story.root, "downloading")
            assert (await c.delete(f"/servers/{story.id}")).status == 204
            await c.gone(story.id)
            go_on.set()
            await volume_until(c, story.root, "available")
            assert (await attachments(c, story.root), await c.everything()) == ([], [])
            assert await content(c, story.root) == filled(NEW)

    run(scenario())


def test_a_volume_that_goes_with_its_server_goes_while_it_is_written(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW)}
            root = device("image", images[SAME], volume_size=1, delete_on_termination=True)
            story = Story(c, await boot_from(c, root, networks="none"), images)
            go_on = slow_images(c, monkeypatch)
            assert (await story.ask(FIRST)).status == 202
            await volume_until(c, story.root, "downloading")
            assert (await c.delete(f"/servers/{story.id}")).status == 204
            await c.gone(story.id)
            go_on.set()
            async with asyncio.timeout(PATIENCE):
                while await c.db.fetch_value("SELECT 1 FROM operations WHERE finished_at IS NULL"):
                    await asyncio.sleep(0.01)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM volumes") == 0
            assert list((c.services.config.data_dir / "volumes").rglob("*.*")) == []

    run(scenario())
