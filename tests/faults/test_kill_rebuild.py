"""Rebuilding a server that boots from a volume: by a volume service that is too old, then with a kill at each step.

The volume service is the cloud's own, by way of an endpoint of its own (`volume.url`), as a Cinder would be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.process import Client, Cloud
from tests.support.volume_proxy import VolumeProxy
from tests.support.volumes import checksum, filled

NEW = b"new" * 1000
# What compute asks the volume service to change, in this order.
ASKED = ["POST attachment", "DELETE", "POST os-reimage", "PUT", "POST os-complete"]
QUICK = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2", "KILONOVA_OPERATIONS__SWEEP_SECONDS": "0.5"}
SECONDS = 60.0


@pytest.fixture
def proxy() -> Iterator[VolumeProxy]:
    with VolumeProxy() as running:
        yield running


@pytest.fixture
def cloud(tmp_path: Path, proxy: VolumeProxy) -> Iterator[Cloud]:
    environ = {**QUICK, "KILONOVA_VOLUME__URL": proxy.url}
    proxy.cloud = Cloud(tmp_path / "data", "--hosts", "1", environ=environ)
    with proxy.cloud as running:
        yield running


class Story:
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        admin = self.admin
        self.old = admin.get("image", "/images").json()["images"][0]["id"]
        body = {"name": "new", "disk_format": "raw", "container_format": "bare"}
        self.new: str = admin.post("image", "/images", body).json()["id"]
        assert admin.request("PUT", "image", f"/images/{self.new}/file", content=NEW).status == 204
        root = {
            "source_type": "image",
            "uuid": self.old,
            "destination_type": "volume",
            "volume_size": 1,
            "boot_index": 0,
        }
        server = {"name": "s", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": [root]}
        self.id: str = admin.post("compute", "/servers", {"server": server}).json()["server"]["id"]
        shown = admin.wait(self.id, SECONDS, status="ACTIVE")
        self.volume_id: str = shown["os-extended-volumes:volumes_attached"][0]["id"]

    @property
    def admin(self) -> Client:
        return self.cloud.client("kilonova", version="2.93")

    def rebuild(self, **keys: Any) -> Any:
        body = {"rebuild": {"imageRef": self.new, **keys}}
        return self.admin.post("compute", f"/servers/{self.id}/action", body)

    def events(self) -> list[str]:
        path = f"/servers/{self.id}/os-instance-actions"
        request_id = self.admin.get("compute", path).json()["instanceActions"][0]["request_id"]
        shown = self.admin.get("compute", f"{path}/{request_id}").json()["instanceAction"]
        assert shown["message"] is None, shown
        return [event["event"] for event in shown["events"]]

    def volume(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.admin.get("volume", f"/volumes/{self.volume_id}", version="3.68").json()["volume"]
        return shown


def test_a_rebuild_survives_a_kill_at_each_step(cloud: Cloud, proxy: VolumeProxy) -> None:
    story = Story(cloud)
    proxy.newest = "3.60"
    answer = story.rebuild()
    assert (answer.status, b"3.68" in answer.body) == (409, True), answer.body
    proxy.newest = None

    left, dead = list(ASKED), threading.Event()

    def kill(asked: str) -> None:
        """The service has done what it was asked to, and compute does not live to hear of it."""
        if asked in left:
            left.remove(asked)
            cloud.kill()
            dead.set()

    proxy.after = kill
    assert story.rebuild(name="again").status == 202
    for count in range(len(ASKED), 0, -1):
        assert dead.wait(SECONDS), left
        assert len(left) == count - 1
        dead.clear()
        cloud.start()
    shown = story.admin.wait(story.id, SECONDS, name="again", status="ACTIVE")
    assert "fault" not in shown
    assert story.events()[-1] == "settle"
    volume = story.volume()
    assert (volume["status"], volume["volume_image_metadata"]["image_id"]) == ("in-use", story.new)
    assert len(volume["attachments"]) == 1
    (file,) = until_one(cloud.data / "volumes", story.volume_id)
    assert checksum(file) == filled(NEW)


def until_one(directory: Path, volume_id: str) -> list[Path]:
    """The files of the volume, when what it had before is dropped."""
    until = time.monotonic() + SECONDS
    while len(found := list(directory.glob(f"{volume_id}.*"))) != 1 and time.monotonic() < until:
        time.sleep(0.05)
    return found
