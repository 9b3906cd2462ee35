"""Attaching and detaching volumes with the stock client, in one session, and with the SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest

from tests.support.cloud_process import Client, CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("attach") / "data", "--hosts", "2") as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(
        openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.100", OS_VOLUME_API_VERSION="3.71"
    ) as opened:
        yield opened


class Scenario:
    """One server and two volumes."""

    def __init__(self, cloud: CloudProcess, session: OpenstackSession) -> None:
        versions = {"compute": "2.104", "volume": "3.71"}
        self.admin: dict[str, Client] = {name: cloud.client("kilonova", version=v) for name, v in versions.items()}
        self.session = session
        self.server = self.admin["compute"].boot("web")
        self.wait_for_server("ACTIVE")
        self.data, self.logs = (
            str(session.run_json(f"volume create --size 1 {name}")["id"]) for name in ("data", "logs")
        )
        for volume_id in (self.data, self.logs):
            self.wait_for_volume(volume_id, "available")

    def wait_for_server(self, status: str) -> None:
        self._wait("compute", "server", self.server, status)

    def wait_for_volume(self, volume_id: str, status: str) -> None:
        self._wait("volume", "volume", volume_id, status)

    def _wait(self, service: str, resource: str, resource_id: str, status: str) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while (shown := self.admin[service].get(service, f"/{resource}s/{resource_id}").json()[resource])[
            "status"
        ] != status:
            assert time.monotonic() < until, (shown, self.session.errors.read_text())
            time.sleep(0.02)

    def send(self, command: str) -> None:
        self.session.send(command.format(self.server))

    def run_json(self, command: str) -> Any:
        return self.session.run_json(command.format(self.server))

    def list_attachments(self) -> list[tuple[str, str, str | None, bool]]:
        rows = self.run_json("server volume list {}")
        return [(row["Volume ID"], row["Device"], row["Tag"], row["Delete On Termination?"]) for row in rows]


def test_attach_and_detach_volumes(cloud: CloudProcess, session: OpenstackSession) -> None:
    scenario = Scenario(cloud, session)
    check_attach(scenario)
    check_update(scenario)
    check_detach(scenario)
    check_shelved_server(scenario)
    actions = [each["Action"] for each in scenario.run_json("server event list {}")]
    assert [each for each in actions if "volume" in each] == [
        *("detach_volume", "attach_volume", "detach_volume"),
        *("attach_volume", "attach_volume"),
    ]
    assert session.close() == ""


def check_attach(scenario: Scenario) -> None:
    shown = scenario.run_json("server add volume --tag files {} data")
    assert (shown["Volume ID"], shown["Device"], shown["Tag"]) == (scenario.data, "/dev/vdb", "files")
    scenario.wait_for_volume(scenario.data, "in-use")
    scenario.run_json("server add volume --device /dev/vdf --enable-delete-on-termination {} logs")
    scenario.wait_for_volume(scenario.logs, "in-use")
    assert scenario.list_attachments() == [
        (scenario.data, "/dev/vdb", "files", False),
        (scenario.logs, "/dev/vdf", None, True),
    ]
    attached = scenario.run_json("volume show data")["attachments"]
    assert [(attachment["server_id"], attachment["device"]) for attachment in attached] == [
        (scenario.server, "/dev/vdb")
    ]
    assert scenario.run_json("server show {}")["volumes_attached"] == [
        {"id": scenario.data, "delete_on_termination": False},
        {"id": scenario.logs, "delete_on_termination": True},
    ]


def check_update(scenario: Scenario) -> None:
    scenario.send("server volume set --delete-on-termination {} data")
    scenario.send("server volume set --preserve-on-termination {} logs")
    assert [delete for *_, delete in scenario.list_attachments()] == [True, False]


def check_detach(scenario: Scenario) -> None:
    scenario.send("server remove volume {} data")
    scenario.wait_for_volume(scenario.data, "available")
    # A volume is available a moment before it leaves the server's list.
    until = time.monotonic() + TIMEOUT_SECONDS
    while (attached := [volume_id for volume_id, *_ in scenario.list_attachments()]) != [scenario.logs]:
        assert time.monotonic() < until, attached


def check_shelved_server(scenario: Scenario) -> None:
    scenario.send("server shelve {}")
    scenario.wait_for_server("SHELVED_OFFLOADED")
    scenario.wait_for_volume(scenario.logs, "reserved")
    scenario.run_json("server add volume {} data")
    scenario.wait_for_volume(scenario.data, "in-use")
    scenario.send("server unshelve {}")
    scenario.wait_for_server("ACTIVE")
    assert sorted(volume_id for volume_id, *_ in scenario.list_attachments()) == sorted([scenario.data, scenario.logs])
    scenario.send("server remove volume {} data")
    scenario.wait_for_volume(scenario.data, "available")


def test_sdk_attaches_and_detaches_volume(cloud: CloudProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(cloud.data / "clouds.yaml"))
    connection: Any = openstack.connect(cloud="kilonova-demo")
    server_id = cloud.client("kilonova-demo").boot("sdk")
    server = connection.compute.wait_for_server(connection.compute.get_server(server_id), interval=0.1)
    volume = connection.block_storage.create_volume(size=1, name="sdk")
    wait_for_volume(connection, volume, "available")
    created = connection.compute.create_volume_attachment(server, volume=volume)
    assert created.device == "/dev/vdb"
    wait_for_volume(connection, volume, "in-use")
    (attachment,) = connection.compute.volume_attachments(server)
    assert attachment.volume_id == volume.id
    connection.compute.update_volume_attachment(server, volume.id, delete_on_termination=True)
    assert connection.compute.get_volume_attachment(server, volume.id).delete_on_termination
    connection.compute.delete_volume_attachment(server, volume)
    wait_for_volume(connection, volume, "available")
    until = time.monotonic() + TIMEOUT_SECONDS
    while attachments := list(connection.compute.volume_attachments(server)):
        assert time.monotonic() < until, attachments
        time.sleep(0.02)


def wait_for_volume(connection: Any, volume: Any, status: str) -> None:
    connection.block_storage.wait_for_status(volume, status, interval=0.1, wait=TIMEOUT_SECONDS)
