"""Random moves on failing, slow and unreachable hosts under `kill -9`: states and histories are consistent."""

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
from tests.faults.move_users import VERSION, HostFaults, Users
from tests.faults.test_kill import SHORT_LEASE, UNLIMITED_QUOTA
from tests.support.cloud_process import Client, CloudProcess, kilonova

from kilonova.store import open_database

HOSTS = 12
ENVIRON = {
    **UNLIMITED_QUOTA,
    **SHORT_LEASE,
    "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "-1",
    "KILONOVA_OPERATIONS__HOST_TIMEOUT_SECONDS": "1.5",
    "KILONOVA_HOSTS__REPORT_SECONDS": "0.5",
    "KILONOVA_HOSTS__DOWN_SECONDS": "2",
    "KILONOVA_COMPUTE__RESIZE_ON_SAME_HOST": "true",
    "KILONOVA_COMPUTE__RESIZE_CONFIRM_SECONDS": "8",
    "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3",
    "KILONOVA_COMPUTE__LIVE_MIGRATIONS_PER_HOST": "2",
    "KILONOVA_SIM__LATENCY__MIGRATE_LIVE": "0.1",
}
# While the servers are booted, every host counts as up.
WHILE_BOOTING = {"KILONOVA_HOSTS__DOWN_SECONDS": "60"}
# No periodic task changes anything while the results are compared.
WHILE_CHECKING = {"KILONOVA_COMPUTE__RESIZE_CONFIRM_SECONDS": "0", "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "-1"}
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
CELL_SPECS = {
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources1:VCPU": "2",
    "resources1:MEMORY_MB": "256",
    "trait1:HW_NUMA_ROOT": "required",
}
STABLE_STATUSES = {"ACTIVE", "SHUTOFF", "VERIFY_RESIZE", "SHELVED", "SHELVED_OFFLOADED"}


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_random_moves_in_one_process(tmp_path: Path, empty_url: str) -> None:
    options = ("--hosts", str(HOSTS), "--zones", "east,west", "--database", empty_url)
    with CloudProcess(tmp_path / "data", *options, environ={**ENVIRON, **WHILE_BOOTING}) as cloud:
        _move_at_random(cloud, [cloud], empty_url, servers=40, kills=6, seconds=12.0)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_random_moves_with_separate_workers(tmp_path: Path, empty_url: str) -> None:
    """On hosts with nested providers, and hosts with a shared disk."""
    data, database = tmp_path / "data", ("--database", empty_url)
    shape = tmp_path / "shape.toml"
    shape.write_text(SHAPE)
    hosts = ("--host-shape", str(shape), "--zones", "east,west")
    with (
        CloudProcess(data, *database, command=("api",), environ={**ENVIRON, **WHILE_BOOTING}) as api,
        CloudProcess(data, *database, *hosts, command=("worker",), environ={**ENVIRON, **WHILE_BOOTING}) as first,
        CloudProcess(data, *database, *hosts, command=("worker",), environ={**ENVIRON, **WHILE_BOOTING}) as second,
    ):
        _move_at_random(api, [api, first, second], empty_url, servers=30, kills=5, seconds=10.0, cell_specs=CELL_SPECS)


def _move_at_random(
    cloud: CloudProcess,
    processes: list[CloudProcess],
    empty_url: str,
    *,
    servers: int,
    kills: int,
    seconds: float,
    cell_specs: dict[str, str] | None = None,
) -> None:
    """`cloud` is the process that serves the API."""
    seed = int(os.environ.get("MOVES_SEED", time.time_ns() % 100000))
    print(f"MOVES_SEED={seed}")
    faults = HostFaults(cloud.data, random.Random(seed + 1))
    users = Users(cloud, faults, random.Random(seed), servers, cell_specs)
    users.boot_all()
    _wait_until_idle(users.client, empty_url)
    disks = faults.disks()
    assert disks.keys() == users.alive
    for process in processes:
        process.environ |= ENVIRON
        process.restart()
    try:
        faults.begin()
        _act_and_kill(processes, users, random.Random(seed + 2), kills, seconds)
    finally:
        faults.end()
        print(sorted(users.answers.items()))
    for process in processes:
        process.environ |= WHILE_CHECKING
        process.restart()
    users.clear_forced_down()
    client = cloud.client("kilonova", version=VERSION)
    found = _wait_until_idle(client, empty_url)
    _check_servers(cloud, users, found)
    evacuated = _check_histories(client, users, found)
    rebuilt = {row["server_id"] for row in _fetch(empty_url, _REBUILT)}
    unchanged = (disks.keys() & faults.disks().keys()) - evacuated - rebuilt
    assert {server_id: disks[server_id] for server_id in unchanged} == {
        server_id: faults.disks()[server_id] for server_id in unchanged
    }
    assert not {server_id for server_id in rebuilt & disks.keys() if faults.disks().get(server_id) == disks[server_id]}
    faults.close()
    _run_doctor(cloud, empty_url)
    _delete_all_and_check(client, cloud, empty_url, found)


def _act_and_kill(processes: list[CloudProcess], users: Users, rng: random.Random, kills: int, seconds: float) -> None:
    """Send requests for `seconds`, with `kills` spread over them; ROUNDS times."""
    stop, done = threading.Event(), threading.Event()

    def kill() -> None:
        for _ in range(kills * ROUNDS):
            if stop.wait(seconds / kills * rng.uniform(0.5, 1.5)):
                return
            victim = rng.choice(processes)
            victim.kill()
            victim.start()
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while not done.is_set():
            users.act()
            time.sleep(0.01)
            assert killer.is_alive() or done.is_set(), "the process does not start again"
    finally:
        stop.set()
        killer.join()


def _wait_until_idle(client: Client, url: str) -> dict[str, dict[str, Any]]:
    """Return all servers once all operations are finished."""
    until = time.monotonic() + SETTLE_SECONDS
    while unfinished := _fetch(url, _UNFINISHED):
        assert time.monotonic() < until, "\n".join(map(str, unfinished))
        time.sleep(0.5)
    return {server["id"]: server for server in client.get("compute", "/servers/detail").json()["servers"]}


_UNFINISHED = """
SELECT id, kind, server_id, host, state, step, attempt, trouble, error, params FROM operations
WHERE finished_at IS NULL ORDER BY seq
"""


_REBUILT = "SELECT DISTINCT server_id FROM operations WHERE kind = 'rebuild' AND state = 'done'"


def _fetch(url: str, sql: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        db = await open_database(url)
        try:
            return await db.fetch(sql)
        finally:
            await db.close()

    return asyncio.run(fetch())


def _check_servers(cloud: CloudProcess, users: Users, found: dict[str, dict[str, Any]]) -> None:
    assert users.alive <= found.keys(), "servers of acknowledged creates exist"
    statuses = Counter(server["status"] for server in found.values())
    print(statuses)
    for server in found.values():
        assert server["OS-EXT-STS:task_state"] is None, server
        assert server["status"] in STABLE_STATUSES or server["fault"]["message"], server
    # A server whose host refused the deletion is in ERROR.
    assert {found[server_id]["status"] for server_id in users.deleted & found.keys()} <= {"ERROR"}
    guests = kilonova("sim", "guests", "--data", str(cloud.data)).stdout
    failed = [server for server in found.values() if server["status"] == "ERROR"]
    for server in failed:
        assert server["id"] not in guests or server["id"] in users.deleted, (server, guests)


def _check_histories(client: Client, users: Users, found: dict[str, dict[str, Any]]) -> set[str]:
    """Check all histories. Return the evacuated servers, whose disks are new."""
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
    return {
        server_id
        for server_id, moves in migrations.items()
        if any(move["migration_type"] == "evacuation" for move in moves)
    }


def _pages(client: Client, path: str, key: str, marker: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := client.get("compute", path + (f"?marker={found[-1][marker]}" if found else "")).json()[key]:
        found += page
    return found


def _run_doctor(cloud: CloudProcess, url: str) -> None:
    examined = kilonova("doctor", "--data", str(cloud.data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def _delete_all_and_check(client: Client, cloud: CloudProcess, url: str, found: dict[str, dict[str, Any]]) -> None:
    """Delete all servers, and check that nothing of them remains."""
    shelved = _fetch(
        url, "SELECT shelved_image_id AS id FROM servers WHERE NOT deleted AND shelved_image_id IS NOT NULL"
    )
    assert _snapshots(client) == {image["id"] for image in shelved}
    for server_id in found:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _wait_until_idle(client, url) == {}
    assert _snapshots(client) == set()
    assert kilonova("sim", "guests", "--data", str(cloud.data)).stdout.count("\n") == 1, "only the header"
    usages = client.get("placement", f"/usages?project_id={client.project_id}", version="1.9").json()["usages"]
    assert usages == {}
    assert client.get("network", "/ports?device_owner=compute:nova").json()["ports"] == []
    _run_doctor(cloud, url)


def _snapshots(client: Client) -> set[str]:
    images = client.get("image", "/images?limit=1000").json()["images"]
    return {image["id"] for image in images if image["name"] != "cirros-sim"}
