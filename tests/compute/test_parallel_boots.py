"""Hundreds of concurrent boots on nearly full hosts, with real processes: quotas and allocations must be exact."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.cloud_process import Client, CloudProcess, kilonova
from tests.support.databases import opened

HOSTS, SERVERS_PER_HOST = 12, 8
"""The number of hosts, and how many of the smallest servers fit into the memory of each."""
QUOTA = 170
CONCURRENCY = 16
TIMEOUT_SECONDS = 180.0

ENVIRON = {
    "KILONOVA_SIM__HOSTS": str(HOSTS),
    "KILONOVA_SIM__MEMORY_MB": str(512 + SERVERS_PER_HOST * 512),
    "KILONOVA_QUOTA__INSTANCES": str(QUOTA),
    "KILONOVA_QUOTA__CORES": "-1",
    "KILONOVA_QUOTA__RAM": "-1",
    "KILONOVA_QUOTA__SERVER_GROUPS": "-1",
    "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "20",
}


class Group(NamedTuple):
    id: str
    policy: str
    max_per_host: int


@contextmanager
def one_process(data: Path, url: str) -> Iterator[CloudProcess]:
    with CloudProcess(data, "--database", url, environ=ENVIRON) as cloud:
        yield cloud


@contextmanager
def separate_processes(data: Path, url: str) -> Iterator[CloudProcess]:
    """One API process and two workers."""
    database = ("--database", url)
    with ExitStack() as stack:
        cloud = stack.enter_context(CloudProcess(data, *database, command=("api",), environ=ENVIRON))
        endpoints = (data / "endpoints.json").read_text()
        for _ in range(2):
            stack.enter_context(CloudProcess(data, *database, command=("worker",), environ=ENVIRON))
        (data / "endpoints.json").write_text(endpoints)
        yield cloud


@pytest.mark.parametrize(
    ("empty_url", "start"), [("sqlite", one_process), ("postgresql", separate_processes)], indirect=["empty_url"]
)
def test_quotas_and_allocations_are_exact(tmp_path: Path, empty_url: str, start: Any) -> None:
    with start(tmp_path / "data", empty_url) as cloud:
        groups = create_groups(cloud.client(version="2.64"))
        statuses = boot_all(cloud, groups)
        assert set(statuses) == {202, 403}
        # The quotas of the project and of each group are used up exactly.
        assert statuses[202] == QUOTA
        servers = wait_until_built(cloud.client("kilonova", version="2.100"))
        assert len(servers) == QUOTA
        active = [server for server in servers if server["status"] == "ACTIVE"]
        check_groups(groups, servers)
        check_faults(servers)
        # Servers without a group only fail if no host has capacity left.
        assert any(server["status"] == "ERROR" and not server["scheduler_hints"] for server in servers)
        used = asyncio.run(read_allocations(empty_url))
        on_hosts = Counter(server["OS-EXT-SRV-ATTR:host"] for server in active)
        assert used == {host: {"VCPU": n, "MEMORY_MB": 512 * n, "DISK_GB": n} for host, n in on_hosts.items()}
        assert on_hosts == dict.fromkeys(used, SERVERS_PER_HOST)
        assert len(active) == HOSTS * SERVERS_PER_HOST
        doctor = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert doctor.returncode == 0, doctor.stdout
        delete_all(cloud, servers)
        assert asyncio.run(read_allocations(empty_url)) == {}
        doctor = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert doctor.returncode == 0, doctor.stdout


def create_groups(client: Client) -> list[Group]:
    wanted = [("anti-affinity", 1), ("anti-affinity", 1), ("anti-affinity", 2)] + [("affinity", SERVERS_PER_HOST)] * 6
    groups = []
    for policy, max_per_host in wanted:
        rules = {"max_server_per_host": max_per_host} if policy == "anti-affinity" else {}
        body = {"server_group": {"name": policy, "policy": policy, "rules": rules}}
        answer = client.post("compute", "/os-server-groups", body)
        assert answer.status == 200, answer.body
        groups.append(Group(answer.json()["server_group"]["id"], policy, max_per_host))
    return groups


def boot_all(cloud: CloudProcess, groups: list[Group]) -> Counter[int]:
    """Create servers of all groups and without a group at the same time; the number of responses by status."""
    image = cloud.client().get("image", "/images").json()["images"][0]["id"]
    anti_affinity = [group.id for group in groups if group.policy == "anti-affinity" for _ in range(25)]
    affinity = [group.id for group in groups if group.policy == "affinity" for _ in range(5)]
    wanted: list[str | None] = [*anti_affinity, *affinity]
    random.shuffle(wanted)
    # Servers without a group fill the remaining hosts and quota; they begin a little later.
    wanted += [None] * 150
    numbers = itertools.count()
    statuses: Counter[int] = Counter()

    def lane(client: Client) -> Counter[int]:
        answered: Counter[int] = Counter()
        while (number := next(numbers)) < len(wanted):
            group_id = wanted[number]
            server = {"name": f"s{number}", "flavorRef": "1", "imageRef": image, "networks": "none"}
            hints = {"os:scheduler_hints": {"group": group_id}} if group_id else {}
            answered[client.post("compute", "/servers", {"server": server, **hints}).status] += 1
        return answered

    clients = [cloud.client(version="2.64") for _ in range(CONCURRENCY)]
    with ThreadPoolExecutor(CONCURRENCY) as lanes:
        for answered in lanes.map(lane, clients):
            statuses += answered
    return statuses


def wait_until_built(admin: Client) -> list[dict[str, Any]]:
    """All servers, once none is being built."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        servers: list[dict[str, Any]] = admin.get("compute", "/servers/detail?all_tenants=1").json()["servers"]
        if all(server["OS-EXT-STS:task_state"] is None and server["status"] != "BUILD" for server in servers):
            return servers
        assert time.monotonic() < until, Counter(server["status"] for server in servers)
        time.sleep(0.2)


def check_groups(groups: list[Group], servers: list[dict[str, Any]]) -> None:
    hosts: dict[str, Counter[str]] = defaultdict(Counter)
    members: Counter[str] = Counter()
    for server in servers:
        (group_id,) = server["scheduler_hints"].get("group", [None])
        members[group_id] += 1
        if server["status"] == "ACTIVE":
            hosts[group_id][server["OS-EXT-SRV-ATTR:host"]] += 1
    for group in groups:
        assert members[group.id] <= 20
        assert max(hosts[group.id].values()) <= group.max_per_host, group
        if group.policy == "affinity":
            assert len(hosts[group.id]) == 1


def check_faults(servers: list[dict[str, Any]]) -> None:
    for server in servers:
        if server["status"] == "ERROR":
            assert server["fault"]["message"].startswith(f"No valid host was found: {HOSTS} hosts: "), server["fault"]
            assert server["OS-EXT-SRV-ATTR:host"] is None


async def read_allocations(url: str) -> dict[str, dict[str, int]]:
    """The allocations of each host by resource class."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    async with opened(url) as db:
        rows = await db.fetch(
            "SELECT p.name, a.resource_class, SUM(a.used) AS used FROM allocations a"
            " JOIN resource_providers p ON p.id = a.provider_id GROUP BY p.name, a.resource_class"
        )
    for row in rows:
        found[row["name"]][row["resource_class"]] = int(row["used"])
    return dict(found)


def delete_all(cloud: CloudProcess, servers: list[dict[str, Any]]) -> None:
    def lane(client: Client, servers: list[dict[str, Any]]) -> None:
        for server in servers:
            assert client.delete("compute", f"/servers/{server['id']}").status == 204

    clients = [cloud.client() for _ in range(CONCURRENCY)]
    with ThreadPoolExecutor(CONCURRENCY) as lanes:
        list(lanes.map(lane, clients, [servers[start::CONCURRENCY] for start in range(CONCURRENCY)]))
    until = time.monotonic() + TIMEOUT_SECONDS
    while cloud.client().get("compute", "/servers").json()["servers"]:
        assert time.monotonic() < until
        time.sleep(0.1)
