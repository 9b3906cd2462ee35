"""`kill -9` of workers and of the API amid boots in groups, on hosts that are trees and hosts that share a disk."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.histories import ROUNDS
from tests.faults.test_kill import QUICK, SETTLE_SECONDS, SLOW_HOSTS, UNLIMITED
from tests.support.process import Client, Cloud, kilonova

ENVIRON = {**UNLIMITED, **QUICK, **SLOW_HOSTS, "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "-1"}
KILLS = 6 * ROUNDS
USERS = 4
# More servers than there is room for: the last ones are refused, and none too many.
SHAPE = """
[[shape]]
name = "two-cells"
hosts = 3
inventory = { DISK_GB = 500 }

[[shape.nested]]
name = "NUMA"
count = 2
traits = ["HW_NUMA_ROOT"]
inventory = { VCPU = { total = 8, allocation_ratio = 2.0 }, MEMORY_MB = 16384 }

[[shape]]
name = "diskless"
hosts = 3
inventory = { VCPU = 32, MEMORY_MB = 65536 }

[[sharing]]
name = "san"
shapes = ["diskless"]
inventory = { DISK_GB = 30 }
"""
IN_A_CELL = {
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources1:VCPU": "4",
    "resources1:MEMORY_MB": "1024",
    "trait1:HW_NUMA_ROOT": "required",
}
POLICIES = ("affinity", "affinity", "anti-affinity", "soft-affinity")


class User:
    """Creates and deletes until told to stop; whoever is being killed may or may not have heard it."""

    def __init__(self, cloud: Cloud, seed: int, image: str, groups: list[str]) -> None:
        self.cloud = cloud
        self.chance = random.Random(seed)
        self.image = image
        self.groups = groups
        self.alive: set[str] = set()
        self.deleted: set[str] = set()

    def work(self, stop: threading.Event) -> None:
        client: Client | None = None
        while not stop.is_set():
            try:
                client = client or self.cloud.client("kilonova", version="2.96")
                self._act(client)
                time.sleep(0.03)
            except (OSError, http.client.HTTPException, json.JSONDecodeError, AssertionError):
                client = None
                time.sleep(0.05)

    def _act(self, client: Client) -> None:
        if self.alive and self.chance.random() < 0.25:
            server_id = self.chance.choice(sorted(self.alive))
            self.alive.discard(server_id)
            if client.delete("compute", f"/servers/{server_id}").status == 204:
                self.deleted.add(server_id)
            return
        flavor = self.chance.choice(("cell", "1"))
        server = {"name": "x", "flavorRef": flavor, "imageRef": self.image, "networks": "none"}
        hints = {"os:scheduler_hints": {"group": self.chance.choice(self.groups)}} if self.chance.random() < 0.5 else {}
        answer = client.post("compute", "/servers", {"server": server, **hints})
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_everything_settles(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 100000))
    print(f"KILL_SEED={seed}")
    shape = tmp_path / "shape.toml"
    shape.write_text(SHAPE)
    data, database = tmp_path / "data", ("--database", empty_url)
    worker = (*database, "--host-shape", str(shape))
    with (
        Cloud(data, *database, command=("api",), environ=ENVIRON) as api,
        Cloud(data, *worker, command=("worker",), environ=ENVIRON) as first,
        Cloud(data, *worker, command=("worker",), environ=ENVIRON) as second,
    ):
        client = api.client("kilonova", version="2.96")
        groups = _furnish(client)
        image = client.get("image", "/images").json()["images"][0]["id"]
        users = [User(api, seed + number, image, groups) for number in range(USERS)]
        _disturb(users, [first, second, first, second, api], random.Random(seed))
        servers = _settled(api)
        found = {server["id"]: server for server in servers}
        for user in users:
            assert user.alive <= found.keys(), "acknowledged creates are there"
            assert not user.deleted & found.keys(), "acknowledged deletes are done"
        assert {server["status"] for server in servers} <= {"ACTIVE", "ERROR"}
        faults = [server["fault"]["message"] for server in servers if server["status"] == "ERROR"]
        assert all(fault.startswith("No valid host was found: 6 hosts: ") for fault in faults), faults
        _check_groups(api, groups, found)
        _examine(data, empty_url)
        client = api.client("kilonova", version="2.96")
        for server_id in found:
            assert client.delete("compute", f"/servers/{server_id}").status == 204
        assert _settled(api, empty=True) == []
        assert _usages(client) == {}
        _examine(data, empty_url)


def _furnish(client: Client) -> list[str]:
    flavor = {"name": "cell", "id": "cell", "vcpus": 4, "ram": 1024, "disk": 1}
    assert client.post("compute", "/flavors", {"flavor": flavor}).status == 200
    specs = client.post("compute", "/flavors/cell/os-extra_specs", {"extra_specs": IN_A_CELL})
    assert specs.status == 200, specs.body
    bodies = [{"server_group": {"name": policy, "policy": policy}} for policy in POLICIES]
    return [client.post("compute", "/os-server-groups", body).json()["server_group"]["id"] for body in bodies]


def _disturb(users: list[User], victims: list[Cloud], chance: random.Random) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=user.work, args=(stop,)) for user in users]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 0.8))
            victim = chance.choice(victims)
            victim.kill()
            time.sleep(chance.choice((0.0, 0.5)))
            victim.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _settled(api: Cloud, *, empty: bool = False) -> list[dict[str, Any]]:
    """All servers, page by page, once nothing is happening to any of them; or once there is none."""
    client = api.client("kilonova", version="2.96")
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found: list[dict[str, Any]] = []
        while page := client.get("compute", _page(found)).json()["servers"]:
            found += page
        busy = [server["id"] for server in found if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy and not (empty and found):
            return found
        assert time.monotonic() < until, f"stuck: {busy or found}"
        time.sleep(0.2)


def _page(found: list[dict[str, Any]]) -> str:
    return "/servers/detail" + (f"?marker={found[-1]['id']}" if found else "")


def _check_groups(api: Cloud, groups: list[str], found: dict[str, dict[str, Any]]) -> None:
    client = api.client("kilonova", version="2.96")
    for policy, group_id in zip(POLICIES, groups, strict=True):
        members = client.get("compute", f"/os-server-groups/{group_id}").json()["server_group"]["members"]
        hosts = Counter(host for one in members if (host := found[one]["OS-EXT-SRV-ATTR:host"]))
        if policy == "affinity":
            assert len(hosts) <= 1, hosts
        if policy == "anti-affinity":
            assert max(hosts.values(), default=0) <= 1, hosts


def _usages(client: Client) -> dict[str, dict[str, int]]:
    """What is in use of whom."""
    usages = {}
    for provider in client.get("placement", "/resource_providers", version="1.39").json()["resource_providers"]:
        path = f"/resource_providers/{provider['uuid']}/usages"
        used = {name: n for name, n in client.get("placement", path, version="1.39").json()["usages"].items() if n}
        if used:
            usages[provider["name"]] = used
    return usages


def _examine(data: Path, url: str) -> None:
    examined = kilonova("doctor", "--data", str(data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr
