"""`kill -9` of the process at random moments during mixed operations loses no acknowledged request."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faults.histories import ROUNDS
from tests.support.cloud_process import Client, CloudProcess, kilonova

OPERATIONS = 200 * ROUNDS
KILLS = 8 * ROUNDS
WORK_SECONDS, SETTLE_SECONDS = 300.0 * ROUNDS, 200.0
UNLIMITED_QUOTA = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}
SHORT_LEASE = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2", "KILONOVA_OPERATIONS__POLL_SECONDS": "0.5"}
SLOW_HOSTS = {"KILONOVA_SIM__LATENCY__SPAWN": "0.03", "KILONOVA_SIM__LATENCY__DESTROY": "0.02"}
HOSTS = 5
# Limit of the group per host. Once the group is full, the next server finds no host.
MAX_SERVERS_PER_HOST = 3
CHANGED_HOSTS = ("sim-001", "sim-002")
ACTIONS: dict[str, Any] = {"os-start": None, "os-stop": None, "reboot": {"type": "HARD"}}


class Users:
    """Sends mixed requests and records the acknowledged ones. The result of an interrupted request is unknown."""

    def __init__(self, cloud: CloudProcess, rng: random.Random) -> None:
        self.cloud = cloud
        self.rng = rng
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        self.acknowledged = 0
        self.client = cloud.client("kilonova", version="2.96")
        self.image = self.client.get("image", "/images").json()["images"][0]["id"]
        rules = {"max_server_per_host": MAX_SERVERS_PER_HOST}
        group = {"server_group": {"name": "spread", "policy": "anti-affinity", "rules": rules}}
        self.group = self.client.post("compute", "/os-server-groups", group).json()["server_group"]["id"]
        self.aggregate = self.client.post("compute", "/os-aggregates", {"aggregate": {"name": "rack"}}).json()[
            "aggregate"
        ]["id"]

    def act(self) -> None:
        try:
            self._act()
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            time.sleep(0.02)
            if self.cloud.running:
                self.client = _reconnect(self.cloud) or self.client

    def _act(self) -> None:
        known = sorted(self.alive)
        request = self.rng.choices(["create", "delete", "host", "power"], [5, 2, 2, 5])[0]
        if request == "create" or not known:
            self._create()
        elif request == "host":
            self._change_host()
        elif request == "delete":
            self._delete(self.rng.choice(known))
        else:
            name = self.rng.choice(sorted(ACTIONS))
            path = f"/servers/{self.rng.choice(known)}/action"
            self.acknowledged += self.client.post("compute", path, {name: ACTIONS[name]}).status == 202

    def _create(self) -> None:
        server = {"name": "x", "flavorRef": "1", "imageRef": self.image, "networks": "auto"}
        hints = {"os:scheduler_hints": {"group": self.group}} if self.rng.random() < 0.3 else {}
        answer = self.client.post("compute", "/servers", {"server": server, **hints})
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])
            self.acknowledged += 1

    def _change_host(self) -> None:
        """Change state that placement mirrors: disabled services and aggregates."""
        host = self.rng.choice(CHANGED_HOSTS)
        if self.rng.random() < 0.5:
            path = f"/os-services/{self.rng.choice(('enable', 'disable'))}"
            self.client.put("compute", path, {"host": host, "binary": "nova-compute"}, version="2.1")
        else:
            action = self.rng.choice(("add_host", "remove_host"))
            self.client.post("compute", f"/os-aggregates/{self.aggregate}/action", {action: {"host": host}})

    def _delete(self, server_id: str) -> None:
        self.alive.discard(server_id)  # the result is unknown if a kill precedes the response
        if self.client.delete("compute", f"/servers/{server_id}").status == 204:
            self.deleted.add(server_id)
            self.acknowledged += 1
        else:
            self.alive.add(server_id)


def _reconnect(cloud: CloudProcess) -> Client | None:
    try:
        return cloud.client("kilonova", version="2.96")
    except (OSError, ValueError):
        return None


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_acknowledged_requests_survive_kills(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 100000))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    options = ["--hosts", str(HOSTS), "--database", empty_url]
    with CloudProcess(tmp_path / "data", *options, environ={**UNLIMITED_QUOTA, **SHORT_LEASE, **SLOW_HOSTS}) as cloud:
        users = Users(cloud, rng)
        stop, done = threading.Event(), threading.Event()
        killer = threading.Thread(target=_kill, args=(cloud, random.Random(seed + 1), stop, done))
        killer.start()
        until = time.monotonic() + WORK_SECONDS
        try:
            while users.acknowledged < OPERATIONS or not done.is_set():
                users.act()
                assert time.monotonic() < until, f"only {users.acknowledged} requests were acknowledged"
                assert killer.is_alive() or done.is_set(), "the cloud does not start again"
        finally:
            stop.set()
            killer.join()
        if not cloud.running:
            cloud.start()
        servers = _wait_until_idle(cloud)
        assert users.alive <= servers.keys(), "servers of acknowledged creates exist"
        assert not users.deleted & servers.keys(), "servers of acknowledged deletes do not exist"
        for server in servers.values():
            if server["status"] not in ("ACTIVE", "SHUTOFF"):
                assert server["status"] == "ERROR", server
                assert server["fault"]["message"].startswith("No valid host was found: "), server
                assert "anti-affinity" in server["fault"]["message"], server
        examined = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert examined.returncode == 0, examined.stdout + examined.stderr


def _kill(cloud: CloudProcess, rng: random.Random, stop: threading.Event, done: threading.Event) -> None:
    for _ in range(KILLS):
        if stop.wait(rng.uniform(0.1, 0.8)):
            return
        cloud.kill()
        cloud.start()
    done.set()


def _wait_until_idle(cloud: CloudProcess) -> dict[str, dict[str, Any]]:
    """Return all servers once none has a task state."""
    client = cloud.client("kilonova", version="2.96")
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found = client.get("compute", "/servers/detail").json()["servers"]
        busy = [server["id"] for server in found if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return {server["id"]: server for server in found}
        assert time.monotonic() < until, f"stuck: {busy}"
        time.sleep(0.1)
