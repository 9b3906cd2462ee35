"""Servers that boot from volumes, with the stock client in one session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import Client, CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession

ATTACHED = "os-extended-volumes:volumes_attached"
BOOT_COMMAND = "server create --flavor m1.tiny --nic none"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("boot") / "data", "--hosts", "2") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(
        openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.104", OS_VOLUME_API_VERSION="3.71"
    ) as opened:
        yield opened


class Scenario:
    """Boots and deletes servers, and waits for states."""

    def __init__(self, cloud: CloudProcess, session: OpenstackSession) -> None:
        versions = {"compute": "2.104", "volume": "3.71"}
        self.admin: dict[str, Client] = {name: cloud.client("kilonova", version=v) for name, v in versions.items()}
        self.session = session
        self.send, self.run_json = session.send, session.run_json

    def boot(self, options: str) -> dict[str, Any]:
        created = self.run_json(f"{BOOT_COMMAND} {options} server")
        return self.wait("compute", "server", created["id"], "ACTIVE")

    def create(self, command: str, resource: str) -> str:
        created_id = str(self.run_json(command)["id"])
        self.wait("volume", resource, created_id, "available")
        return created_id

    def wait_for_volume(self, volume_id: str, status: str = "in-use") -> dict[str, Any]:
        return self.wait("volume", "volume", volume_id, status)

    def wait(self, service: str, resource: str, resource_id: str, status: str) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            shown: dict[str, Any] = self.admin[service].get(service, f"/{resource}s/{resource_id}").json()[resource]
            if shown["status"] == status:
                return shown
            assert time.monotonic() < until, (shown, self.session.errors.read_text())
            time.sleep(0.02)

    def delete(self, server: dict[str, Any]) -> None:
        self.send(f"server delete {server['id']}")
        self.wait_until_deleted("compute", "server", server["id"])

    def wait_until_deleted(self, service: str, resource: str, resource_id: str) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while self.admin[service].get(service, f"/{resource}s/{resource_id}").status != 404:
            assert time.monotonic() < until, self.session.errors.read_text()
            time.sleep(0.02)


def test_boot_from_volumes(cloud: CloudProcess, session: OpenstackSession) -> None:
    scenario = Scenario(cloud, session)
    check_boot_from_image_volume(scenario)
    check_boot_from_volume_and_snapshot(scenario)
    check_block_devices(scenario)
    assert scenario.run_json("server list") == scenario.run_json("volume list") == []
    assert session.close() == ""


def check_boot_from_image_volume(scenario: Scenario) -> None:
    server = scenario.boot("--image cirros-sim --boot-from-volume 2")
    (attached,) = server[ATTACHED]
    root = scenario.wait_for_volume(attached["id"])
    assert (root["size"], root["bootable"], server["image"]) == (2, "true", "")
    shown = scenario.run_json(f"server show {server['id']}")
    assert shown["image"] == "N/A (booted from volume)"
    assert shown["volumes_attached"][0]["id"] == attached["id"]
    (listed,) = scenario.run_json("server list")
    assert listed["Image"] == "N/A (booted from volume)"
    (row,) = scenario.run_json(f"server volume list {server['id']}")
    assert row["Volume ID"] == attached["id"]
    check_rebuild(scenario, server["id"], attached["id"])
    scenario.delete(server)
    # `delete_on_termination` is not set.
    scenario.wait_for_volume(attached["id"], "available")
    scenario.send(f"volume delete {attached['id']}")
    scenario.wait_until_deleted("volume", "volume", attached["id"])


def check_rebuild(scenario: Scenario, server_id: str, volume_id: str) -> None:
    """Create an image of the server from a volume snapshot, then rebuild the same volume with another image."""
    copied = scenario.run_json(f"server image create --name copy --wait {server_id}")
    assert (copied["status"], copied["properties"]["bdm_v2"]) == ("active", "True")
    (snapshot,) = scenario.run_json("volume snapshot list")
    scenario.send("image delete copy")
    scenario.send(f"volume snapshot delete {snapshot['ID']}")
    scenario.wait_until_deleted("volume", "snapshot", snapshot["ID"])
    admin = scenario.admin["volume"]
    body = {"name": "other", "disk_format": "raw", "container_format": "bare"}
    image_id = admin.post("image", "/images", body).json()["id"]
    assert admin.request("PUT", "image", f"/images/{image_id}/file", content=b"other" * 1000).status == 204
    requested = scenario.run_json(f"server rebuild --image other --reimage-boot-volume --name again {server_id}")
    assert (requested["status"], requested["name"]) == ("REBUILD", "again")
    scenario.wait("compute", "server", server_id, "ACTIVE")
    assert scenario.wait_for_volume(volume_id)["volume_image_metadata"]["image_id"] == image_id
    scenario.send("image delete other")


def check_boot_from_volume_and_snapshot(scenario: Scenario) -> None:
    volume_id = scenario.create("volume create --image cirros-sim --size 1 root", "volume")
    server = scenario.boot(f"--volume {volume_id}")
    assert server[ATTACHED] == [{"id": volume_id, "delete_on_termination": False}]
    scenario.delete(server)
    scenario.wait_for_volume(volume_id, "available")
    snapshot_id = scenario.create("volume snapshot create --volume root copy", "snapshot")
    server = scenario.boot(f"--snapshot {snapshot_id}")
    (attached,) = server[ATTACHED]
    assert scenario.wait_for_volume(attached["id"])["snapshot_id"] == snapshot_id
    scenario.delete(server)
    scenario.send(f"volume delete {attached['id']}")
    scenario.wait_until_deleted("volume", "volume", attached["id"])
    scenario.send(f"volume snapshot delete {snapshot_id}")
    scenario.wait_until_deleted("volume", "snapshot", snapshot_id)
    scenario.send(f"volume delete {volume_id}")
    scenario.wait_until_deleted("volume", "volume", volume_id)


def check_block_devices(scenario: Scenario) -> None:
    data = scenario.create("volume create --size 1 data", "volume")
    image_id = scenario.run_json("image show cirros-sim")["id"]
    root = f"uuid={image_id},source_type=image,destination_type=volume,volume_size=1,boot_index=0"
    devices = (
        f"--block-device {root},delete_on_termination=true,tag=root,volume_type=__DEFAULT__",
        f"--block-device uuid={data},source_type=volume,destination_type=volume,disk_bus=scsi,device_type=disk",
        "--block-device source_type=blank,destination_type=volume,volume_size=1,delete_on_termination=true",
    )
    server = scenario.boot(" ".join(devices))
    assert [volume["delete_on_termination"] for volume in server[ATTACHED]] == [True, False, True]
    assert server[ATTACHED][1]["id"] == data
    scenario.delete(server)
    scenario.wait_for_volume(data, "available")
    for attached in server[ATTACHED]:
        if attached["delete_on_termination"]:
            scenario.wait_until_deleted("volume", "volume", attached["id"])
    server = scenario.boot(f"--image cirros-sim --block-device-mapping vdb={data}:volume::true")
    assert server["image"]["id"] == image_id
    assert server[ATTACHED] == [{"id": data, "delete_on_termination": True}]
    scenario.delete(server)
    scenario.wait_until_deleted("volume", "volume", data)
