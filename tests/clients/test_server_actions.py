"""Other server actions, with the stock client in one session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    environ = {"KILONOVA_COMPUTE__RECLAIM_SECONDS": "3600"}
    with CloudProcess(tmp_path_factory.mktemp("actions") / "data", "--hosts", "1", environ=environ) as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.96") as opened:
        yield opened


def test_server_actions(cloud: CloudProcess, session: OpenstackSession) -> None:
    admin = cloud.client("kilonova", version="2.96")
    server_id = admin.boot("web")

    def wait_for_status(status: str) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            shown: dict[str, Any] = admin.get("compute", f"/servers/{server_id}").json()["server"]
            if (shown["status"], shown["OS-EXT-STS:task_state"]) == (status, None):
                return shown
            assert time.monotonic() < until, (status, shown, session.errors.read_text())
            time.sleep(0.02)

    wait_for_status("ACTIVE")
    for command, status in (
        ("pause", "PAUSED"),
        ("unpause", "ACTIVE"),
        ("suspend", "SUSPENDED"),
        ("resume", "ACTIVE"),
        ("rescue", "RESCUE"),
        ("unrescue", "ACTIVE"),
        ("rescue --image cirros-sim --password secret", "RESCUE"),
        ("unrescue", "ACTIVE"),
        ("set --auto-approve --state error", "ERROR"),
        ("set --auto-approve --state active", "ACTIVE"),
        ("lock --reason mine", "ACTIVE"),
    ):
        session.send(f"server {command} {server_id}")
        shown = wait_for_status(status)
        if command.startswith("lock"):
            until = time.monotonic() + TIMEOUT_SECONDS
            while not shown["locked"] and time.monotonic() < until:
                shown = wait_for_status(status)
            assert shown["locked_reason"] == "mine"
    assert [server["Name"] for server in session.run_json("server list --locked")] == ["web"]
    session.send(f"server unlock {server_id}")
    session.send(f"server dump create {server_id}")
    created = session.run_json(f"server backup create --name saved --type daily --rotate 1 {server_id}")
    assert created["name"] == "saved"
    wait_for_status("ACTIVE")
    session.send(f"server delete {server_id}")
    wait_for_status("SOFT_DELETED")
    assert session.run_json("server list") == []
    session.send(f"server restore {server_id}")
    wait_for_status("ACTIVE")
    actions = [each["Action"] for each in session.run_json(f"server event list {server_id}")]
    assert actions == [
        *("restore", "delete", "createBackup", "trigger_crash_dump", "unlock", "lock", "resetState", "resetState"),
        *("unrescue", "rescue", "unrescue", "rescue", "resume", "suspend", "unpause", "pause", "create"),
    ]
    (used,) = session.run_json("usage list")
    assert [server["name"] for server in used["Servers"]] == ["web"]
    assert used["CPU Hours"] < 1
    session.send(f"server delete --force {server_id}")
    until = time.monotonic() + TIMEOUT_SECONDS
    while admin.get("compute", f"/servers/{server_id}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert session.close() == ""
