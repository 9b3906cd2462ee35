"""Rebuild of volume-backed servers (2.93, 2.106): content that is kept or replaced, and refused requests.

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
from kilonova.http.client import ClientResponse
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import HOST, action_refusal, newest_action
from tests.compute.servers.support import act, guest_on
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves
from tests.support.volumes import (
    InterceptedVolumeService,
    attachments,
    block_device,
    boot_from,
    expected_checksum,
    make_image,
    make_volume,
    root_volume_id,
    show_volume,
    volume_checksum,
)

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


class RebuildCase:
    """A server whose root volume was created from an image."""

    def __init__(self, c: FullCloud, server: Mapping[str, Any], images: Mapping[str, str]) -> None:
        self.c = c
        self.id: str = server["id"]
        self.host: str = server[HOST]
        self.root = root_volume_id(server)
        self.images = images

    @classmethod
    async def begin(cls, c: FullCloud, *more: dict[str, Any], **keys: Any) -> RebuildCase:
        images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW, os_distro="plan9")}
        server = await boot_from(c, block_device("image", images[SAME], volume_size=1), *more, networks="none", **keys)
        return cls(c, server, images)

    async def request(self, version: str, image: str = OTHER, **keys: Any) -> ClientResponse:
        body = {"imageRef": self.images.get(image, image), **keys}
        answer: ClientResponse = await act(self.c, self.id, "rebuild", body, version=version)
        return answer

    async def rebuild(self, version: str, image: str = OTHER, **keys: Any) -> dict[str, Any]:
        """The server after the rebuild."""
        answer = await self.request(version, image, **keys)
        assert answer.status == 202, answer.body
        return await self.c.wait_until_settled(self.id)

    async def refused(self, version: str, image: str = OTHER, **keys: Any) -> tuple[int, str]:
        body = {"imageRef": self.images.get(image, image), **keys}
        return await action_refusal(self.c, self.id, "rebuild", body, as_="member", version=version)

    async def state(self) -> dict[str, Any]:
        """The states of server, volume, attachment and guest; the host must have no other slots of the guest."""
        shown, held = await self.c.show(self.id), await attachments(self.c, self.root)
        return {
            "server": shown["status"],
            "volume": (await show_volume(self.c, self.root))["status"],
            "attachments": [(one["status"], bool(one["connection_info"])) for one in held],
            "guests": list((await self.c.guests()).values()),
            "slots": len(await self.c.list_slots()),
        }

    @property
    def expected_state(self) -> dict[str, Any]:
        return {
            "server": "ACTIVE",
            "volume": "in-use",
            "attachments": [("attached", True)],
            "guests": [(self.host, "running")],
            "slots": 0,
        }

    @property
    def without_guest(self) -> dict[str, Any]:
        """The state without a guest: the volume is reserved and not connected to a host."""
        return {"server": "ERROR", "volume": "reserved", "attachments": [("reserved", False)], "guests": [], "slots": 0}

    async def boots(self) -> int:
        ((_, guest),) = await self.c.list_guests_and_slots()
        return guest.boots

    async def check_in_order(self, data: bytes) -> None:
        """Check that the state is that after a boot, with this content."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await self.c.list_slots():  # discarded after the rebuild
                await asyncio.sleep(0.01)
        assert await self.state() == self.expected_state
        assert await volume_checksum(self.c, self.root) == expected_checksum(data)
        (disk,) = [disk for disk in guest_on(self.c, self.host, self.id).disks if disk.boot_index == 0]
        assert disk.volume_id == self.root


TABLE = [
    # Version, image, keys, result: the content of the volume, or an error
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
def test_rebuild_keeps_or_replaces_content(
    sqlite_url: str, version: str, image: str, keys: dict[str, Any], expect: Any
) -> None:
    """The guest has written to its volume; the content is kept or destroyed."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            written = write_to(c, case)
            if isinstance(expect, Refused):
                status, words = await case.refused(version, image, **keys)
                assert (status, expect.words in words) == (expect.status, True), words
                await case.check_in_order(written)
                return
            shown = await case.rebuild(version, image, **keys, name="again")
            assert (shown["status"], shown["name"], shown["image"]) == ("ACTIVE", "again", "")
            assert "fault" not in shown
            await case.check_in_order(written if expect == "written" else expect)
            metadata = (await show_volume(c, case.root))["volume_image_metadata"]
            assert metadata["image_id"] == case.images[image]
            assert (await newest_action(c, case.id))["action"] == "rebuild"

    run(scenario())


def write_to(c: FullCloud, case: RebuildCase) -> bytes:
    """Write to the volume as the guest would, and return the whole content."""
    (disk,) = guest_on(c, case.host, case.id).disks
    path = disk.connection.get("device_path") or disk.connection["data"]["device_path"]
    with open(path, "r+b") as file:
        file.seek(len(OLD))
        file.write(b"written")
    return OLD + b"written"


def test_image_backed_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active(networks="none"))["id"]
            for version, words in ((BELOW, UNKNOWN), (FIRST, UNKNOWN), (LAST, UNKNOWN), (CONSENT, "does not boot")):
                body = {"imageRef": c.image_id, **FLAG}
                status, said = await action_refusal(c, server_id, "rebuild", body, as_="member", version=version)
                assert (status, words in said) == (400, True), said
            answer = await act(c, server_id, "rebuild", {"imageRef": c.image_id, **NO}, version=CONSENT)
            assert (answer.status, (await c.wait_until_settled(server_id))["status"]) == (202, "ACTIVE")

    run(scenario())


@proves(REBUILD)
def test_another_image_with_the_version_of_stock_clients(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            case = await RebuildCase.begin(c, metadata={"a": "b"})
            answer = await case.request(FIRST, name="again", metadata={"c": "d"})
            shown = answer.json()["server"]
            assert (answer.status, shown["status"], shown["image"], shown["name"]) == (202, "REBUILD", "", "again")
            shown = await c.wait_until_settled(case.id)
            assert (shown["status"], shown["image"], shown["metadata"]) == ("ACTIVE", "", {"c": "d"})
            await case.check_in_order(NEW)
            properties = await c.db.fetch_value("SELECT image_properties FROM servers WHERE id = $1", case.id)
            assert orjson.loads(properties)["os_distro"] == "plan9", "the next move asks for hosts of this image"

    run(scenario())


# Refused although version and keys are valid


def test_multiattach_volume_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            several = {"name": "several", "extra_specs": {"multiattach": "<is> True"}}
            answer = await c.post("/types", {"volume_type": several}, as_="admin", root="/volume/v3")
            assert answer.status == 200, answer.body
            images = {SAME: await make_image(c, OLD), OTHER: await make_image(c, NEW)}
            root = await make_volume(c, imageRef=images[SAME], volume_type="several")
            assert (await show_volume(c, root))["multiattach"] is True
            server = await boot_from(c, block_device("volume", root), networks="none")
            case = RebuildCase(c, server, images)
            for version, keys in ((BELOW, {}), (FIRST, {}), (LAST, {}), (CONSENT, FLAG)):
                status, said = await case.refused(version, **keys)
                assert status == 400
                assert version == BELOW or "multiattach" in said, said
            for version in (BELOW, CONSENT):
                assert (await case.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            await case.check_in_order(OLD)

    run(scenario())


def test_host_without_trait_is_refused(sqlite_url: str) -> None:
    old = Shape(
        name="old", inventory={"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 100}, without_traits=["COMPUTE_REBUILD_BFV"]
    )

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, shapes=Shapes(shape=[old])) as c:
            case = await RebuildCase.begin(c)
            for version, image, keys in ((FIRST, OTHER, {}), (LAST, SAME, {}), (CONSENT, OTHER, FLAG)):
                status, said = await case.refused(version, image, **keys)
                assert (status, "COMPUTE_REBUILD_BFV" in said) == (409, True), said
            for version in (BELOW, CONSENT):
                assert (await case.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            await case.check_in_order(OLD)

    run(scenario())


def test_old_volume_service_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, between = await RebuildCase.begin(c), InterceptedVolumeService(c)
            between.announced_version = "3.60"
            for version, image, keys in ((FIRST, OTHER, {}), (LAST, SAME, {}), (CONSENT, OTHER, FLAG)):
                status, said = await case.refused(version, image, **keys)
                assert (status, "3.68" in said, "3.60" in said) == (409, True, True), said
            for version in (BELOW, CONSENT):
                assert (await case.rebuild(version, SAME))["status"] == "ACTIVE", "the content stays"
            between.announced_version = "3.68"
            assert (await case.rebuild(FIRST))["status"] == "ACTIVE"
            await case.check_in_order(NEW)

    run(scenario())


def test_other_refused_requests(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            nobody = "70a599e0-31e7-49b7-b260-868f441e862b"
            trusted = {"trusted_image_certificates": ["a"]}
            for keys, words in (
                ({"image": nobody}, "Can not find requested image"),
                ({"image": await make_image(c, NEW, min_disk=2)}, "too small"),
                ({"image": await make_image(c, NEW, min_ram=4096)}, "memory is too small"),
                (trusted, "Image certificate validation is not supported when booting from volume"),
                ({"preserve_ephemeral": True}, "preserve_ephemeral"),
            ):
                status, said = await case.refused(FIRST, **keys)
                assert (status, words in said) == (400, True), said
            status, _ = await action_refusal(c, case.id, "rebuild", {"imageRef": case.images[OTHER]}, as_="reader")
            assert status == 403
            answer = await act(c, case.id, "rebuild", {"imageRef": case.images[OTHER]}, version=FIRST, headers=DRY)
            assert answer.status == 200, answer.body
            await case.check_in_order(OLD)
            body = {"name": "s", "flavorRef": "1", "networks": "none", **trusted}
            mapping = [block_device("image", case.images[SAME], volume_size=1, boot_index=0)]
            answer = await c.post("/servers", {"server": {**body, "block_device_mapping_v2": mapping}}, version="2.63")
            assert (answer.status, b"Image certificate validation" in answer.body) == (400, True), answer.body

    run(scenario())


def test_image_of_volume_backed_server_is_refused(sqlite_url: str) -> None:
    """Such an image has no data, and would leave an empty volume."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            answer = await act(c, case.id, "createImage", {"name": "of volumes"}, version="2.45")
            assert answer.status == 202, answer.body
            image_id = answer.json()["image_id"]
            await c.wait_until_settled(case.id)
            for version, keys in ((FIRST, {}), (CONSENT, FLAG)):
                status, said = await case.refused(version, image_id, **keys)
                assert (status, "has no data" in said) == (400, True), said
            await case.check_in_order(OLD)
            plain = (await c.boot_active(networks="none"))["id"]
            status, said = await action_refusal(
                c, plain, "rebuild", {"imageRef": image_id}, as_="member", version=FIRST
            )
            assert (status, "has no data" in said) == (400, True), said

    run(scenario())


# During the rebuild


def test_steps_are_events_of_the_action(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case = await RebuildCase.begin(c)
            await case.rebuild(FIRST)
            action = await newest_action(c, case.id, as_="member")
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
    """Records the state at every request of compute that changes something at the volume service."""

    def __init__(self, case: RebuildCase) -> None:
        self.case = case
        self.seen: dict[str, dict[str, Any]] = {}

    async def __call__(self, method: str, path: str, body: Any) -> None:
        asked = f"{method} {next(iter(body))}" if method == "POST" else method
        if method != "GET":
            c, case = self.case.c, self.case
            listed = await c.get(f"/servers/{case.id}/os-volume_attachments", as_="admin", version="2.89")
            self.seen[asked] = {
                **await case.state(),
                "attachment of the server": listed.json()["volumeAttachments"][0]["attachment_id"],
                "attachments by id": [one["id"] for one in await attachments(c, case.root)],
                "is new": await volume_checksum(c, case.root) == expected_checksum(NEW),
            }


def test_volume_stays_reserved(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            case, between = await RebuildCase.begin(c), InterceptedVolumeService(c)
            (old,) = [one["id"] for one in await attachments(c, case.root)]
            between.hook = watcher = Watcher(case)
            await case.rebuild(FIRST)
            (new,) = [one["id"] for one in await attachments(c, case.root)]
            seen = watcher.seen
            assert list(seen) == ["POST attachment", "DELETE", "POST os-reimage", "PUT", "POST os-complete"]
            for step in seen.values():
                assert step["guests"] == [] or step is seen["POST os-complete"], "the old one is put aside"
            # An empty attachment beside the old one; then alone, and recorded in the database.
            assert set(seen["DELETE"]["attachments by id"]) == {old, new}
            assert set(seen["DELETE"]["attachments"]) == {("attached", True), ("reserved", False)}
            assert seen["POST attachment"]["volume"] == seen["DELETE"]["volume"] == "in-use"
            asked = seen["POST os-reimage"]
            assert (asked["volume"], asked["attachments"]) == ("reserved", [("reserved", False)])
            assert (asked["attachment of the server"], asked["is new"]) == (new, False)
            # The volume is not connected to a host before its content is complete.
            connected = seen["PUT"]
            assert (connected["volume"], connected["attachments"]) == ("reserved", [("reserved", False)])
            assert connected["is new"]
            completed = seen["POST os-complete"]
            assert (completed["volume"], completed["guests"]) == ("attaching", [(case.host, "running")])
            assert old != new
            await case.check_in_order(NEW)

    run(scenario())


# Volumes other than the root volume


@pytest.mark.parametrize(("backing", "version"), [("image", FIRST), ("volume", FIRST), ("volume", BELOW)])
def test_other_volumes_are_kept(sqlite_url: str, backing: str, version: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id, data = await make_image(c, OLD), await make_volume(c)
            other = block_device("volume", data)
            if backing == "image":
                server = await c.boot_active(imageRef=image_id, block_device_mapping_v2=[other], networks="none")
            else:
                server = await boot_from(c, block_device("image", image_id, volume_size=1), other, networks="none")
            before = await attachments(c, data)
            answer = await act(c, server["id"], "rebuild", {"imageRef": image_id}, version=version)
            assert answer.status == 202, answer.body
            shown = await c.wait_until_settled(server["id"])
            assert shown["status"] == "ACTIVE", shown
            volumes = shown["os-extended-volumes:volumes_attached"]
            assert (volumes, await attachments(c, data)) == (server["os-extended-volumes:volumes_attached"], before)
            assert (await show_volume(c, data))["status"] == "in-use"
            disks = guest_on(c, server[HOST], server["id"]).disks
            assert {disk.volume_id for disk in disks} == {one["id"] for one in volumes}

    run(scenario())
