"""Servers that boot from volumes, by the stock client: one long session, a command at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Client, Cloud
from tests.support.session import PATIENCE, Session

ATTACHED = "os-extended-volumes:volumes_attached"
BOOT = "server create --flavor m1.tiny --nic none"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("boot") / "data", "--hosts", "2") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Session]:
    with Session(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.104", OS_VOLUME_API_VERSION="3.71") as opened:
        yield opened


class Story:
    """What is booted and deleted, and what the services say of it."""

    def __init__(self, cloud: Cloud, session: Session) -> None:
        versions = {"compute": "2.104", "volume": "3.71"}
        self.admin: dict[str, Client] = {name: cloud.client("kilonova", version=v) for name, v in versions.items()}
        self.session = session
        self.do, self.ask = session.do, session.ask

    def boot(self, how: str) -> dict[str, Any]:
        made = self.ask(f"{BOOT} {how} server")
        return self.wait("compute", "server", made["id"], "ACTIVE")

    def make(self, command: str, noun: str) -> str:
        ident = str(self.ask(command)["id"])
        self.wait("volume", noun, ident, "available")
        return ident

    def volume(self, ident: str, status: str = "in-use") -> dict[str, Any]:
        return self.wait("volume", "volume", ident, status)

    def wait(self, service: str, noun: str, ident: str, status: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            shown: dict[str, Any] = self.admin[service].get(service, f"/{noun}s/{ident}").json()[noun]
            if shown["status"] == status:
                return shown
            assert time.monotonic() < until, (shown, self.session.complaints.read_text())
            time.sleep(0.02)

    def delete(self, server: dict[str, Any]) -> None:
        self.do(f"server delete {server['id']}")
        self.gone("compute", "server", server["id"])

    def gone(self, service: str, noun: str, ident: str) -> None:
        until = time.monotonic() + PATIENCE
        while self.admin[service].get(service, f"/{noun}s/{ident}").status != 404:
            assert time.monotonic() < until, self.session.complaints.read_text()
            time.sleep(0.02)


def test_servers_boot_from_volumes(cloud: Cloud, session: Session) -> None:
    story = Story(cloud, session)
    of_an_image(story)
    of_a_volume_and_a_snapshot(story)
    with_devices(story)
    assert story.ask("server list") == story.ask("volume list") == []
    assert session.end() == ""


def of_an_image(story: Story) -> None:
    server = story.boot("--image cirros-sim --boot-from-volume 2")
    (attached,) = server[ATTACHED]
    root = story.volume(attached["id"])
    assert (root["size"], root["bootable"], server["image"]) == (2, "true", "")
    shown = story.ask(f"server show {server['id']}")
    assert shown["image"] == "N/A (booted from volume)"
    assert shown["volumes_attached"][0]["id"] == attached["id"]
    (listed,) = story.ask("server list")
    assert listed["Image"] == "N/A (booted from volume)"
    (row,) = story.ask(f"server volume list {server['id']}")
    assert row["Volume ID"] == attached["id"]
    rebuilt(story, server["id"], attached["id"])
    story.delete(server)
    # Nobody said that it goes with the server.
    story.volume(attached["id"], "available")
    story.do(f"volume delete {attached['id']}")
    story.gone("volume", "volume", attached["id"])


def rebuilt(story: Story, server_id: str, volume_id: str) -> None:
    """An image of the server, made of a snapshot of its volume; and then another image on the same volume."""
    copied = story.ask(f"server image create --name copy --wait {server_id}")
    assert (copied["status"], copied["properties"]["bdm_v2"]) == ("active", "True")
    (snapshot,) = story.ask("volume snapshot list")
    story.do("image delete copy")
    story.do(f"volume snapshot delete {snapshot['ID']}")
    story.gone("volume", "snapshot", snapshot["ID"])
    admin = story.admin["volume"]
    body = {"name": "other", "disk_format": "raw", "container_format": "bare"}
    image_id = admin.post("image", "/images", body).json()["id"]
    assert admin.request("PUT", "image", f"/images/{image_id}/file", content=b"other" * 1000).status == 204
    asked = story.ask(f"server rebuild --image other --reimage-boot-volume --name again {server_id}")
    assert (asked["status"], asked["name"]) == ("REBUILD", "again")
    story.wait("compute", "server", server_id, "ACTIVE")
    assert story.volume(volume_id)["volume_image_metadata"]["image_id"] == image_id
    story.do("image delete other")


def of_a_volume_and_a_snapshot(story: Story) -> None:
    volume_id = story.make("volume create --image cirros-sim --size 1 root", "volume")
    server = story.boot(f"--volume {volume_id}")
    assert server[ATTACHED] == [{"id": volume_id, "delete_on_termination": False}]
    story.delete(server)
    story.volume(volume_id, "available")
    snapshot_id = story.make("volume snapshot create --volume root copy", "snapshot")
    server = story.boot(f"--snapshot {snapshot_id}")
    (attached,) = server[ATTACHED]
    assert story.volume(attached["id"])["snapshot_id"] == snapshot_id
    story.delete(server)
    story.do(f"volume delete {attached['id']}")
    story.gone("volume", "volume", attached["id"])
    story.do(f"volume snapshot delete {snapshot_id}")
    story.gone("volume", "snapshot", snapshot_id)
    story.do(f"volume delete {volume_id}")
    story.gone("volume", "volume", volume_id)


def with_devices(story: Story) -> None:
    data = story.make("volume create --size 1 data", "volume")
    image_id = story.ask("image show cirros-sim")["id"]
    root = f"uuid={image_id},source_type=image,destination_type=volume,volume_size=1,boot_index=0"
    devices = (
        f"--block-device {root},delete_on_termination=true,tag=root,volume_type=__DEFAULT__",
        f"--block-device uuid={data},source_type=volume,destination_type=volume,disk_bus=scsi,device_type=disk",
        "--block-device source_type=blank,destination_type=volume,volume_size=1,delete_on_termination=true",
    )
    server = story.boot(" ".join(devices))
    assert [one["delete_on_termination"] for one in server[ATTACHED]] == [True, False, True]
    assert server[ATTACHED][1]["id"] == data
    story.delete(server)
    story.volume(data, "available")
    for attached in server[ATTACHED]:
        if attached["delete_on_termination"]:
            story.gone("volume", "volume", attached["id"])
    server = story.boot(f"--image cirros-sim --block-device-mapping vdb={data}:volume::true")
    assert server["image"]["id"] == image_id
    assert server[ATTACHED] == [{"id": data, "delete_on_termination": True}]
    story.delete(server)
    story.gone("volume", "volume", data)
