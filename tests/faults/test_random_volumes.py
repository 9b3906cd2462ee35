"""Volumes attached, detached, re-imaged, moved and dropped at random, on hosts that fail, under `kill -9`.

In the end nothing of them is left over: no attachment that nobody has, no volume that is on its way for ever.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.moving_users import VERSION, Trouble
from tests.faults.test_random_moves import AT_REST, ENVIRON, _ask, _disturb, _settled
from tests.faults.volume_users import VolumeUsers
from tests.support.process import Client, Cloud, kilonova

SERVERS, VOLUMES, HOSTS = 12, 8, 6
KILLS, SECONDS = 4, 8.0
UNLIMITED = {f"KILONOVA_VOLUME_QUOTA__{name}": "-1" for name in ("VOLUMES", "GIGABYTES")}


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_nothing_is_left_over(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("VOLUMES_SEED", time.time_ns() % 100000))
    print(f"VOLUMES_SEED={seed}")
    options = ("--hosts", str(HOSTS), "--zones", "east,west", "--database", empty_url)
    with Cloud(tmp_path / "data", *options, environ={**ENVIRON, **UNLIMITED}) as cloud:
        trouble = Trouble(cloud.data, random.Random(seed + 1))
        users = VolumeUsers(cloud, trouble, random.Random(seed), SERVERS, VOLUMES)
        users.boot_all()
        _settled(users.client, empty_url)
        try:
            trouble.begin()
            _disturb([cloud], users, random.Random(seed + 2), KILLS, SECONDS)
        finally:
            trouble.end()
            print(sorted(users.answers.items()))
        cloud.environ |= AT_REST
        cloud.restart()
        users.mend()
        client = cloud.client("kilonova", version=VERSION)
        found = _settled(client, empty_url)
        _check(client, empty_url, found)
        trouble.close()
        _examine(cloud, empty_url)
        _remove_all(client, cloud, empty_url, found)


def _check(client: Client, url: str, servers: dict[str, dict[str, Any]]) -> None:
    """By the two APIs: who has which volume."""
    print(Counter(server["status"] for server in servers.values()))
    volumes = _volumes(client)
    print(Counter(volume["status"] for volume in volumes.values()))
    assert {volume["status"] for volume in volumes.values()} <= {"available", "in-use", "reserved"}
    attached = {
        (server["id"], one["id"])
        for server in servers.values()
        for one in server["os-extended-volumes:volumes_attached"]
        if server["status"] != "ERROR"
    }
    rows = _ask(url, "SELECT server_id, volume_id, status, host FROM volume_attachments")
    known = [(row["server_id"], row["volume_id"]) for row in rows]
    assert len(known) == len(set(known)), "one attachment for a volume of a server"
    assert attached <= set(known)
    for row in rows:
        server = servers[row["server_id"]]
        if server["status"] not in ("ERROR", "SHELVED"):
            assert row["host"] == server["OS-EXT-SRV-ATTR:host"], (row, server)
    assert len({volume for _, volume in known}) == len(known), "none of them is shared"


def _volumes(client: Client) -> dict[str, dict[str, Any]]:
    answer = client.get("volume", "/volumes/detail?all_tenants=1", version="3.60")
    assert answer.status == 200, answer.body
    return {volume["id"]: volume for volume in answer.json()["volumes"]}


def _examine(cloud: Cloud, url: str) -> None:
    """Once by the tables of the volume service, once by its API."""
    elsewhere = {"KILONOVA_VOLUME__URL": cloud.client("kilonova").endpoints["volume"].removesuffix("/v3")}
    for environ in ({}, elsewhere):
        examined = kilonova("doctor", "--data", str(cloud.data), "--database", url, environ=environ)
        assert (examined.returncode, examined.stderr) == (0, ""), examined.stdout + examined.stderr


def _remove_all(client: Client, cloud: Cloud, url: str, servers: dict[str, dict[str, Any]]) -> None:
    """What servers have is given back, and what goes with them is gone, also the bytes."""
    for server_id in servers:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _settled(client, url) == {}
    assert _ask(url, "SELECT * FROM volume_attachments") == []
    left = _volumes(client)
    assert {volume["status"] for volume in left.values()} <= {"available"}
    for volume_id in left:
        assert client.delete("volume", f"/volumes/{volume_id}", version="3.60").status == 202
    _settled(client, url)
    assert _volumes(client) == {}
    assert [path for path in (cloud.data / "volumes").rglob("*") if path.is_file()] == []
    _examine(cloud, url)
