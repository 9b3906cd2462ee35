"""The audit log of a running cloud."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import orjson

from tests.support.cloud_process import CloudProcess


def events(cloud: CloudProcess, name: str = "audit.log") -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (cloud.data / name).read_bytes().splitlines()]


def test_answered_requests_are_in_the_log_of_a_killed_process(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client()
        server_id = client.boot()
        cloud.kill()
        login, boot = events(cloud)[:2]
        assert stat.S_IMODE((cloud.data / "audit.log").stat().st_mode) == 0o600
        assert (login["action"], login["outcome"]) == ("authenticate", "success")
        assert login["initiator"]["name"] == "demo"
        assert login["initiator"]["address"] == "127.0.0.1"
        assert (boot["action"], boot["outcome"], boot["target"]["id"]) == ("create", "success", server_id)
        assert boot["initiator"]["audit_id"] == login["initiator"]["audit_id"]
        assert boot["target"] == {"type": "compute/servers", "id": server_id, "project_id": client.project_id}


def test_end_of_an_operation_names_its_request(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data") as cloud:
        client = cloud.client()
        server_id = client.boot()
        client.wait(server_id, status="ACTIVE")
        (cloud.data / "audit.log").rename(cloud.data / "audit.log.1")
        assert client.delete("compute", f"/servers/{server_id}").status == 204
        until = time.monotonic() + 60
        while client.get("compute", f"/servers/{server_id}").status != 404 or len(events(cloud)) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        by_action = {event["action"]: event for event in events(cloud, "audit.log.1") + events(cloud)}
        boot, booted = by_action["create"], by_action["finish/boot"]
        assert boot["request_id"] == booted["request_id"]
        assert boot["initiator"]["id"] == booted["initiator"]["id"]
        assert (booted["outcome"], booted["target"]) == ("success", boot["target"])
        assert by_action["delete"]["request_id"] == by_action["finish/delete"]["request_id"]
        assert events(cloud)[0]["action"] == "delete", "the moved file is not written any more"


def test_audit_log_can_be_turned_off(tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", environ={"KILONOVA_AUDIT__ENABLED": "false"}) as cloud:
        cloud.client().boot()
        assert not (cloud.data / "audit.log").exists()
