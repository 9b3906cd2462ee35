"""`kill -9` of workers and API during boots in groups, on hosts with nested providers and with a shared disk."""

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
from tests.faults.test_kill import SETTLE_SECONDS, SHORT_LEASE, SLOW_HOSTS, UNLIMITED_QUOTA
from tests.support.cloud_process import Client, CloudProcess, kilonova

ENVIRON = {**UNLIMITED_QUOTA, **SHORT_LEASE, **SLOW_HOSTS, "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "-1"}
KILLS = 6 * ROUNDS
USERS = 4
# The servers exceed the capacity, so that the last ones are refused.
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
CELL_SPECS = {
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources1:VCPU": "4",
    "resources1:MEMORY_MB": "1024",
    "trait1:HW_NUMA_ROOT": "required",
}
POLICIES = ("affinity", "affinity", "anti-affinity", "soft-affinity")


class User:
    """Creates and deletes servers until stopped. The result of a request to a killed process is unknown."""

    def __init__(self, cloud: CloudProcess, seed: int, image: str, groups: list[str]) -> None:
        self.cloud = cloud
        self.rng = random.Random(seed)
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
        if self.alive and self.rng.random() < 0.25:
            server_id = self.rng.choice(sorted(self.alive))
            self.alive.discard(server_id)
            if client.delete("compute", f"/servers/{server_id}").status == 204:
                self.deleted.add(server_id)
            return
        flavor = self.rng.choice(("cell", "1"))
        server = {"name": "x", "flavorRef": flavor, "imageRef": self.image, "networks": "none"}
        hints = {"os:scheduler_hints": {"group": self.rng.choice(self.groups)}} if self.rng.random() < 0.5 else {}
        answer = client.post("compute", "/servers", {"server": server, **hints})
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_groups_and_allocations_survive_kills(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 100000))
    print(f"KILL_SEED={seed}")
    shape = tmp_path / "shape.toml"
    shape.write_text(SHAPE)
    data, database = tmp_path / "data", ("--database", empty_url)
    worker = (*database, "--host-shape", str(shape))
    with (
        CloudProcess(data, *database, command=("api",), environ=ENVIRON) as api,
        CloudProcess(data, *worker, command=("worker",), environ=ENVIRON) as first,
        CloudProcess(data, *worker, command=("worker",), environ=ENVIRON) as second,
    ):
        client = api.client("kilonova", version="2.96")
        groups = _create_flavor_and_groups(client)
        image = client.get("image", "/images").json()["images"][0]["id"]
        users = [User(api, seed + number, image, groups) for number in range(USERS)]
        _kill_at_random(users, [first, second, first, second, api], random.Random(seed))
        servers = _wait_until_idle(api)
        found = {server["id"]: server for server in servers}
        for user in users:
            assert user.alive <= found.keys(), "servers of acknowledged creates exist"
            assert not user.deleted & found.keys(), "servers of acknowledged deletes do not exist"
        assert {server["status"] for server in servers} <= {"ACTIVE", "ERROR"}
        faults = [server["fault"]["message"] for server in servers if server["status"] == "ERROR"]
        assert all(fault.startswith("No valid host was found: 6 hosts: ") for fault in faults), faults
        _check_groups(api, groups, found)
        _run_doctor(data, empty_url)
        client = api.client("kilonova", version="2.96")
        for server_id in found:
            assert client.delete("compute", f"/servers/{server_id}").status == 204
        assert _wait_until_idle(api, empty=True) == []
        assert _usages(client) == {}
        _run_doctor(data, empty_url)


def _create_flavor_and_groups(client: Client) -> list[str]:
    flavor = {"name": "cell", "id": "cell", "vcpus": 4, "ram": 1024, "disk": 1}
    assert client.post("compute", "/flavors", {"flavor": flavor}).status == 200
    specs = client.post("compute", "/flavors/cell/os-extra_specs", {"extra_specs": CELL_SPECS})
    assert specs.status == 200, specs.body
    bodies = [{"server_group": {"name": policy, "policy": policy}} for policy in POLICIES]
    return [client.post("compute", "/os-server-groups", body).json()["server_group"]["id"] for body in bodies]


def _kill_at_random(users: list[User], victims: list[CloudProcess], rng: random.Random) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=user.work, args=(stop,)) for user in users]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.1, 0.8))
            victim = rng.choice(victims)
            victim.kill()
            time.sleep(rng.choice((0.0, 0.5)))
            victim.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _wait_until_idle(api: CloudProcess, *, empty: bool = False) -> list[dict[str, Any]]:
    """Return all servers, page by page, once none has a task state; with `empty` once there are none."""
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


def _check_groups(api: CloudProcess, groups: list[str], found: dict[str, dict[str, Any]]) -> None:
    client = api.client("kilonova", version="2.96")
    for policy, group_id in zip(POLICIES, groups, strict=True):
        members = client.get("compute", f"/os-server-groups/{group_id}").json()["server_group"]["members"]
        hosts = Counter(host for member in members if (host := found[member]["OS-EXT-SRV-ATTR:host"]))
        if policy == "affinity":
            assert len(hosts) <= 1, hosts
        if policy == "anti-affinity":
            assert max(hosts.values(), default=0) <= 1, hosts


def _usages(client: Client) -> dict[str, dict[str, int]]:
    """Return the usages of each provider."""
    usages = {}
    for provider in client.get("placement", "/resource_providers", version="1.39").json()["resource_providers"]:
        path = f"/resource_providers/{provider['uuid']}/usages"
        used = {name: n for name, n in client.get("placement", path, version="1.39").json()["usages"].items() if n}
        if used:
            usages[provider["name"]] = used
    return usages


def _run_doctor(data: Path, url: str) -> None:
    examined = kilonova("doctor", "--data", str(data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr
