"""What a host has and how much of it is spoken for."""

from __future__ import annotations

import orjson

from kilonova.compute.hypervisors import model as hypervisors
from kilonova.store import Reader, Row

# What is shown, and what hypervisors call the whole and the used of it.
_AMOUNTS = {
    "cpu": ("vcpus", "vcpus_used"),
    "memory_mb": ("memory_mb", "memory_mb_used"),
    "disk_gb": ("local_gb", "local_gb_used"),
}
Amounts = dict[str, int]
_SERVERS = """
SELECT project_id, flavor, vcpus, ram FROM servers
WHERE host = $1 AND NOT deleted ORDER BY created_at, id
"""


async def resources(reader: Reader, host: str) -> dict[str, Amounts] | None:
    """Amounts by whose they are: first the host's own, then each project's. None where there is no such host."""
    row = await hypervisors.get(reader, "host", host)
    if row is None:
        return None
    await hypervisors.add_amounts(reader, [row])
    await hypervisors.add_shared_disks(reader, [row])
    projects = _by_project(await reader.fetch(_SERVERS, host))
    return {
        "(total)": {name: row[total] for name, (total, _) in _AMOUNTS.items()},
        "(used_now)": {name: row[used] for name, (_, used) in _AMOUNTS.items()},
        "(used_max)": {name: sum(each[name] for each in projects.values()) for name in _AMOUNTS},
        **projects,
    }


def _by_project(servers: list[Row]) -> dict[str, Amounts]:
    """What the flavors of the servers promise."""
    projects: dict[str, Amounts] = {}
    for server in servers:
        amounts = projects.setdefault(server["project_id"], dict.fromkeys(_AMOUNTS, 0))
        flavor = orjson.loads(server["flavor"])
        amounts["cpu"] += server["vcpus"]
        amounts["memory_mb"] += server["ram"]
        amounts["disk_gb"] += flavor.get("disk", 0) + flavor.get("ephemeral", 0)
    return projects
