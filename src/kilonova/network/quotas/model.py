"""How many of each resource a project may have: counted in the transaction that creates one more."""

from __future__ import annotations

from kilonova.network.errors import over_quota
from kilonova.store import Reader, Transaction

UNLIMITED = -1
# Ports have no limit by default: compute's own quota bounds them.
DEFAULTS = {
    "network": 1000,
    "subnet": 1000,
    "port": UNLIMITED,
    "router": 1000,
    "floatingip": 1000,
    "security_group": 1000,
    "security_group_rule": 10000,
}
_TABLES = {
    "network": "networks",
    "subnet": "subnets",
    "port": "ports",
    "router": "routers",
    "floatingip": "floating_ips",
    "security_group": "security_groups",
    "security_group_rule": "security_group_rules",
}
_LIMIT = "SELECT maximum FROM network_quotas WHERE project_id = $1 AND resource = $2"


async def make_room(tx: Transaction, project_id: str, resource: str, count: int = 1) -> None:
    """Raise OverQuota unless the project may have `count` more; nobody else can use the room meanwhile."""
    limit = await tx.fetch_value(_LIMIT, project_id, resource)
    if limit is None:
        limit = DEFAULTS[resource]
    if limit < 0:
        return
    await tx.hold(f"network quota {resource} {project_id}")
    if await used(tx, project_id, resource) + count > limit:
        raise over_quota(resource)


async def used(reader: Reader, project_id: str, resource: str) -> int:
    count = await reader.fetch_value(f"SELECT count(*) FROM {_TABLES[resource]} WHERE project_id = $1", project_id)
    return int(count)


async def limits(reader: Reader, project_id: str) -> dict[str, int]:
    rows = await reader.fetch("SELECT resource, maximum FROM network_quotas WHERE project_id = $1", project_id)
    return DEFAULTS | {row["resource"]: row["maximum"] for row in rows}


async def change(tx: Transaction, project_id: str, changes: dict[str, int]) -> None:
    for resource, maximum in changes.items():
        await tx.execute(
            "INSERT INTO network_quotas (project_id, resource, maximum) VALUES ($1, $2, $3) "
            "ON CONFLICT (project_id, resource) DO UPDATE SET maximum = excluded.maximum",
            project_id,
            resource,
            maximum,
        )


async def reset(tx: Transaction, project_id: str) -> bool:
    return bool(await tx.execute("DELETE FROM network_quotas WHERE project_id = $1", project_id))
