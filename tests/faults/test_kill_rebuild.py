"""Rebuild of a server that boots from a volume: with a too old volume service, then with a kill at each step.

The volume service is the built-in one behind a proxy, configured by `volume.url` like a Cinder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cloud_process import Client, CloudProcess
from tests.support.volume_proxy import VolumeProxy
from tests.support.volumes import checksum, expected_checksum

NEW_CONTENT = b"new" * 1000
# Changing requests from compute to the volume service, in this order.
REQUESTS = ["POST attachment", "DELETE", "POST os-reimage", "PUT", "POST os-complete"]
SHORT_LEASE = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2", "KILONOVA_OPERATIONS__POLL_SECONDS": "0.5"}
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def proxy() -> Iterator[VolumeProxy]:
    with VolumeProxy() as running:
        yield running


@pytest.fixture
def cloud(tmp_path: Path, proxy: VolumeProxy) -> Iterator[CloudProcess]:
    environ = {**SHORT_LEASE, "KILONOVA_VOLUME__URL": proxy.url}
    proxy.cloud = CloudProcess(tmp_path / "data", "--hosts", "1", environ=environ)
    with proxy.cloud as running:
        yield running


class VolumeServer:
    def __init__(self, cloud: CloudProcess) -> None:
        self.cloud = cloud
        admin = self.admin
        self.old_image_id = admin.get("image", "/images").json()["images"][0]["id"]
        body = {"name": "new", "disk_format": "raw", "container_format": "bare"}
        self.new_image_id: str = admin.post("image", "/images", body).json()["id"]
        assert admin.request("PUT", "image", f"/images/{self.new_image_id}/file", content=NEW_CONTENT).status == 204
        root = {
            "source_type": "image",
            "uuid": self.old_image_id,
            "destination_type": "volume",
            "volume_size": 1,
            "boot_index": 0,
        }
        server = {"name": "s", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": [root]}
        self.id: str = admin.post("compute", "/servers", {"server": server}).json()["server"]["id"]
        shown = admin.wait(self.id, TIMEOUT_SECONDS, status="ACTIVE")
        self.volume_id: str = shown["os-extended-volumes:volumes_attached"][0]["id"]

    @property
    def admin(self) -> Client:
        return self.cloud.client("kilonova", version="2.93")

    def rebuild(self, **keys: Any) -> Any:
        body = {"rebuild": {"imageRef": self.new_image_id, **keys}}
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


def test_rebuild_survives_kill_at_each_step(cloud: CloudProcess, proxy: VolumeProxy) -> None:
    server = VolumeServer(cloud)
    proxy.announced_version = "3.60"
    answer = server.rebuild()
    assert (answer.status, b"3.68" in answer.body) == (409, True), answer.body
    proxy.announced_version = None

    remaining, killed = list(REQUESTS), threading.Event()

    def kill(request: str) -> None:
        """Kill compute after the service has executed a request, before compute gets the answer."""
        if request in remaining:
            remaining.remove(request)
            cloud.kill()
            killed.set()

    proxy.after_request = kill
    assert server.rebuild(name="again").status == 202
    for count in range(len(REQUESTS), 0, -1):
        assert killed.wait(TIMEOUT_SECONDS), remaining
        assert len(remaining) == count - 1
        killed.clear()
        cloud.start()
    shown = server.admin.wait(server.id, TIMEOUT_SECONDS, name="again", status="ACTIVE")
    assert "fault" not in shown
    assert server.events()[-1] == "settle"
    volume = server.volume()
    assert (volume["status"], volume["volume_image_metadata"]["image_id"]) == ("in-use", server.new_image_id)
    assert len(volume["attachments"]) == 1
    (file,) = wait_for_one_file(cloud.data / "volumes", server.volume_id)
    assert checksum(file) == expected_checksum(NEW_CONTENT)


def wait_for_one_file(directory: Path, volume_id: str) -> list[Path]:
    """Return the volume's files once its old content is deleted."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while len(found := list(directory.glob(f"{volume_id}.*"))) != 1 and time.monotonic() < until:
        time.sleep(0.05)
    return found
