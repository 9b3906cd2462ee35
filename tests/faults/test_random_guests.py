"""Real guests at random, on hosts whose parts are killed: all settles, agrees, runs once at most, and can go."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.guest_users import VERSION, Breaker, GuestUsers
from tests.faults.histories import ROUNDS
from tests.support.process import kilonova
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import until

from kilonova.store import open_database
from kilonova.volume.exports.daemon import Daemon

FAULTS = ["agent", "libvirt", "control", "nats", "power"]
QUICK = {"compute": {"shutdown_seconds": 1.0}}
SETTLE_SECONDS = 180.0
# Whether a QEMU of the guest runs.
RUNS = {
    "ACTIVE": True,
    "PAUSED": True,
    "RESCUE": True,
    "VERIFY_RESIZE": None,  # as it was before
    "SHUTOFF": False,
    "SUSPENDED": False,
    "SHELVED": False,
    "SHELVED_OFFLOADED": False,
    "ERROR": None,
}


def test_one_process(tmp_path: Path) -> None:
    shared = os.environ.get("GUESTS_SHARED") == "1"
    with real_cloud(tmp_path / "data", shared=shared, more=QUICK) as cloud:
        _use_at_random(cloud, f"sqlite:///{cloud.data / 'kilonova.db'}", FAULTS)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_api_and_workers_apart(tmp_path: Path, empty_url: str) -> None:
    with real_cloud(tmp_path / "data", more=QUICK, apart_on=empty_url) as cloud:
        _use_at_random(cloud, empty_url, ["worker", "worker", "agent", "control"])


def _use_at_random(cloud: RealCloud, url: str, kinds: list[str]) -> None:
    seed = int(os.environ.get("GUESTS_SEED", "1"))
    kinds = os.environ["GUESTS_KINDS"].split(",") if "GUESTS_KINDS" in os.environ else kinds
    print(f"GUESTS_SEED={seed}")
    chance = random.Random(seed)
    users = GuestUsers(cloud, chance, int(os.environ.get("GUESTS_SERVERS", "4")), volumes=2, networks=[_network(cloud)])
    users.boot_all()
    faults = [chance.choice(kinds) for _ in range(int(os.environ.get("GUESTS_FAULTS", "3")) * ROUNDS)]
    _disturb(cloud, users, random.Random(seed + 1), faults)
    found = _settled(cloud, url)
    print(Counter(server["status"] for server in found.values()))
    assert users.alive <= found.keys(), "acknowledged creates are there"
    assert {found[one]["status"] for one in users.deleted & found.keys()} <= {"ERROR"}
    _check_guests(cloud)
    _examine(cloud, url)
    _remove_all(cloud, url, users, found)


def _disturb(cloud: RealCloud, users: GuestUsers, chance: random.Random, faults: list[str]) -> None:
    breaker = Breaker(cloud, users, chance, faults, pause=4.0)
    breaker.start()
    try:
        while breaker.is_alive():
            if breaker.lost is not None:
                users.evacuate(breaker.lost)
            users.act()
            time.sleep(0.15)
    finally:
        breaker.stopped.set()
        breaker.join()
        print(sorted(users.answers.items()))
    assert breaker.trouble is None
    cloud.hang_up()
    for name in cloud.hosts:
        cloud.wait_host(name, "up")


def _settled(cloud: RealCloud, url: str) -> dict[str, dict[str, Any]]:
    """All servers, once nothing is happening to any of them, and nothing is left to be done."""
    end = time.monotonic() + SETTLE_SECONDS
    while left := _ask(url, _UNFINISHED):
        assert time.monotonic() < end, "\n".join(map(str, left))
        time.sleep(0.5)
    servers = cloud.client(version=VERSION).get("compute", "/servers/detail").json()["servers"]
    return {server["id"]: server for server in servers}


_UNFINISHED = """
SELECT id, kind, server_id, host, state, step, attempt, trouble, error, params FROM operations
WHERE finished_at IS NULL ORDER BY seq
"""


def _ask(url: str, sql: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        db = await open_database(url)
        try:
            return await db.fetch(sql)
        finally:
            await db.close()

    return asyncio.run(fetch())


def _check_guests(cloud: RealCloud) -> None:
    """Also the power of guests that a fault has ended is told, once their hosts have reported."""

    def differs() -> list[str]:
        wrong = []
        for server in cloud.client(version=VERSION).get("compute", "/servers/detail").json()["servers"]:
            status, hosts = server["status"], cloud.runs(server["id"])
            told = f"{server['id']} is {status} on {server['OS-EXT-SRV-ATTR:host']}, and runs on {hosts}"
            elsewhere = hosts not in ([], [server["OS-EXT-SRV-ATTR:host"]])
            otherwise = RUNS[status] is not None and bool(hosts) != RUNS[status]
            unsaid = status == "ERROR" and not server["fault"]["message"]
            if server["OS-EXT-STS:task_state"] is not None or elsewhere or otherwise or unsaid:
                wrong.append(told)
        return wrong

    end = time.monotonic() + 120
    while wrong := differs():
        assert time.monotonic() < end, "\n".join(wrong)
        time.sleep(0.5)


def _examine(cloud: RealCloud, url: str) -> None:
    file = cloud.site.directory / "control.toml"
    examined = kilonova("doctor", "--config", str(file), "--data", str(cloud.data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def _remove_all(cloud: RealCloud, url: str, users: GuestUsers, found: dict[str, dict[str, Any]]) -> None:
    """Whatever a server is, its deletion leaves nothing of it."""
    client = cloud.client(version=VERSION)
    for server_id in found:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _settled(cloud, url) == {}
    usages = client.get("placement", f"/usages?project_id={client.project_id}", version="1.9").json()["usages"]
    assert usages == {}
    assert client.get("network", "/ports?device_owner=compute:nova").json()["ports"] == []
    snapshots = client.get("volume", "/snapshots", version="3.60").json()["snapshots"]
    kept = {*users.volumes, *(snapshot["volume_id"] for snapshot in snapshots)}
    for volume in client.get("volume", "/volumes/detail", version="3.60").json()["volumes"]:
        assert (volume["status"], volume["id"] in kept) == ("available", True), volume
    until(lambda: _exports(cloud) == [], "nothing is exported")
    cloud.wait_clean()
    _examine(cloud, url)


def _exports(cloud: RealCloud) -> list[str]:
    async def ask() -> list[str]:
        async with Daemon(cloud.data / "exports", cloud.site.address, 0).session(start=False) as session:
            return list(map(str, await session.exports())) if session is not None else []

    return asyncio.run(ask())


def _network(cloud: RealCloud) -> str:
    client = cloud.client()
    made: str = client.post("network", "/networks", {"network": {"name": "left"}}).json()["network"]["id"]
    subnet = {"network_id": made, "ip_version": 4, "cidr": "10.50.0.0/24"}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return made
