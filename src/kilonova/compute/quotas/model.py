"""Limits of projects, and what they use: counted from the servers themselves in the transaction that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kilonova.http.errors import Forbidden
from kilonova.store import Reader, Transaction

if TYPE_CHECKING:
    from kilonova.config import Config

DEFAULT_CLASS = "default"
COUNTED = ("instances", "cores", "ram")
RESOURCES = (
    *COUNTED,
    "metadata_items",
    "key_pairs",
    "server_groups",
    "server_group_members",
    "injected_files",
    "injected_file_content_bytes",
    "injected_file_path_bytes",
)
# Limited by the network service; old versions show them without a limit.
NETWORK_RESOURCES = ("fixed_ips", "floating_ips", "security_groups", "security_group_rules")

_LIMITS = f"""
SELECT 0 AS own, resource, hard_limit FROM quota_classes WHERE class_name = '{DEFAULT_CLASS}'
UNION ALL SELECT 1 AS own, resource, hard_limit FROM quotas WHERE project_id = $1
ORDER BY own
"""
_USAGE = """
SELECT COUNT(*) AS instances, COALESCE(SUM(vcpus), 0) AS cores, COALESCE(SUM(ram), 0) AS ram
FROM servers WHERE project_id = $1 AND NOT deleted
"""


async def fit(
    tx: Transaction, project_id: str, config: Config, each: Mapping[str, int], least: int = 1, most: int = 1
) -> int:
    """How many things that take `each` have room: `most` or fewer. Where `least` have none, all are refused (403).

    Others of the project wait until `tx` ends.
    """
    await tx.hold(f"quota:{project_id}")
    limit = await limits(tx, project_id, config)
    asked = {resource: delta for resource, delta in each.items() if delta > 0 and limit[resource] >= 0}
    if not asked:
        return most
    used = await usage(tx, project_id)
    room = {resource: max(limit[resource] - used[resource], 0) // delta for resource, delta in asked.items()}
    over = [resource for resource, number in room.items() if number < least]
    if over:
        wanted = {resource: least * delta for resource, delta in asked.items()}
        raise Forbidden(_exceeded(over, wanted, used, limit))
    return min(most, *room.values())


async def limits(reader: Reader, project_id: str | None, config: Config) -> dict[str, int]:
    """Every limit of the project; -1 is none."""
    found = _configured(config)
    for row in await reader.fetch(_LIMITS, project_id or ""):
        found[row["resource"]] = row["hard_limit"]
    return found


async def class_limits(reader: Reader, name: str, config: Config) -> dict[str, int]:
    """The limits of a quota class; only the class `default` has a meaning."""
    found = _configured(config)
    for row in await reader.fetch("SELECT resource, hard_limit FROM quota_classes WHERE class_name = $1", name):
        found[row["resource"]] = row["hard_limit"]
    return found


async def usage(reader: Reader, project_id: str) -> dict[str, int]:
    """What the project has of what is counted. A server counts from its creation until it is deleted."""
    row = await reader.fetch_one(_USAGE, project_id)
    assert row is not None
    return {resource: int(row[resource]) for resource in COUNTED}


async def set_limits(tx: Transaction, project_id: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO quotas (project_id, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (project_id, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(project_id, resource, limit) for resource, limit in values.items()],
    )


async def set_class_limits(tx: Transaction, name: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO quota_classes (class_name, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (class_name, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(name, resource, limit) for resource, limit in values.items()],
    )


async def reset(tx: Transaction, project_id: str) -> None:
    """Back to the defaults."""
    await tx.execute("DELETE FROM quotas WHERE project_id = $1", project_id)


def _configured(config: Config) -> dict[str, int]:
    found: dict[str, int] = {resource: getattr(config.quota, resource) for resource in RESOURCES}
    return found | dict.fromkeys(NETWORK_RESOURCES, -1)


def _exceeded(over: list[str], asked: Mapping[str, int], used: Mapping[str, int], limit: Mapping[str, int]) -> str:
    def each(amounts: Mapping[str, Any]) -> str:
        return ", ".join(str(amounts[resource]) for resource in over)

    names = ", ".join(over)
    return (
        f"Quota exceeded for {names}: Requested {each(asked)}, but already used {each(used)} of {each(limit)} {names}"
    )
