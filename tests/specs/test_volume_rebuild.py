"""Rebuild of servers that boot from volumes (2.93, 2.106): what is kept, what is replaced, and what is refused.

See docs/specs/volume-rebuild.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kilonova.compute.operations.reimage import CONNECT as CONNECT_VOLUME
from kilonova.compute.operations.reimage import Reimage, patience
from kilonova.config import load
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes
from kilonova.http.client import Response
from kilonova.operations.table import deadline_of
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, newest_action, refused
from tests.compute.servers.support import act, guest_on, rules
from tests.support import run
from tests.support.proves import proves
from tests.support.volumes import (
    Between,
    attachments,
    boot_from,
    content,
    device,
    filled,
    make_image,
    make_volume,
    root_of,
    swallow_events,
    volume,
    volume_act,
    volume_until,
)
from tests.support.whole import PATIENCE, Whole, whole

REBUILD = "POST /servers/{server_id}/action#rebuild"
BELOW, FIRST, LAST, CONSENT = "2.92", "2.93", "2.105", "2.106"
OLD, NEW = b"old" * 1000, b"new" * 1000
SAME, OTHER = "same", "other"
FLAG: dict[str, Any] = {"reimage_boot_volume": True}
NO: dict[str, Any] = {"reimage_boot_volume": False}
UNKNOWN = "reimage_boot_volume"
DESTROYED = "say reimage_boot_volume: true. The content of the volume will be destroyed."


@dataclass(frozen=True)
class Refused:
    status: int
    words: str


class Story:
    """A server that boots from a volume, which was made of an image."""

    def __init__(self, c: Whole, server: Mapping[str, Any], images: Mapping[str, str]) -> None:
        self.c = c
        self.id: str = server["id"]
        self.host: str = server[HOST]
        self.root = root_of(server)
        self.images = images

    @classmethod
    async def begin(cls, c: Whole, *more: dict[str, Any], **keys: Any) -> Story:
        images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW, os_distro="plan9")}
        server = await boot_from(c, device("image", images[SAME], volume_size=1), *more, networks="none", **keys)
        return cls(c, server, images)

    async def ask(self, version: str, image: str = OTHER, **keys: Any) -> Response:
        body = {"imageRef": self.images.get(image, image), **keys}
        answer: Response = await act(self.c, self.id, "rebuild", body, version=version)
        return answer

    async def rebuild(self, version: str, image: str = OTHER, **keys: Any) -> dict[str, Any]:
        """The server when it is over."""
        answer = await self.ask(version, image, **keys)
        assert answer.status == 202, answer.body
        return await self.c.settled(self.id)

    async def refused(self, version: str, image: str = OTHER, **keys: Any) -> tuple[int, str]:
        body = {"imageRef": self.images.get(image, image), **keys}
        return await refused(self.c, self.id, "rebuild", body, as_="member", version=version)

    async def state(self) -> dict[str, Any]:
        """Server, volume and attachment; and the guest, beside which nothing is kept."""
        shown, held = await self.c.show(self.id), await attachments(self.c, self.root)
        return {
            "server": shown["status"],
            "volume": (await volume(self.c, self.root))["status"],
            "attachments": [(one["status"], bool(one["connection_info"])) for one in held],
            "guests": list((await self.c.guests()).values()),
            "slots": len(await self.c.kept()),
        }

    @property
    def in_order(self) -> dict[str, Any]:
        return {
            "server": "ACTIVE",
            "volume": "in-use",
            "attachments": [("attached", True)],
            "guests": [(self.host, "running")],
            "slots": 0,
        }

    @property
    def without_guest(self) -> dict[str, Any]:
        """The volume reserved, and connected to no host."""
        return {"server": "ERROR", "volume": "reserved", "attachments": [("reserved", False)], "guests": [], "slots": 0}

    async def boots(self) -> int:
        ((_, guest),) = await self.c.everything()
        return guest.boots

    async def is_in_order(self, data: bytes) -> None:
        """Everything stands as after a boot, with this content."""
        async with asyncio.timeout(PATIENCE):
            while await self.c.kept():  # discarded after the end of it
                await asyncio.sleep(0.01)
        assert await self.state() == self.in_order
        assert await content(self.c, self.root) == filled(data)
        (disk,) = [disk for disk in guest_on(self.c, self.host, self.id).disks if disk.boot_index == 0]
        assert disk.volume_id == self.root


TABLE = [
    # Version, image, keys, what follows: the content of the volume, or a refusal
    (BELOW, OTHER, {}, Refused(400, "Unable to rebuild with a different image for a volume-backed server")),
    (FIRST, OTHER, {}, NEW),
    (LAST, OTHER, {}, NEW),
    (CONSENT, OTHER, {}, Refused(400, DESTROYED)),
    (CONSENT, OTHER, NO, Refused(400, DESTROYED)),
    (BELOW, OTHER, FLAG, Refused(400, UNKNOWN)),
    (BELOW, SAME, FLAG, Refused(400, UNKNOWN)),
    (FIRST, OTHER, FLAG, Refused(400, UNKNOWN)),
    (LAST, SAME, FLAG, Refused(400, UNKNOWN)),
    (LAST, OTHER, NO, Refused(400, UNKNOWN)),
    (CONSENT, OTHER, FLAG, NEW),
    (CONSENT, SAME, FLAG, OLD),
    (BELOW, SAME, {}, "written"),
    (FIRST, SAME, {}, OLD),
    (LAST, SAME, {}, OLD),
    (CONSENT, SAME, {}, "written"),
    (CONSENT, SAME, NO, "written"),
]


@pytest.mark.parametrize(("version", "image", "keys", "expect"), TABLE)
def test_the_table(sqlite_url: str, version: str, image: str, keys: dict[str, Any], expect: Any) -> None:
    """The guest has written to its volume meanwhile: that is kept, or destroyed."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story = await Story.begin(c)
            written = write_to(c, story)
            if isinstance(expect, Refused):
                status, words = await story.refused(version, image, **keys)
                assert (status, expect.words in words) == (expect.status, True), words
                await story.is_in_order(written)
                return
            shown = await story.rebuild(version, image, **keys, name="again")
            assert (shown["status"], shown["name"], shown["image"]) == ("ACTIVE", "again", "")
            assert "fault" not in shown
            await story.is_in_order(written if expect == "written" else expect)
            metadata = (await volume(c, story.root))["volume_image_metadata"]
            assert metadata["image_id"] == story.images[image]
            assert (await newest_action(c, story.id))["action"] == "rebuild"

    run(scenario())


def write_to(c: Whole, story: Story) -> bytes:
    """What the guest writes after it was booted. All of its content then."""
    (disk,) = guest_on(c, story.host, story.id).disks
    path = disk.connection.get("device_path") or disk.connection["data"]["device_path"]
    with open(path, "r+b") as file:
        file.seek(len(OLD))
        file.write(b"written")
    return OLD + b"written"


def test_a_server_of_an_image_has_no_volume_to_replace(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active(networks="none"))["id"]
            for version, words in ((BELOW, UNKNOWN), (FIRST, UNKNOWN), (LAST, UNKNOWN), (CONSENT, "does not boot")):
                body = {"imageRef": c.image_id, **FLAG}
                status, said = await refused(c, server_id, "rebuild", body, as_="member", version=version)
                assert (status, words in said) == (400, True), said
            answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id, **NO}, version=CONSENT)
            assert (answer.status, (await c.settled(server_id))["status"]) == (202, "ACTIVE")

    run(scenario())


@proves(REBUILD)
def test_another_image_by_the_version_of_stock_clients(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            story = await Story.begin(c, metadata={"a": "b"})
            answer = await story.ask(FIRST, name="again", metadata={"c": "d"})
            shown = answer.json()["server"]
            assert (answer.status, shown["status"], shown["image"], shown["name"]) == (202, "REBUILD", "", "again")
            shown = await c.settled(story.id)
            assert (shown["status"], shown["image"], shown["metadata"]) == ("ACTIVE", "", {"c": "d"})
            await story.is_in_order(NEW)
            properties = await c.db.fetch_value("SELECT image_properties FROM servers WHERE id = $1", story.id)
            assert orjson.loads(properties)["os_distro"] == "plan9", "the next move asks for hosts of this image"

    run(scenario())


# What is refused though the version and the keys are right


def test_a_volume_of_several_servers_is_never_replaced(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            several = {"name": "several", "extra_specs": {"multiattach": "<is> True"}}
            answer = await c.post("/types", {"volume_type": several}, as_="admin", root="/volume/v3")
            assert answer.status == 200, answer.body
            images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW)}
            root = await make_volume(c, imageRef=images[SAME], volume_type="several")
            assert (await volume(c, root))["multiattach"] is True
            server = await boot_from(c, device("volume", root), networks="none")
            story = Story(c, server, images)
            for version, keys in ((BELOW, {}), (FIRST, {}), (LAST, {}), (CONSENT, FLAG)):
                status, said = await story.refused(version, **keys)
                assert status == 400
                assert version == BELOW or "multiattach" in said, said
            for version in (BELOW, CONSENT):
                assert (await story.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            await story.is_in_order(OLD)

    run(scenario())


def test_a_host_without_the_trait(sqlite_url: str) -> None:
    old = Shape(
        name="old", inventory={"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 100}, without_traits=["COMPUTE_REBUILD_BFV"]
    )

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1, shapes=Shapes(shape=[old])) as c:
            story = await Story.begin(c)
            for version, image, keys in ((FIRST, OTHER, {}), (LAST, SAME, {}), (CONSENT, OTHER, FLAG)):
                status, said = await story.refused(version, image, **keys)
                assert (status, "COMPUTE_REBUILD_BFV" in said) == (409, True), said
            for version in (BELOW, CONSENT):
                assert (await story.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            await story.is_in_order(OLD)

    run(scenario())


def test_a_volume_service_that_is_too_old(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, between = await Story.begin(c), Between(c)
            between.newest = "3.60"
            for version, image, keys in ((FIRST, OTHER, {}), (LAST, SAME, {}), (CONSENT, OTHER, FLAG)):
                status, said = await story.refused(version, image, **keys)
                assert (status, "3.68" in said, "3.60" in said) == (409, True, True), said
            for version in (BELOW, CONSENT):
                assert (await story.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            between.newest = "3.68"
            assert (await story.rebuild(FIRST))["status"] == "ACTIVE"
            await story.is_in_order(NEW)

    run(scenario())


def test_what_else_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story = await Story.begin(c)
            nobody = "70a599e0-31e7-49b7-b260-868f441e862b"
            trusted = {"trusted_image_certificates": ["a"]}
            for keys, words in (
                ({"image": nobody}, "Can not find requested image"),
                ({"image": await make_image(c, NEW, min_disk=2)}, "too small"),
                ({"image": await make_image(c, NEW, min_ram=4096)}, "memory is too small"),
                (trusted, "Image certificate validation is not supported when booting from volume"),
                ({"preserve_ephemeral": True}, "preserve_ephemeral"),
            ):
                status, said = await story.refused(FIRST, **keys)
                assert (status, words in said) == (400, True), said
            status, _ = await refused(c, story.id, "rebuild", {"imageRef": story.images[OTHER]}, as_="reader")
            assert status == 403
            answer = await act(c, story.id, "rebuild", {"imageRef": story.images[OTHER]}, version=FIRST, headers=DRY)
            assert answer.status == 200, answer.body
            await story.is_in_order(OLD)
            body = {"name": "s", "flavorRef": "1", "networks": "none", **trusted}
            mapping = [device("image", story.images[SAME], volume_size=1, boot_index=0)]
            answer = await c.post("/servers", {"server": {**body, "block_device_mapping_v2": mapping}}, version="2.63")
            assert (answer.status, b"Image certificate validation" in answer.body) == (400, True), answer.body

    run(scenario())


def test_an_image_of_volumes_has_nothing_to_write(sqlite_url: str) -> None:
    """It would leave nothing but zeros."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story = await Story.begin(c)
            answer = await act(c, story.id, "createImage", {"name": "of volumes"}, version="2.45")
            assert answer.status == 202, answer.body
            image_id = answer.json()["image_id"]
            await c.settled(story.id)
            for version, keys in ((FIRST, {}), (CONSENT, FLAG)):
                status, said = await story.refused(version, image_id, **keys)
                assert (status, "has no data" in said) == (400, True), said
            await story.is_in_order(OLD)
            plain = (await c.active(networks="none"))["id"]
            status, said = await refused(c, plain, "rebuild", {"imageRef": image_id}, as_="member", version=FIRST)
            assert (status, "has no data" in said) == (400, True), said

    run(scenario())


# On the way


def test_every_step_is_an_event_of_the_action(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story = await Story.begin(c)
            await story.rebuild(FIRST)
            action = await newest_action(c, story.id, as_="member")
            assert (action["action"], action["message"]) == ("rebuild", None)
            assert [(one["event"], one["result"]) for one in action["events"]] == [
                ("stop guest", "Success"),
                ("park guest", "Success"),
                ("reserve volume", "Success"),
                ("release volume", "Success"),
                ("save attachment", "Success"),
                ("re-image volume", "Success"),
                ("wait for the volume", "Success"),
                ("connect volume", "Success"),
                ("build guest", "Success"),
                ("complete volume", "Success"),
                ("settle", "Success"),
            ]

    run(scenario())


class Watcher:
    """Looks at everything whenever compute asks the volume service to change something."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.seen: dict[str, dict[str, Any]] = {}

    async def __call__(self, method: str, path: str, body: Any) -> None:
        asked = f"{method} {next(iter(body))}" if method == "POST" else method
        if method != "GET":
            c, story = self.story.c, self.story
            listed = await c.get(f"/servers/{story.id}/os-volume_attachments", as_="admin", version="2.89")
            self.seen[asked] = {
                **await story.state(),
                "attachment of the server": listed.json()["volumeAttachments"][0]["attachment_id"],
                "attachments by id": [one["id"] for one in await attachments(c, story.root)],
                "is new": await content(c, story.root) == filled(NEW),
            }


def test_the_volume_is_reserved_all_the_while(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            story, between = await Story.begin(c), Between(c)
            (old,) = [one["id"] for one in await attachments(c, story.root)]
            between.hook = watcher = Watcher(story)
            await story.rebuild(FIRST)
            (new,) = [one["id"] for one in await attachments(c, story.root)]
            seen = watcher.seen
            assert list(seen) == ["POST attachment", "DELETE", "POST os-reimage", "PUT", "POST os-complete"]
            for step in seen.values():
                assert step["guests"] == [] or step is seen["POST os-complete"], "the old one is put aside"
            # An empty attachment beside the old one; then alone, and the server knows it.
            assert set(seen["DELETE"]["attachments by id"]) == {old, new}
            assert set(seen["DELETE"]["attachments"]) == {("attached", True), ("reserved", False)}
            assert seen["POST attachment"]["volume"] == seen["DELETE"]["volume"] == "in-use"
            asked = seen["POST os-reimage"]
            assert (asked["volume"], asked["attachments"]) == ("reserved", [("reserved", False)])
            assert (asked["attachment of the server"], asked["is new"]) == (new, False)
            # No host reaches the volume before its content is there.
            connected = seen["PUT"]
            assert (connected["volume"], connected["attachments"]) == ("reserved", [("reserved", False)])
            assert connected["is new"]
            completed = seen["POST os-complete"]
            assert (completed["volume"], completed["guests"]) == ("attaching", [(story.host, "running")])
            assert old != new
            await story.is_in_order(NEW)

    run(scenario())


# What goes wrong


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
                return await left.pop()(method, path, body) if left and "os-reimage" in (body or {}) else None

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


def test_the_content_cannot_be_written(database_url: str) -> None:
    """The image is not what it says it is. When an operator has repaired the volume, it can be rebuilt."""

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
            await volume_act(c, story.root, "os-reset_status", {"status": "reserved"})
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


# Volumes that it does not boot from


@pytest.mark.parametrize(("backing", "version"), [("image", FIRST), ("volume", FIRST), ("volume", BELOW)])
def test_other_volumes_stay(sqlite_url: str, backing: str, version: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            image_id, data = await make_image(c, OLD), await make_volume(c)
            first = device("image", image_id, volume_size=1)
            if backing == "image":
                first |= {"destination_type": "local"}
                del first["volume_size"]
            server = await boot_from(c, first, device("volume", data), networks="none")
            before = await attachments(c, data)
            answer = await act(c, server["id"], "rebuild", {"imageRef": image_id}, version=version)
            assert answer.status == 202, answer.body
            shown = await c.settled(server["id"])
            assert shown["status"] == "ACTIVE", shown
            volumes = shown["os-extended-volumes:volumes_attached"]
            assert (volumes, await attachments(c, data)) == (server["os-extended-volumes:volumes_attached"], before)
            assert (await volume(c, data))["status"] == "in-use"
            disks = guest_on(c, server[HOST], server["id"]).disks
            assert {disk.volume_id for disk in disks} == {one["id"] for one in volumes}

    run(scenario())
