"""What users and operators do with volumes by the stock client: one long session, a command at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Client, Cloud
from tests.support.session import PATIENCE, Session


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("volumes") / "data", "--hosts", "1") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Session]:
    with Session(openstack, cloud, tmp_path, OS_VOLUME_API_VERSION="3.71") as opened:
        yield opened


class Story:
    """What is done, and how things are then."""

    def __init__(self, cloud: Cloud, session: Session) -> None:
        self.cloud = cloud
        self.session = session
        self.admin: Client = cloud.client("kilonova", version="3.71")
        self.do, self.ask = session.do, session.ask

    def make(self, command: str, noun: str = "volume") -> dict[str, Any]:
        """What it made, once it is there."""
        made: dict[str, Any] = self.ask(command)
        self.wait(noun, made["id"])
        return made

    def act(self, command: str, volume_id: str) -> None:
        """Something that shows nothing, and is over once the volume is available again."""
        self.do(command)
        self.ask(f"volume show {volume_id}")  # the client is done with it when it answers this
        self.wait("volume", volume_id)

    def wait(self, noun: str, ident: str, status: str = "available") -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            shown: dict[str, Any] = self.admin.get("volume", f"/{noun}s/{ident}").json()[noun]
            if shown["status"] == status:
                return shown
            assert time.monotonic() < until, (shown, self.session.complaints.read_text())
            time.sleep(0.02)

    def drop(self, command: str, noun: str, ident: str) -> None:
        self.do(f"{command} {ident}")
        until = time.monotonic() + PATIENCE
        while self.admin.get("volume", f"/{noun}s/{ident}").status != 404:
            assert time.monotonic() < until, self.session.complaints.read_text()
            time.sleep(0.02)

    def content(self, volume_id: str) -> bytes:
        (file,) = (self.cloud.data / "volumes").glob(f"{volume_id}.*")
        with file.open("rb") as opened:
            return opened.read(8)


def test_volumes_are_used_in_every_way(cloud: Cloud, session: Session) -> None:
    story = Story(cloud, session)
    change(story)
    sources(story)
    types(story)
    attachments(story)
    transfers(story)
    messages(story)
    quotas(story)
    operators(story)
    assert story.ask("volume list") == []
    assert session.end() == ""


def change(story: Story) -> None:
    made = story.make("volume create --size 1 --description d --property a=1 blank")
    assert (made["size"], made["type"], made["bootable"]) == (1, "__DEFAULT__", False)
    story.act("volume set --size 2 blank", made["id"])
    story.act("volume set --name renamed --property b=2 --bootable --read-only blank", made["id"])
    shown = story.ask("volume show renamed")
    assert (shown["size"], shown["bootable"], shown["description"]) == (2, True, "d")
    assert shown["properties"] == {"a": "1", "b": "2", "readonly": "True"}
    story.do("volume unset --property a renamed")
    assert "a" not in story.ask("volume show renamed")["properties"]
    (listed,) = story.ask("volume list --status available --long")
    assert (listed["ID"], listed["Name"], listed["Size"]) == (made["id"], "renamed", 2)
    assert story.ask("volume summary")["Total Size"] == 2
    story.drop("volume delete", "volume", made["id"])


def sources(story: Story) -> None:
    """From an image, a snapshot and another volume; back to a snapshot."""
    image = _image(story.admin, b"original")
    root = story.make(f"volume create --size 1 --image {image} root")
    shown = story.ask("volume show root")
    assert (shown["bootable"], shown["volume_image_metadata"]["image_id"]) == (True, image)
    snapshot = story.make("volume snapshot create --volume root --property k=v first", "snapshot")
    story.do("volume snapshot set --name renamed --property l=w first")
    (listed,) = story.ask("volume snapshot list")
    assert (listed["ID"], listed["Name"], listed["Size"]) == (snapshot["id"], "renamed", 1)
    assert story.ask("volume snapshot show renamed")["properties"] == {"k": "v", "l": "w"}
    copies = [
        story.make("volume create --snapshot renamed from-snapshot"),
        story.make("volume create --source root --size 2 from-volume"),
    ]
    assert [each["size"] for each in copies] == [1, 2]
    assert [story.content(each["id"]) for each in (root, *copies)] == [b"original"] * 3
    story.act("volume revert renamed", root["id"])
    story.drop("volume snapshot delete", "snapshot", snapshot["id"])
    for each in (root, *copies):
        story.drop("volume delete", "volume", each["id"])


def types(story: Story) -> None:
    made = story.ask("volume type create --private --project demo --multiattach --property rack=7 shared")
    assert (made["is_public"], made["properties"]) == (False, {"multiattach": "<is> True", "rack": "7"})
    story.do("volume type set --description d --property rack=8 shared")
    shown = story.ask("volume type show shared")
    demo = story.cloud.client("kilonova-demo").project_id
    assert (shown["description"], shown["properties"]["rack"]) == ("d", "8")
    assert shown["access_project_ids"] == [demo]
    story.do("volume type unset --property rack --project demo shared")
    assert story.ask("volume type show shared")["properties"] == {"multiattach": "<is> True"}
    assert [each["Name"] for each in story.ask("volume type list --private")] == ["shared"]
    assert [each["Name"] for each in story.ask("volume type list --default")] == ["__DEFAULT__"]
    volume = story.make("volume create --size 1 --type shared together")
    assert volume["multiattach"] is True
    story.do("volume set --type __DEFAULT__ together")
    assert story.ask("volume show together")["type"] == "__DEFAULT__"
    story.drop("volume delete", "volume", volume["id"])
    story.do("volume type delete shared")
    assert [each["Name"] for each in story.ask("volume type list --private")] == []


def attachments(story: Story) -> None:
    volume = story.make("volume create --size 1 attached")
    compute = story.cloud.client("kilonova")
    server = compute.boot()
    compute.wait(server, status="ACTIVE")
    made = story.ask(f"volume attachment create --server {server} attached")
    assert (made["Status"], story.wait("volume", volume["id"], "reserved")["id"]) == ("reserved", volume["id"])
    connected = story.ask(f"volume attachment set --host box --mountpoint /dev/vdb {made['ID']}")
    assert Path(connected["Properties"]["device_path"]).is_file()
    story.do(f"volume attachment complete {made['ID']}")
    assert story.ask(f"volume attachment show {made['ID']}")["Status"] == "attached"
    (listed,) = story.ask(f"volume attachment list --volume-id {volume['id']}")
    assert (listed["ID"], listed["Server ID"]) == (made["ID"], server)
    assert story.ask("volume show attached")["attachments"][0]["device"] == "/dev/vdb"
    story.act(f"volume attachment delete {made['ID']}", volume["id"])
    story.drop("volume delete", "volume", volume["id"])
    compute.delete("compute", f"/servers/{server}")


def transfers(story: Story) -> None:
    volume = story.make("volume create --size 1 gift")
    made = story.ask("volume transfer request create --name offer gift")
    assert [each["ID"] for each in story.ask("volume transfer request list")] == [made["id"]]
    assert story.ask("volume transfer request show offer")["volume_id"] == volume["id"]
    story.act(f"volume transfer request delete {made['id']}", volume["id"])
    story.drop("volume delete", "volume", volume["id"])

    demo = story.cloud.client("kilonova-demo", version="3.71")
    body = {"volume": {"size": 1, "name": "theirs"}}
    theirs = demo.post("volume", "/volumes", body).json()["volume"]["id"]
    story.wait("volume", theirs)
    offered = demo.post("volume", "/volume-transfers", {"transfer": {"volume_id": theirs}}).json()["transfer"]
    taken = story.ask(f"volume transfer request accept --auth-key {offered['auth_key']} {offered['id']}")
    assert taken["volume_id"] == theirs
    assert [each["Name"] for each in story.ask("volume list")] == ["theirs"]
    story.drop("volume delete", "volume", theirs)


def messages(story: Story) -> None:
    """A volume that failed says why."""
    story.ask("volume type create --property vendor_name=Nobody odd")
    made = story.ask("volume create --size 1 --type odd impossible")
    story.wait("volume", made["id"], "error")
    (listed,) = story.ask("volume message list")
    assert (listed["Resource Type"], listed["Resource UUID"]) == ("VOLUME", made["id"])
    assert "there is none of the kind that type odd asks for" in listed["User Message"]
    # Of what is shown this client reads the id alone: it looks for a key that no volume service has.
    assert story.ask(f"volume message show {listed['ID']}")["ID"] == listed["ID"]
    assert story.ask("volume message list --project demo") == []
    assert len(story.ask("volume message list --project admin --limit 1")) == 1
    story.do(f"volume message delete {listed['ID']}")
    assert story.ask("volume message list") == []
    story.drop("volume delete", "volume", made["id"])
    story.do("volume type delete odd")


def quotas(story: Story) -> None:
    story.do("quota set --volumes 3 --gigabytes 30 --snapshots 2 demo")
    story.do("quota set --volumes 1 --volume-type __DEFAULT__ demo")
    shown = {each["Resource"]: each["Limit"] for each in story.ask("quota show --volume demo")}
    assert [shown[name] for name in ("volumes", "gigabytes", "snapshots", "backups")] == [3, 30, 2, 10]
    assert shown["volumes___DEFAULT__"] == 1
    story.do("quota delete --volume demo")
    shown = {each["Resource"]: each["Limit"] for each in story.ask("quota show --volume demo")}
    assert (shown["volumes"], shown["volumes___DEFAULT__"]) == (10, -1)
    limits = {each["Name"]: each["Value"] for each in story.ask("limits show --absolute")}
    assert limits["max_total_volumes"] == 10


def operators(story: Story) -> None:
    services = story.ask("volume service list")
    assert [(each["Binary"], each["State"]) for each in services] == [
        ("cinder-scheduler", "up"),
        ("cinder-volume", "up"),
    ]
    story.do("volume service set --disable --disable-reason disks kilonova@files cinder-volume")
    (part,) = story.ask("volume service list --service cinder-volume --long")
    assert (part["Status"], part["Disabled Reason"]) == ("disabled", "disks")
    story.do("volume service set --enable kilonova@files cinder-volume")
    assert story.ask("volume service list --service cinder-volume")[0]["Status"] == "enabled"
    assert [each["Name"] for each in story.ask("volume backend pool list")] == ["kilonova@files#files"]
    assert len(story.ask("volume backend capability show kilonova@files")) > 0
    assert [each["Zone Name"] for each in story.ask("availability zone list --volume")] == ["nova"]
    assert "os-volume-transfer" in [each["Alias"] for each in story.ask("extension list --volume")]


def _image(client: Client, content: bytes) -> str:
    body = {"name": "bytes", "disk_format": "raw", "container_format": "bare"}
    image: str = client.post("image", "/images", body).json()["id"]
    assert client.request("PUT", "image", f"/images/{image}/file", content=content).status == 204
    return image
