"""Rebuild of servers that boot from volumes (2.93, 2.106): what is kept, what is replaced, and what is refused.

See docs/specs/volume-rebuild.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from kilonova.hosts.drivers.sim.shapes import Shape, Shapes
from kilonova.http.client import Response
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, newest_action, refused
from tests.compute.servers.support import act, guest_on
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
    volume,
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
