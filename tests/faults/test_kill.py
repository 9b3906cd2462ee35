"""`kill -9` of the whole process at random moments during mixed operations loses nothing that was acknowledged."""

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
from tests.support.process import Client, Cloud, kilonova

OPERATIONS = 200 * ROUNDS
KILLS = 8 * ROUNDS
WORK_SECONDS, SETTLE_SECONDS = 300.0 * ROUNDS, 200.0
UNLIMITED = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}
QUICK = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2", "KILONOVA_OPERATIONS__SWEEP_SECONDS": "0.5"}
SLOW_HOSTS = {"KILONOVA_SIM__LATENCY__SPAWN": "0.03", "KILONOVA_SIM__LATENCY__DESTROY": "0.02"}
HOSTS = 5
# At most so many servers of the group on one host; when the group is full, the next one finds no host.
PER_HOST = 3
TOGGLED = ("sim-001", "sim-002")
ACTIONS: dict[str, Any] = {"os-start": None, "os-stop": None, "reboot": {"type": "HARD"}}


class Users:
    """Sends mixed requests and keeps what was acknowledged; what a kill interrupts may or may not have happened."""

    def __init__(self, cloud: Cloud, chance: random.Random) -> None:
        self.cloud = cloud
        self.chance = chance
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        self.acknowledged = 0
        self.client = cloud.client("kilonova", version="2.96")
        self.image = self.client.get("image", "/images").json()["images"][0]["id"]
        rules = {"max_server_per_host": PER_HOST}
        group = {"server_group": {"name": "apart", "policy": "anti-affinity", "rules": rules}}
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
                self.client = _again(self.cloud) or self.client

    def _act(self) -> None:
        known = sorted(self.alive)
        what = self.chance.choices(["create", "delete", "host", "power"], [5, 2, 2, 5])[0]
        if what == "create" or not known:
            self._create()
        elif what == "host":
            self._change_host()
        elif what == "delete":
            self._delete(self.chance.choice(known))
        else:
            name = self.chance.choice(sorted(ACTIONS))
            path = f"/servers/{self.chance.choice(known)}/action"
            self.acknowledged += self.client.post("compute", path, {name: ACTIONS[name]}).status == 202

    def _create(self) -> None:
        server = {"name": "x", "flavorRef": "1", "imageRef": self.image, "networks": "auto"}
        hints = {"os:scheduler_hints": {"group": self.group}} if self.chance.random() < 0.3 else {}
        answer = self.client.post("compute", "/servers", {"server": server, **hints})
        if answer.status == 202:
            self.alive.add(answer.json()["server"]["id"])
            self.acknowledged += 1

    def _change_host(self) -> None:
        """What placement has to mirror: who is disabled, and who is in which aggregate."""
        host = self.chance.choice(TOGGLED)
        if self.chance.random() < 0.5:
            path = f"/os-services/{self.chance.choice(('enable', 'disable'))}"
            self.client.put("compute", path, {"host": host, "binary": "nova-compute"}, version="2.1")
        else:
            action = self.chance.choice(("add_host", "remove_host"))
            self.client.post("compute", f"/os-aggregates/{self.aggregate}/action", {action: {"host": host}})

    def _delete(self, server_id: str) -> None:
        self.alive.discard(server_id)  # should the kill come before the answer, nobody can tell
        if self.client.delete("compute", f"/servers/{server_id}").status == 204:
            self.deleted.add(server_id)
            self.acknowledged += 1
        else:
            self.alive.add(server_id)


def _again(cloud: Cloud) -> Client | None:
    try:
        return cloud.client("kilonova", version="2.96")
    except (OSError, ValueError):
        return None


@pytest.mark.parametrize("empty_url", ["sqlite", "postgresql"], indirect=True)
def test_nothing_is_lost(tmp_path: Path, empty_url: str) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 100000))
    print(f"KILL_SEED={seed}")
    chance = random.Random(seed)
    options = ["--hosts", str(HOSTS), "--database", empty_url]
    with Cloud(tmp_path / "data", *options, environ={**UNLIMITED, **QUICK, **SLOW_HOSTS}) as cloud:
        users = Users(cloud, chance)
        stop, done = threading.Event(), threading.Event()
        killer = threading.Thread(target=_kill, args=(cloud, random.Random(seed + 1), stop, done))
        killer.start()
        until = time.monotonic() + WORK_SECONDS
        try:
            while users.acknowledged < OPERATIONS or not done.is_set():
                users.act()
                assert time.monotonic() < until, f"only {users.acknowledged} requests were acknowledged"
                assert killer.is_alive() or done.is_set(), "it does not start again"
        finally:
            stop.set()
            killer.join()
        if not cloud.running:
            cloud.start()
        servers = _settled(cloud)
        assert users.alive <= servers.keys(), "acknowledged creates are there"
        assert not users.deleted & servers.keys(), "acknowledged deletes are done"
        for server in servers.values():
            if server["status"] not in ("ACTIVE", "SHUTOFF"):
                assert server["status"] == "ERROR", server
                assert server["fault"]["message"].startswith("No valid host was found: "), server
                assert "anti-affinity" in server["fault"]["message"], server
        examined = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert examined.returncode == 0, examined.stdout + examined.stderr


def _kill(cloud: Cloud, chance: random.Random, stop: threading.Event, done: threading.Event) -> None:
    for _ in range(KILLS):
        if stop.wait(chance.uniform(0.1, 0.8)):
            return
        cloud.kill()
        cloud.start()
    done.set()


def _settled(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """All servers once nothing is happening to any of them."""
    client = cloud.client("kilonova", version="2.96")
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found = client.get("compute", "/servers/detail").json()["servers"]
        busy = [server["id"] for server in found if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return {server["id"]: server for server in found}
        assert time.monotonic() < until, f"stuck: {busy}"
        time.sleep(0.1)
