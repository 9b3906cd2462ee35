"""Volumes come to a server and go, by the stock client: one long session, a command at a time; and by the SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest

from tests.support.process import Client, Cloud
from tests.support.session import PATIENCE, Session


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("attach") / "data", "--hosts", "2") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Session]:
    with Session(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.100", OS_VOLUME_API_VERSION="3.71") as opened:
        yield opened


class Story:
    """One server and two volumes."""

    def __init__(self, cloud: Cloud, session: Session) -> None:
        versions = {"compute": "2.104", "volume": "3.71"}
        self.admin: dict[str, Client] = {name: cloud.client("kilonova", version=v) for name, v in versions.items()}
        self.session = session
        self.server = self.admin["compute"].boot("web")
        self.server_is("ACTIVE")
        self.data, self.logs = (str(session.ask(f"volume create --size 1 {name}")["id"]) for name in ("data", "logs"))
        for volume_id in (self.data, self.logs):
            self.volume_is(volume_id, "available")

    def server_is(self, status: str) -> None:
        self._wait("compute", "server", self.server, status)

    def volume_is(self, volume_id: str, status: str) -> None:
        self._wait("volume", "volume", volume_id, status)

    def _wait(self, service: str, noun: str, ident: str, status: str) -> None:
        until = time.monotonic() + PATIENCE
        while (shown := self.admin[service].get(service, f"/{noun}s/{ident}").json()[noun])["status"] != status:
            assert time.monotonic() < until, (shown, self.session.complaints.read_text())
            time.sleep(0.02)

    def do(self, command: str) -> None:
        self.session.do(command.format(self.server))

    def ask(self, command: str) -> Any:
        return self.session.ask(command.format(self.server))

    def listed(self) -> list[tuple[str, str, str | None, bool]]:
        shown = self.ask("server volume list {}")
        return [(one["Volume ID"], one["Device"], one["Tag"], one["Delete On Termination?"]) for one in shown]


def test_volumes_come_and_go(cloud: Cloud, session: Session) -> None:
    story = Story(cloud, session)
    attach(story)
    change(story)
    detach(story)
    shelved(story)
    told = [each["Action"] for each in story.ask("server event list {}")]
    assert [each for each in told if "volume" in each] == [
        *("detach_volume", "attach_volume", "detach_volume"),
        *("attach_volume", "attach_volume"),
    ]
    assert session.end() == ""


def attach(story: Story) -> None:
    shown = story.ask("server add volume --tag files {} data")
    assert (shown["Volume ID"], shown["Device"], shown["Tag"]) == (story.data, "/dev/vdb", "files")
    story.volume_is(story.data, "in-use")
    story.ask("server add volume --device /dev/vdf --enable-delete-on-termination {} logs")
    story.volume_is(story.logs, "in-use")
    assert story.listed() == [(story.data, "/dev/vdb", "files", False), (story.logs, "/dev/vdf", None, True)]
    attached = story.ask("volume show data")["attachments"]
    assert [(one["server_id"], one["device"]) for one in attached] == [(story.server, "/dev/vdb")]
    assert story.ask("server show {}")["volumes_attached"] == [
        {"id": story.data, "delete_on_termination": False},
        {"id": story.logs, "delete_on_termination": True},
    ]


def change(story: Story) -> None:
    story.do("server volume set --delete-on-termination {} data")
    story.do("server volume set --preserve-on-termination {} logs")
    assert [delete for *_, delete in story.listed()] == [True, False]


def detach(story: Story) -> None:
    story.do("server remove volume {} data")
    story.volume_is(story.data, "available")
    # A volume is free a moment before the server's list says so.
    until = time.monotonic() + PATIENCE
    while (listed := [volume_id for volume_id, *_ in story.listed()]) != [story.logs]:
        assert time.monotonic() < until, listed


def shelved(story: Story) -> None:
    story.do("server shelve {}")
    story.server_is("SHELVED_OFFLOADED")
    story.volume_is(story.logs, "reserved")
    story.ask("server add volume {} data")
    story.volume_is(story.data, "in-use")
    story.do("server unshelve {}")
    story.server_is("ACTIVE")
    assert sorted(volume_id for volume_id, *_ in story.listed()) == sorted([story.data, story.logs])
    story.do("server remove volume {} data")
    story.volume_is(story.data, "available")


def test_the_sdk_attaches_and_detaches(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(cloud.data / "clouds.yaml"))
    connection: Any = openstack.connect(cloud="kilonova-demo")
    server_id = cloud.client("kilonova-demo").boot("sdk")
    server = connection.compute.wait_for_server(connection.compute.get_server(server_id), interval=0.1)
    volume = connection.block_storage.create_volume(size=1, name="sdk")
    volume_is(connection, volume, "available")
    made = connection.compute.create_volume_attachment(server, volume=volume)
    assert made.device == "/dev/vdb"
    volume_is(connection, volume, "in-use")
    (listed,) = connection.compute.volume_attachments(server)
    assert listed.volume_id == volume.id
    connection.compute.update_volume_attachment(server, volume.id, delete_on_termination=True)
    assert connection.compute.get_volume_attachment(server, volume.id).delete_on_termination
    connection.compute.delete_volume_attachment(server, volume)
    volume_is(connection, volume, "available")
    until = time.monotonic() + PATIENCE
    while listed := list(connection.compute.volume_attachments(server)):
        assert time.monotonic() < until, listed
        time.sleep(0.02)


def volume_is(connection: Any, volume: Any, status: str) -> None:
    connection.block_storage.wait_for_status(volume, status, interval=0.1, wait=PATIENCE)
