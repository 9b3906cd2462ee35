"""Random volume operations on failing hosts under `kill -9`: no attachment or volume is left over."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.move_users import VERSION, HostFaults
from tests.faults.test_random_moves import ENVIRON, WHILE_CHECKING, _act_and_kill, _fetch, _wait_until_idle
from tests.faults.volume_users import VolumeUsers
from tests.support.cloud_process import Client, CloudProcess, kilonova

SERVERS, VOLUMES, HOSTS = 12, 8, 6
KILLS, WORK_SECONDS = 4, 8.0
UNLIMITED_VOLUME_QUOTA = {f"KILONOVA_VOLUME_QUOTA__{name}": "-1" for name in ("VOLUMES", "GIGABYTES")}


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_random_volume_operations_leave_no_attachments(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("VOLUMES_SEED", time.time_ns() % 100000))
    print(f"VOLUMES_SEED={seed}")
    options = ("--hosts", str(HOSTS), "--zones", "east,west", "--database", empty_url)
    with CloudProcess(tmp_path / "data", *options, environ={**ENVIRON, **UNLIMITED_VOLUME_QUOTA}) as cloud:
        faults = HostFaults(cloud.data, random.Random(seed + 1))
        users = VolumeUsers(cloud, faults, random.Random(seed), SERVERS, VOLUMES)
        users.boot_all()
        _wait_until_idle(users.client, empty_url)
        try:
            faults.begin()
            _act_and_kill([cloud], users, random.Random(seed + 2), KILLS, WORK_SECONDS)
        finally:
            faults.end()
            print(sorted(users.answers.items()))
        cloud.environ |= WHILE_CHECKING
        cloud.restart()
        users.clear_forced_down()
        client = cloud.client("kilonova", version=VERSION)
        found = _wait_until_idle(client, empty_url)
        _check_attachments(client, empty_url, found)
        faults.close()
        _run_doctor(cloud, empty_url)
        _delete_all_and_check(client, cloud, empty_url, found)


def _check_attachments(client: Client, url: str, servers: dict[str, dict[str, Any]]) -> None:
    """Compare the attachments of servers and of the volume service."""
    print(Counter(server["status"] for server in servers.values()))
    volumes = _volumes(client)
    print(Counter(volume["status"] for volume in volumes.values()))
    assert {volume["status"] for volume in volumes.values()} <= {"available", "in-use", "reserved"}
    attached = {
        (server["id"], volume["id"])
        for server in servers.values()
        for volume in server["os-extended-volumes:volumes_attached"]
        if server["status"] != "ERROR"
    }
    rows = _fetch(url, "SELECT server_id, volume_id, status, host FROM volume_attachments")
    known = [(row["server_id"], row["volume_id"]) for row in rows]
    assert len(known) == len(set(known)), "one attachment per volume and server"
    assert attached <= set(known)
    for row in rows:
        server = servers[row["server_id"]]
        if server["status"] not in ("ERROR", "SHELVED"):
            assert row["host"] == server["OS-EXT-SRV-ATTR:host"], (row, server)
    assert len({volume for _, volume in known}) == len(known), "no volume is shared"


def _volumes(client: Client) -> dict[str, dict[str, Any]]:
    answer = client.get("volume", "/volumes/detail?all_tenants=1", version="3.60")
    assert answer.status == 200, answer.body
    return {volume["id"]: volume for volume in answer.json()["volumes"]}


def _run_doctor(cloud: CloudProcess, url: str) -> None:
    """Run the doctor on the tables of the volume service, and on its API."""
    by_api = {"KILONOVA_VOLUME__URL": cloud.client("kilonova").endpoints["volume"].removesuffix("/v3")}
    for environ in ({}, by_api):
        examined = kilonova("doctor", "--data", str(cloud.data), "--database", url, environ=environ)
        assert (examined.returncode, examined.stderr) == (0, ""), examined.stdout + examined.stderr


def _delete_all_and_check(client: Client, cloud: CloudProcess, url: str, servers: dict[str, dict[str, Any]]) -> None:
    """Delete all servers and volumes, and check that nothing of them remains."""
    for server_id in servers:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _wait_until_idle(client, url) == {}
    assert _fetch(url, "SELECT * FROM volume_attachments") == []
    remaining = _volumes(client)
    assert {volume["status"] for volume in remaining.values()} <= {"available"}
    for volume_id in remaining:
        assert client.delete("volume", f"/volumes/{volume_id}", version="3.60").status == 202
    _wait_until_idle(client, url)
    assert _volumes(client) == {}
    assert [path for path in (cloud.data / "volumes").rglob("*") if path.is_file()] == []
    _run_doctor(cloud, url)
