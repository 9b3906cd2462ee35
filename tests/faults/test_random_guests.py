"""Random actions on real guests while processes are killed: states agree, and no guest runs twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.guest_users import VERSION, FaultInjector, GuestUsers
from tests.faults.histories import ROUNDS
from tests.support.cloud_process import kilonova
from tests.support.virt_cloud import RealCloud, real_cloud
from tests.support.virt_hosts import wait_until

from kilonova.store import open_database
from kilonova.volume.exports.daemon import Daemon

FAULTS = ["agent", "libvirt", "control", "nats", "power"]
SHORT_SHUTDOWN = {"compute": {"shutdown_timeout_seconds": 1.0}}
SETTLE_SECONDS = 180.0
# Whether a QEMU of the guest must run, by the server's status; None: either.
GUEST_RUNS = {
    "ACTIVE": True,
    "PAUSED": True,
    "RESCUE": True,
    "VERIFY_RESIZE": None,  # as before the resize
    "SHUTOFF": False,
    "SUSPENDED": False,
    "SHELVED": False,
    "SHELVED_OFFLOADED": False,
    "ERROR": None,
}


def test_random_actions_in_one_process(tmp_path: Path) -> None:
    shared = os.environ.get("GUESTS_SHARED") == "1"
    with real_cloud(tmp_path / "data", shared_storage=shared, settings=SHORT_SHUTDOWN) as cloud:
        _act_at_random(cloud, f"sqlite:///{cloud.data / 'kilonova.db'}", FAULTS)


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_random_actions_with_separate_workers(tmp_path: Path, empty_url: str) -> None:
    with real_cloud(tmp_path / "data", settings=SHORT_SHUTDOWN, workers_database_url=empty_url) as cloud:
        _act_at_random(cloud, empty_url, ["worker", "worker", "agent", "control"])


def _act_at_random(cloud: RealCloud, url: str, fault_kinds: list[str]) -> None:
    seed = int(os.environ.get("GUESTS_SEED", "1"))
    if "GUESTS_KINDS" in os.environ:
        fault_kinds = os.environ["GUESTS_KINDS"].split(",")
    print(f"GUESTS_SEED={seed}")
    rng = random.Random(seed)
    users = GuestUsers(cloud, rng, int(os.environ.get("GUESTS_SERVERS", "4")), volumes=2, networks=[_network(cloud)])
    users.boot_all()
    faults = [rng.choice(fault_kinds) for _ in range(int(os.environ.get("GUESTS_FAULTS", "3")) * ROUNDS)]
    _inject_faults(cloud, users, random.Random(seed + 1), faults)
    found = _wait_until_idle(cloud, url)
    print(Counter(server["status"] for server in found.values()))
    assert users.alive <= found.keys(), "servers of acknowledged creates exist"
    assert {found[server_id]["status"] for server_id in users.deleted & found.keys()} <= {"ERROR"}
    _check_guests(cloud)
    _run_doctor(cloud, url)
    _delete_all_and_check(cloud, url, users, found)


def _inject_faults(cloud: RealCloud, users: GuestUsers, rng: random.Random, faults: list[str]) -> None:
    injector = FaultInjector(cloud, users, rng, faults, pause=4.0)
    injector.start()
    try:
        while injector.is_alive():
            if injector.failed_host is not None:
                users.evacuate(injector.failed_host)
            users.act()
            time.sleep(0.15)
    finally:
        injector.stopped.set()
        injector.join()
        print(sorted(users.answers.items()))
    assert injector.error is None
    cloud.drop_clients()
    for name in cloud.hosts:
        cloud.wait_for_host(name, "up")


def _wait_until_idle(cloud: RealCloud, url: str) -> dict[str, dict[str, Any]]:
    """Return all servers once all operations are finished."""
    end = time.monotonic() + SETTLE_SECONDS
    while unfinished := _fetch(url, _UNFINISHED):
        assert time.monotonic() < end, "\n".join(map(str, unfinished))
        time.sleep(0.5)
    servers = cloud.client(version=VERSION).get("compute", "/servers/detail").json()["servers"]
    return {server["id"]: server for server in servers}


_UNFINISHED = """
SELECT id, kind, server_id, host, state, step, attempt, trouble, error, params FROM operations
WHERE finished_at IS NULL ORDER BY seq
"""


def _fetch(url: str, sql: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        db = await open_database(url)
        try:
            return await db.fetch(sql)
        finally:
            await db.close()

    return asyncio.run(fetch())


def _check_guests(cloud: RealCloud) -> None:
    """Compare servers with running QEMUs. Power states follow faults once the hosts have reported."""

    def differences() -> list[str]:
        wrong = []
        for server in cloud.client(version=VERSION).get("compute", "/servers/detail").json()["servers"]:
            status, hosts = server["status"], cloud.hosts_running(server["id"])
            text = f"{server['id']} is {status} on {server['OS-EXT-SRV-ATTR:host']}, and runs on {hosts}"
            on_wrong_host = hosts not in ([], [server["OS-EXT-SRV-ATTR:host"]])
            wrong_power = GUEST_RUNS[status] is not None and bool(hosts) != GUEST_RUNS[status]
            without_fault = status == "ERROR" and not server["fault"]["message"]
            if server["OS-EXT-STS:task_state"] is not None or on_wrong_host or wrong_power or without_fault:
                wrong.append(text)
        return wrong

    end = time.monotonic() + 120
    while wrong := differences():
        assert time.monotonic() < end, "\n".join(wrong)
        time.sleep(0.5)


def _run_doctor(cloud: RealCloud, url: str) -> None:
    file = cloud.site.directory / "control.toml"
    examined = kilonova("doctor", "--config", str(file), "--data", str(cloud.data), "--database", url)
    assert examined.returncode == 0, examined.stdout + examined.stderr


def _delete_all_and_check(cloud: RealCloud, url: str, users: GuestUsers, found: dict[str, dict[str, Any]]) -> None:
    """Delete all servers, and check that nothing of them remains."""
    client = cloud.client(version=VERSION)
    for server_id in found:
        assert client.delete("compute", f"/servers/{server_id}").status == 204
    assert _wait_until_idle(cloud, url) == {}
    usages = client.get("placement", f"/usages?project_id={client.project_id}", version="1.9").json()["usages"]
    assert usages == {}
    assert client.get("network", "/ports?device_owner=compute:nova").json()["ports"] == []
    snapshots = client.get("volume", "/snapshots", version="3.60").json()["snapshots"]
    expected = {*users.volumes, *(snapshot["volume_id"] for snapshot in snapshots)}
    for volume in client.get("volume", "/volumes/detail", version="3.60").json()["volumes"]:
        assert (volume["status"], volume["id"] in expected) == ("available", True), volume
    wait_until(lambda: _exports(cloud) == [], "no volume is exported")
    cloud.wait_until_clean()
    _run_doctor(cloud, url)


def _exports(cloud: RealCloud) -> list[str]:
    async def fetch() -> list[str]:
        async with Daemon(cloud.data / "exports", cloud.site.address, 0).session(start=False) as session:
            return list(map(str, await session.exports())) if session is not None else []

    return asyncio.run(fetch())


def _network(cloud: RealCloud) -> str:
    client = cloud.client()
    network_id: str = client.post("network", "/networks", {"network": {"name": "guests"}}).json()["network"]["id"]
    subnet = {"network_id": network_id, "ip_version": 4, "cidr": "10.50.0.0/24"}
    assert client.post("network", "/subnets", {"subnet": subnet}).status == 201
    return network_id
