"""What else can be done to a server, by the stock client: one long session, a command at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Cloud
from tests.support.session import PATIENCE, Session


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    environ = {"KILONOVA_COMPUTE__RECLAIM_SECONDS": "3600"}
    with Cloud(tmp_path_factory.mktemp("actions") / "data", "--hosts", "1", environ=environ) as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Session]:
    with Session(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.96") as opened:
        yield opened


def test_a_server_is_used_in_every_way(cloud: Cloud, session: Session) -> None:
    admin = cloud.client("kilonova", version="2.96")
    server_id = admin.boot("web")

    def become(status: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            shown: dict[str, Any] = admin.get("compute", f"/servers/{server_id}").json()["server"]
            if (shown["status"], shown["OS-EXT-STS:task_state"]) == (status, None):
                return shown
            assert time.monotonic() < until, (status, shown, session.complaints.read_text())
            time.sleep(0.02)

    become("ACTIVE")
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
        session.do(f"server {command} {server_id}")
        shown = become(status)
        if command.startswith("lock"):
            until = time.monotonic() + PATIENCE
            while not shown["locked"] and time.monotonic() < until:
                shown = become(status)
            assert shown["locked_reason"] == "mine"
    assert [one["Name"] for one in session.ask("server list --locked")] == ["web"]
    session.do(f"server unlock {server_id}")
    session.do(f"server dump create {server_id}")
    made = session.ask(f"server backup create --name saved --type daily --rotate 1 {server_id}")
    assert made["name"] == "saved"
    become("ACTIVE")
    session.do(f"server delete {server_id}")
    become("SOFT_DELETED")
    assert session.ask("server list") == []
    session.do(f"server restore {server_id}")
    become("ACTIVE")
    told = [each["Action"] for each in session.ask(f"server event list {server_id}")]
    assert told == [
        *("restore", "delete", "createBackup", "trigger_crash_dump", "unlock", "lock", "resetState", "resetState"),
        *("unrescue", "rescue", "unrescue", "rescue", "resume", "suspend", "unpause", "pause", "create"),
    ]
    (used,) = session.ask("usage list")
    assert [one["name"] for one in used["Servers"]] == ["web"]
    assert used["CPU Hours"] < 1
    session.do(f"server delete --force {server_id}")
    until = time.monotonic() + PATIENCE
    while admin.get("compute", f"/servers/{server_id}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert session.end() == ""
