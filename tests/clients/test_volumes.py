"""Volumes with the stock client, for users and operators, in one session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import Client, CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("volumes") / "data", "--hosts", "1") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(openstack, cloud, tmp_path, OS_VOLUME_API_VERSION="3.71") as opened:
        yield opened


class Scenario:
    """Runs commands, and waits for states."""

    def __init__(self, cloud: CloudProcess, session: OpenstackSession) -> None:
        self.cloud = cloud
        self.session = session
        self.admin: Client = cloud.client("kilonova", version="3.71")
        self.send, self.run_json = session.send, session.run_json

    def create(self, command: str, resource: str = "volume") -> dict[str, Any]:
        """Run a create command, wait until the resource is available, and return the output."""
        created: dict[str, Any] = self.run_json(command)
        self.wait(resource, created["id"])
        return created

    def run_and_wait(self, command: str, volume_id: str) -> None:
        """Run a command without output, and wait until the volume is available again."""
        self.send(command)
        self.run_json(f"volume show {volume_id}")  # this command returns after the previous one has finished
        self.wait("volume", volume_id)

    def wait(self, resource: str, resource_id: str, status: str = "available") -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            shown: dict[str, Any] = self.admin.get("volume", f"/{resource}s/{resource_id}").json()[resource]
            if shown["status"] == status:
                return shown
            assert time.monotonic() < until, (shown, self.session.errors.read_text())
            time.sleep(0.02)

    def delete_and_wait(self, command: str, resource: str, resource_id: str) -> None:
        self.send(f"{command} {resource_id}")
        until = time.monotonic() + TIMEOUT_SECONDS
        while self.admin.get("volume", f"/{resource}s/{resource_id}").status != 404:
            assert time.monotonic() < until, self.session.errors.read_text()
            time.sleep(0.02)

    def read_content(self, volume_id: str) -> bytes:
        (file,) = (self.cloud.data / "volumes").glob(f"{volume_id}.*")
        with file.open("rb") as opened:
            return opened.read(8)


def test_volume_commands(cloud: CloudProcess, session: OpenstackSession) -> None:
    scenario = Scenario(cloud, session)
    check_update(scenario)
    check_sources(scenario)
    check_types(scenario)
    check_attachments(scenario)
    check_transfers(scenario)
    check_messages(scenario)
    check_quotas(scenario)
    check_operator_commands(scenario)
    assert scenario.run_json("volume list") == []
    assert session.close() == ""


def check_update(scenario: Scenario) -> None:
    created = scenario.create("volume create --size 1 --description d --property a=1 blank")
    assert (created["size"], created["type"], created["bootable"]) == (1, "__DEFAULT__", False)
    scenario.run_and_wait("volume set --size 2 blank", created["id"])
    scenario.run_and_wait("volume set --name renamed --property b=2 --bootable --read-only blank", created["id"])
    shown = scenario.run_json("volume show renamed")
    assert (shown["size"], shown["bootable"], shown["description"]) == (2, True, "d")
    assert shown["properties"] == {"a": "1", "b": "2", "readonly": "True"}
    scenario.send("volume unset --property a renamed")
    assert "a" not in scenario.run_json("volume show renamed")["properties"]
    (listed,) = scenario.run_json("volume list --status available --long")
    assert (listed["ID"], listed["Name"], listed["Size"]) == (created["id"], "renamed", 2)
    assert scenario.run_json("volume summary")["Total Size"] == 2
    scenario.delete_and_wait("volume delete", "volume", created["id"])


def check_sources(scenario: Scenario) -> None:
    """Volumes from an image, a snapshot and a volume; revert to a snapshot."""
    image = _image(scenario.admin, b"original")
    root = scenario.create(f"volume create --size 1 --image {image} root")
    shown = scenario.run_json("volume show root")
    assert (shown["bootable"], shown["volume_image_metadata"]["image_id"]) == (True, image)
    snapshot = scenario.create("volume snapshot create --volume root --property k=v first", "snapshot")
    scenario.send("volume snapshot set --name renamed --property l=w first")
    (listed,) = scenario.run_json("volume snapshot list")
    assert (listed["ID"], listed["Name"], listed["Size"]) == (snapshot["id"], "renamed", 1)
    assert scenario.run_json("volume snapshot show renamed")["properties"] == {"k": "v", "l": "w"}
    copies = [
        scenario.create("volume create --snapshot renamed from-snapshot"),
        scenario.create("volume create --source root --size 2 from-volume"),
    ]
    assert [each["size"] for each in copies] == [1, 2]
    assert [scenario.read_content(each["id"]) for each in (root, *copies)] == [b"original"] * 3
    scenario.run_and_wait("volume revert renamed", root["id"])
    scenario.delete_and_wait("volume snapshot delete", "snapshot", snapshot["id"])
    for each in (root, *copies):
        scenario.delete_and_wait("volume delete", "volume", each["id"])


def check_types(scenario: Scenario) -> None:
    created = scenario.run_json("volume type create --private --project demo --multiattach --property rack=7 shared")
    assert (created["is_public"], created["properties"]) == (False, {"multiattach": "<is> True", "rack": "7"})
    scenario.send("volume type set --description d --property rack=8 shared")
    shown = scenario.run_json("volume type show shared")
    demo = scenario.cloud.client("kilonova-demo").project_id
    assert (shown["description"], shown["properties"]["rack"]) == ("d", "8")
    assert shown["access_project_ids"] == [demo]
    scenario.send("volume type unset --property rack --project demo shared")
    assert scenario.run_json("volume type show shared")["properties"] == {"multiattach": "<is> True"}
    assert [each["Name"] for each in scenario.run_json("volume type list --private")] == ["shared"]
    assert [each["Name"] for each in scenario.run_json("volume type list --default")] == ["__DEFAULT__"]
    volume = scenario.create("volume create --size 1 --type shared multi")
    assert volume["multiattach"] is True
    scenario.send("volume set --type __DEFAULT__ multi")
    assert scenario.run_json("volume show multi")["type"] == "__DEFAULT__"
    scenario.delete_and_wait("volume delete", "volume", volume["id"])
    scenario.send("volume type delete shared")
    assert [each["Name"] for each in scenario.run_json("volume type list --private")] == []


def check_attachments(scenario: Scenario) -> None:
    volume = scenario.create("volume create --size 1 attached")
    compute = scenario.cloud.client("kilonova")
    server = compute.boot()
    compute.wait(server, status="ACTIVE")
    created = scenario.run_json(f"volume attachment create --server {server} attached")
    assert (created["Status"], scenario.wait("volume", volume["id"], "reserved")["id"]) == ("reserved", volume["id"])
    connected = scenario.run_json(f"volume attachment set --host box --mountpoint /dev/vdb {created['ID']}")
    assert Path(connected["Properties"]["device_path"]).is_file()
    scenario.send(f"volume attachment complete {created['ID']}")
    assert scenario.run_json(f"volume attachment show {created['ID']}")["Status"] == "attached"
    (listed,) = scenario.run_json(f"volume attachment list --volume-id {volume['id']}")
    assert (listed["ID"], listed["Server ID"]) == (created["ID"], server)
    assert scenario.run_json("volume show attached")["attachments"][0]["device"] == "/dev/vdb"
    scenario.run_and_wait(f"volume attachment delete {created['ID']}", volume["id"])
    scenario.delete_and_wait("volume delete", "volume", volume["id"])
    compute.delete("compute", f"/servers/{server}")


def check_transfers(scenario: Scenario) -> None:
    volume = scenario.create("volume create --size 1 gift")
    created = scenario.run_json("volume transfer request create --name offer gift")
    assert [each["ID"] for each in scenario.run_json("volume transfer request list")] == [created["id"]]
    assert scenario.run_json("volume transfer request show offer")["volume_id"] == volume["id"]
    scenario.run_and_wait(f"volume transfer request delete {created['id']}", volume["id"])
    scenario.delete_and_wait("volume delete", "volume", volume["id"])

    demo = scenario.cloud.client("kilonova-demo", version="3.71")
    body = {"volume": {"size": 1, "name": "theirs"}}
    theirs = demo.post("volume", "/volumes", body).json()["volume"]["id"]
    scenario.wait("volume", theirs)
    offered = demo.post("volume", "/volume-transfers", {"transfer": {"volume_id": theirs}}).json()["transfer"]
    accepted = scenario.run_json(f"volume transfer request accept --auth-key {offered['auth_key']} {offered['id']}")
    assert accepted["volume_id"] == theirs
    assert [each["Name"] for each in scenario.run_json("volume list")] == ["theirs"]
    scenario.delete_and_wait("volume delete", "volume", theirs)


def check_messages(scenario: Scenario) -> None:
    """User messages of a failed volume."""
    scenario.run_json("volume type create --property vendor_name=Nobody odd")
    created = scenario.run_json("volume create --size 1 --type odd impossible")
    scenario.wait("volume", created["id"], "error")
    (listed,) = scenario.run_json("volume message list")
    assert (listed["Resource Type"], listed["Resource UUID"]) == ("VOLUME", created["id"])
    assert "no back end meets the extra specs of type odd" in listed["User Message"]
    # The client shows only the id: it reads a key that no volume service has.
    assert scenario.run_json(f"volume message show {listed['ID']}")["ID"] == listed["ID"]
    assert scenario.run_json("volume message list --project demo") == []
    assert len(scenario.run_json("volume message list --project admin --limit 1")) == 1
    scenario.send(f"volume message delete {listed['ID']}")
    assert scenario.run_json("volume message list") == []
    scenario.delete_and_wait("volume delete", "volume", created["id"])
    scenario.send("volume type delete odd")


def check_quotas(scenario: Scenario) -> None:
    scenario.send("quota set --volumes 3 --gigabytes 30 --snapshots 2 demo")
    scenario.send("quota set --volumes 1 --volume-type __DEFAULT__ demo")
    shown = {each["Resource"]: each["Limit"] for each in scenario.run_json("quota show --volume demo")}
    assert [shown[name] for name in ("volumes", "gigabytes", "snapshots", "backups")] == [3, 30, 2, 10]
    assert shown["volumes___DEFAULT__"] == 1
    scenario.send("quota delete --volume demo")
    shown = {each["Resource"]: each["Limit"] for each in scenario.run_json("quota show --volume demo")}
    assert (shown["volumes"], shown["volumes___DEFAULT__"]) == (10, -1)
    limits = {each["Name"]: each["Value"] for each in scenario.run_json("limits show --absolute")}
    assert limits["max_total_volumes"] == 10


def check_operator_commands(scenario: Scenario) -> None:
    services = scenario.run_json("volume service list")
    assert [(each["Binary"], each["State"]) for each in services] == [
        ("cinder-scheduler", "up"),
        ("cinder-volume", "up"),
    ]
    scenario.send("volume service set --disable --disable-reason disks kilonova@files cinder-volume")
    (service,) = scenario.run_json("volume service list --service cinder-volume --long")
    assert (service["Status"], service["Disabled Reason"]) == ("disabled", "disks")
    scenario.send("volume service set --enable kilonova@files cinder-volume")
    assert scenario.run_json("volume service list --service cinder-volume")[0]["Status"] == "enabled"
    assert [each["Name"] for each in scenario.run_json("volume backend pool list")] == ["kilonova@files#files"]
    assert len(scenario.run_json("volume backend capability show kilonova@files")) > 0
    assert [each["Zone Name"] for each in scenario.run_json("availability zone list --volume")] == ["nova"]
    assert "os-volume-transfer" in [each["Alias"] for each in scenario.run_json("extension list --volume")]


def _image(client: Client, content: bytes) -> str:
    body = {"name": "bytes", "disk_format": "raw", "container_format": "bare"}
    image: str = client.post("image", "/images", body).json()["id"]
    assert client.request("PUT", "image", f"/images/{image}/file", content=content).status == 204
    return image
