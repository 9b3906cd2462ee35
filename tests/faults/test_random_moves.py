"""Random moves on hosts that fail, are slow and get lost, under `kill -9`: all settles, agrees, and is told truly."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.histories import ROUNDS, History
from tests.faults.moving_users import VERSION, Trouble, Users
from tests.faults.test_kill import QUICK, UNLIMITED
from tests.support.process import Client, Cloud, kilonova

from kilonova.store import open_database

HOSTS = 12
ENVIRON = {
    **UNLIMITED,
    **QUICK,
    "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "-1",
    "KILONOVA_OPERATIONS__HOST_SECONDS": "1.5",
    "KILONOVA_HOSTS__REPORT_SECONDS": "0.5",
    "KILONOVA_HOSTS__DOWN_SECONDS": "2",
    "KILONOVA_COMPUTE__RESIZE_ON_SAME_HOST": "true",
    "KILONOVA_COMPUTE__RESIZE_CONFIRM_SECONDS": "8",
    "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3",
    "KILONOVA_COMPUTE__LIVE_MIGRATIONS_PER_HOST": "2",
    "KILONOVA_SIM__LATENCY__MIGRATE_LIVE": "0.1",
}
# Until all servers are there, every host counts as up.
AT_FIRST = {"KILONOVA_HOSTS__DOWN_SECONDS": "60"}
# In the end nothing shall happen by itself while everything is compared.
AT_REST = {"KILONOVA_COMPUTE__RESIZE_CONFIRM_SECONDS": "0", "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "-1"}
SETTLE_SECONDS = 180.0
SHAPE = """
[[shape]]
name = "two-cells"
hosts = 6
inventory = { DISK_GB = 1000 }

[[shape.nested]]
name = "NUMA"
count = 2
traits = ["HW_NUMA_ROOT"]
inventory = { VCPU = { total = 16, allocation_ratio = 2.0 }, MEMORY_MB = 32768 }

[[shape]]
name = "diskless"
hosts = 6
inventory = { VCPU = 64, MEMORY_MB = 65536 }

[[sharing]]
name = "san"
shapes = ["diskless"]
inventory = { DISK_GB = 5000 }
"""
CELLS = {
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources1:VCPU": "2",
    "resources1:MEMORY_MB": "256",
    "trait1:HW_NUMA_ROOT": "required",
}
STABLE = {"ACTIVE", "SHUTOFF", "VERIFY_RESIZE", "SHELVED", "SHELVED_OFFLOADED"}


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_one_process(tmp_path: Path, empty_url: str) -> None:
    options = ("--hosts", str(HOSTS), "--zones", "east,west", "--database", empty_url)
    with Cloud(tmp_path / "data", *options, environ={**ENVIRON, **AT_FIRST}) as cloud:
        _move_at_random(cloud, [cloud], empty_url, servers=40, kills=6, seconds=12.0)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_api_and_workers_apart(tmp_path: Path, empty_url: str) -> None:
    """On hosts that are trees, and hosts that share a disk."""
    data, database = tmp_path / "data", ("--database", empty_url)
    shape = tmp_path / "shape.toml"
    shape.write_text(SHAPE)
    hosts = ("--host-shape", str(shape), "--zones", "east,west")
    with (
        Cloud(data, *database, command=("api",), environ={**ENVIRON, **AT_FIRST}) as api,
        Cloud(data, *database, *hosts, command=("worker",), environ={**ENVIRON, **AT_FIRST}) as first,
        Cloud(data, *database, *hosts, command=("worker",), environ={**ENVIRON, **AT_FIRST}) as second,
    ):
        _move_at_random(api, [api, first, second], empty_url, servers=30, kills=5, seconds=10.0, cells=CELLS)


def _move_at_random(
    cloud: Cloud,
    processes: list[Cloud],
    empty_url: str,
    *,
    servers: int,
    kills: int,
    seconds: float,
    cells: dict[str, str] | None = None,
) -> None:
    """`cloud` is the process that answers."""
    seed = int(os.environ.get("MOVES_SEED", time.time_ns() % 100000))
    print(f"MOVES_SEED={seed}")
    trouble = Trouble(cloud.data, random.Random(seed + 1))
    users = Users(cloud, trouble, random.Random(seed), servers, cells)
    users.boot_all()
    _settled(users.client, empty_url)
    disks = trouble.disks()
    assert disks.keys() == users.alive
    for process in processes:
        process.environ |= ENVIRON
        process.restart()
    try:
        trouble.begin()
        _disturb(processes, users, random.Random(seed + 2), kills, seconds)
    finally:
        trouble.end()
        print(sorted(users.answers.items()))
    for process in processes:
        process.environ |= AT_REST
        process.restart()
    users.mend()
    client = cloud.client("kilonova", version=VERSION)
    found = _settled(client, empty_url)
    _check_servers(cloud, users, found)
    evacuated = _check_histories(client, users, found)
    rebuilt = {row["server_id"] for row in _ask(empty_url, _REBUILT)}
    same = (disks.keys() & trouble.disks().keys()) - evacuated - rebuilt
    assert {one: disks[one] for one in same} == {one: trouble.disks()[one] for one in same}
    assert not {one for one in rebuilt & disks.keys() if trouble.disks().get(one) == disks[one]}
    trouble.close()
    _examine(cloud, empty_url)
    _remove_all(client, cloud, empty_url, found)


def _disturb(processes: list[Cloud], users: Users, chance: random.Random, kills: int, seconds: float) -> None:
    """Requests for so many seconds of running, and so many kills spread over them; so many times."""
    stop, done = threading.Event(), threading.Event()

    def kill() -> None:
        for _ in range(kills * ROUNDS):
            if stop.wait(seconds / kills * chance.uniform(0.5, 1.5)):
                return
            victim = chance.choice(processes)
            victim.kill()
            victim.start()
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while not done.is_set():
            users.act()
            time.sleep(0.01)
            assert killer.is_alive() or done.is_set(), "it does not start again"
    finally:
        stop.set()
        killer.join()


def _settled(client: Client, url: str) -> dict[str, dict[str, Any]]:
    """All servers, once nothing is happening to any of them, and nothing is left to be done."""
    until = time.monotonic() + SETTLE_SECONDS
    while left := _ask(url, _UNFINISHED):
        assert time.monotonic() < until, "\n".join(map(str, left))
        time.sleep(0.5)
    return {server["id"]: server for server in client.get("compute", "/servers/detail").json()["servers"]}


_UNFINISHED = """
SELECT id, kind, server_id, host, state, step, attempt, trouble, error, params FROM operations
WHERE finished_at IS NULL ORDER BY seq
"""


_REBUILT = "SELECT DISTINCT server_id FROM operations WHERE kind = 'rebuild' AND state = 'done'"


def _ask(url: str, sql: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        db = await open_database(url)
        try:
            return await db.fetch(sql)
        finally:
            await db.close()

    return asyncio.run(fetch())


def _check_servers(cloud: Cloud, users: Users, found: dict[str, dict[str, Any]]) -> None:
    assert users.alive <= found.keys(), "acknowledged creates are there"
    statuses = Counter(server["status"] for server in found.values())
    print(statuses)
    for server in found.values():
        assert server["OS-EXT-STS:task_state"] is None, server
        assert server["status"] in STABLE or server["fault"]["message"], server
    # Those whose deletion was refused by their host are still there.
    assert {found[one]["status"] for one in users.deleted & found.keys()} <= {"ERROR"}
    guests = kilonova("sim", "guests", "--data", str(cloud.data)).stdout
    failed = [server for server in found.values() if server["status"] == "ERROR"]
    for server in failed:
        assert server["id"] not in guests or server["id"] in users.deleted, (server, guests)


def _check_histories(client: Client, users: Users, found: dict[str, dict[str, Any]]) -> set[str]:
    """The servers that were evacuated, and so have another disk than before."""
    migrations: dict[str, list[dict[str, Any]]] = {}
    for migration in _pages(client, "/os-migrations", "migrations", "uuid"):
        migrations.setdefault(migration["instance_uuid"], []).append(migration)
    print(sorted(Counter((m["migration_type"], m["status"]) for ms in migrations.values() for m in ms).items()))
    acknowledged: dict[str, list[tuple[str, str]]] = {}
    for server_id, name, request_id in users.acknowledged:
        acknowledged.setdefault(server_id, []).append((name, request_id))
    for server_id in {*found, *acknowledged}:
        history = History(client, server_id, migrations.get(server_id, []))
        history.check(found.get(server_id))
        for name, request_id in acknowledged.get(server_id, []):
            if not (name == "delete" and len([1 for other, _ in acknowledged[server_id] if other == "delete"]) > 1):
                history.check_acknowledged(name, request_id)
    return {one for one, of_it in migrations.items() if any(m["migration_type"] == "evacuation" for m in of_it)}


def _pages(client: Client, path: str, key: str, marker: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := client.get("compute", path + (f"?marker={found[-1][marker]}" if found else "")).json()[key]:
        found += page
    return found


def _examine(cloud: Cloud, url: str) -> None:
    examined = kilonova("doctor", "--data", str(cloud.data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def _remove_all(client: Client, cloud: Cloud, url: str, found: dict[str, dict[str, Any]]) -> None:
    """Whatever a server is, its deletion leaves nothing of it."""
    kept = _ask(url, "SELECT shelved_image_id AS id FROM servers WHERE NOT deleted AND shelved_image_id IS NOT NULL")
    assert _snapshots(client) == {image["id"] for image in kept}
    for server_id in found:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _settled(client, url) == {}
    assert _snapshots(client) == set()
    assert kilonova("sim", "guests", "--data", str(cloud.data)).stdout.count("\n") == 1, "only the heads of columns"
    usages = client.get("placement", f"/usages?project_id={client.project_id}", version="1.9").json()["usages"]
    assert usages == {}
    assert client.get("network", "/ports?device_owner=compute:nova").json()["ports"] == []
    _examine(cloud, url)


def _snapshots(client: Client) -> set[str]:
    images = client.get("image", "/images?limit=1000").json()["images"]
    return {image["id"] for image in images if image["name"] != "cirros-sim"}
