"""Hundreds of boots at once on hosts that are nearly full, by real processes: then every sum must be exact."""

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

from tests.support.databases import opened
from tests.support.process import Client, Cloud, kilonova

HOSTS, ROOM = 12, 8
"""How many hosts there are, and for how many of the smallest servers each has memory."""
QUOTA = 170
AT_ONCE = 16
PATIENCE = 180.0

ENVIRON = {
    "KILONOVA_SIM__HOSTS": str(HOSTS),
    "KILONOVA_SIM__MEMORY_MB": str(512 + ROOM * 512),
    "KILONOVA_QUOTA__INSTANCES": str(QUOTA),
    "KILONOVA_QUOTA__CORES": "-1",
    "KILONOVA_QUOTA__RAM": "-1",
    "KILONOVA_QUOTA__SERVER_GROUPS": "-1",
    "KILONOVA_QUOTA__SERVER_GROUP_MEMBERS": "20",
}


class Group(NamedTuple):
    id: str
    policy: str
    most: int
    """On one host."""


@contextmanager
def one_process(data: Path, url: str) -> Iterator[Cloud]:
    with Cloud(data, "--database", url, environ=ENVIRON) as cloud:
        yield cloud


@contextmanager
def processes_apart(data: Path, url: str) -> Iterator[Cloud]:
    """One that answers, and two that work."""
    database = ("--database", url)
    with ExitStack() as stack:
        cloud = stack.enter_context(Cloud(data, *database, command=("api",), environ=ENVIRON))
        endpoints = (data / "endpoints.json").read_text()
        for _ in range(2):
            stack.enter_context(Cloud(data, *database, command=("worker",), environ=ENVIRON))
        (data / "endpoints.json").write_text(endpoints)
        yield cloud


@pytest.mark.parametrize(
    ("empty_url", "start"), [("sqlite", one_process), ("postgresql", processes_apart)], indirect=["empty_url"]
)
def test_the_sums_are_exact(tmp_path: Path, empty_url: str, start: Any) -> None:
    with start(tmp_path / "data", empty_url) as cloud:
        groups = make_groups(cloud.client(version="2.64"))
        statuses = boot_all(cloud, groups)
        assert set(statuses) == {202, 403}
        # The quota was used up, and not by one server more; each group's as well.
        assert statuses[202] == QUOTA
        servers = settled(cloud.client("kilonova", version="2.100"))
        assert len(servers) == QUOTA
        active = [server for server in servers if server["status"] == "ACTIVE"]
        check_groups(groups, servers)
        check_reasons(servers)
        # Whoever belongs to no group was refused only when nothing was left anywhere.
        assert any(server["status"] == "ERROR" and not server["scheduler_hints"] for server in servers)
        used = asyncio.run(allocated(empty_url))
        on_hosts = Counter(server["OS-EXT-SRV-ATTR:host"] for server in active)
        assert used == {host: {"VCPU": n, "MEMORY_MB": 512 * n, "DISK_GB": n} for host, n in on_hosts.items()}
        assert on_hosts == dict.fromkeys(used, ROOM)
        assert len(active) == HOSTS * ROOM
        sound = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert sound.returncode == 0, sound.stdout
        delete_all(cloud, servers)
        assert asyncio.run(allocated(empty_url)) == {}
        sound = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert sound.returncode == 0, sound.stdout


def make_groups(client: Client) -> list[Group]:
    wanted = [("anti-affinity", 1), ("anti-affinity", 1), ("anti-affinity", 2)] + [("affinity", ROOM)] * 6
    groups = []
    for policy, most in wanted:
        rules = {"max_server_per_host": most} if policy == "anti-affinity" else {}
        body = {"server_group": {"name": policy, "policy": policy, "rules": rules}}
        answer = client.post("compute", "/os-server-groups", body)
        assert answer.status == 200, answer.body
        groups.append(Group(answer.json()["server_group"]["id"], policy, most))
    return groups


def boot_all(cloud: Cloud, groups: list[Group]) -> Counter[int]:
    """How often each status was answered, when members of all groups and servers of none are asked for at once."""
    image = cloud.client().get("image", "/images").json()["images"][0]["id"]
    apart = [group.id for group in groups if group.policy == "anti-affinity" for _ in range(25)]
    together = [group.id for group in groups if group.policy == "affinity" for _ in range(5)]
    wanted: list[str | None] = [*apart, *together]
    random.shuffle(wanted)
    # The rest fills what is left of the hosts and of the quota; it begins a little later.
    wanted += [None] * 150
    next_one = itertools.count()
    statuses: Counter[int] = Counter()

    def lane(client: Client) -> Counter[int]:
        answered: Counter[int] = Counter()
        while (number := next(next_one)) < len(wanted):
            group_id = wanted[number]
            server = {"name": f"s{number}", "flavorRef": "1", "imageRef": image, "networks": "none"}
            hints = {"os:scheduler_hints": {"group": group_id}} if group_id else {}
            answered[client.post("compute", "/servers", {"server": server, **hints}).status] += 1
        return answered

    clients = [cloud.client(version="2.64") for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        for answered in lanes.map(lane, clients):
            statuses += answered
    return statuses


def settled(admin: Client) -> list[dict[str, Any]]:
    """All servers once none is being built."""
    until = time.monotonic() + PATIENCE
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
        group_id = server["scheduler_hints"].get("group")
        members[group_id] += 1
        if server["status"] == "ACTIVE":
            hosts[group_id][server["OS-EXT-SRV-ATTR:host"]] += 1
    for group in groups:
        assert members[group.id] <= 20
        assert max(hosts[group.id].values()) <= group.most, group
        if group.policy == "affinity":
            assert len(hosts[group.id]) == 1


def check_reasons(servers: list[dict[str, Any]]) -> None:
    for server in servers:
        if server["status"] == "ERROR":
            assert server["fault"]["message"].startswith(f"No valid host was found: {HOSTS} hosts: "), server["fault"]
            assert server["OS-EXT-SRV-ATTR:host"] is None


async def allocated(url: str) -> dict[str, dict[str, int]]:
    """What is taken of each host, by class."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    async with opened(url) as db:
        rows = await db.fetch(
            "SELECT p.name, a.resource_class, SUM(a.used) AS used FROM allocations a"
            " JOIN resource_providers p ON p.id = a.provider_id GROUP BY p.name, a.resource_class"
        )
    for row in rows:
        found[row["name"]][row["resource_class"]] = int(row["used"])
    return dict(found)


def delete_all(cloud: Cloud, servers: list[dict[str, Any]]) -> None:
    def lane(client: Client, some: list[dict[str, Any]]) -> None:
        for server in some:
            assert client.delete("compute", f"/servers/{server['id']}").status == 204

    clients = [cloud.client() for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        list(lanes.map(lane, clients, [servers[start::AT_ONCE] for start in range(AT_ONCE)]))
    until = time.monotonic() + PATIENCE
    while cloud.client().get("compute", "/servers").json()["servers"]:
        assert time.monotonic() < until
        time.sleep(0.1)
