"""Limits of projects and of users in them, and what they use: counted from the things themselves when asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kilonova.compute.servers import states
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
# Limited by the network service. What old versions say of them is kept for old versions, and limits nothing.
NETWORK_RESOURCES = ("fixed_ips", "floating_ips", "security_groups", "security_group_rules")

# Each kind stands before the ones above it: defaults, the project's, the user's own.
_CLASS, _PROJECT, _USER = 0, 1, 2
_LIMITS = f"""
SELECT {_CLASS} AS whose, resource, hard_limit FROM quota_classes WHERE class_name = '{DEFAULT_CLASS}'
UNION ALL SELECT {_PROJECT} AS whose, resource, hard_limit FROM quotas WHERE project_id = $1
UNION ALL SELECT {_USER} AS whose, resource, hard_limit FROM user_quotas WHERE project_id = $1 AND user_id = $2
ORDER BY whose
"""
_WHOSE = "project_id = $1 AND (CAST($2 AS TEXT) IS NULL OR user_id = $2)"
_USAGE = f"""
SELECT COUNT(*) AS instances, COALESCE(SUM(vcpus), 0) AS cores, COALESCE(SUM(ram), 0) AS ram
FROM servers WHERE project_id = $1 AND NOT deleted AND vm_state <> '{states.SOFT_DELETED}'
"""
_GROUPS = f"SELECT COUNT(*) FROM server_groups WHERE {_WHOSE}"
# The limit is one for each group, so the fullest group is what it is held against.
_MEMBERS = f"""
SELECT COUNT(*) AS number FROM server_group_members m JOIN server_groups g ON g.id = m.group_id
WHERE {_WHOSE} GROUP BY g.id ORDER BY number DESC LIMIT 1
"""
_KEY_PAIRS = "SELECT COUNT(*) FROM keypairs WHERE user_id = $1"


async def fit(
    tx: Transaction,
    project_id: str,
    config: Config,
    each: Mapping[str, int],
    least: int = 1,
    most: int = 1,
    *,
    user_id: str | None = None,
) -> int:
    """How many things that take `each` have room: `most` or fewer. Where `least` have none, all are refused (403).

    The user's own limits in the project count too. Others of the project wait until `tx` ends.
    """
    await tx.hold(f"quota:{project_id}")
    of_project, of_user = await _both_limits(tx, project_id, user_id, config)
    most = await _fit_in(tx, of_project, (project_id, None), each, least, most)
    return await _fit_in(tx, of_user, (project_id, user_id), each, least, most) if of_user else most


async def _fit_in(
    tx: Transaction,
    limit: Mapping[str, int],
    whose: tuple[str, str | None],
    each: Mapping[str, int],
    least: int,
    most: int,
) -> int:
    asked = {resource: delta for resource, delta in each.items() if delta > 0 and limit.get(resource, -1) >= 0}
    if not asked:
        return most
    used = await server_usage(tx, *whose)
    room = {resource: max(limit[resource] - used[resource], 0) // delta for resource, delta in asked.items()}
    over = [resource for resource, number in room.items() if number < least]
    if over:
        wanted = {resource: least * delta for resource, delta in asked.items()}
        raise Forbidden(_exceeded(over, wanted, used, limit))
    return min(most, *room.values())


async def limits(reader: Reader, project_id: str | None, config: Config, user_id: str | None = None) -> dict[str, int]:
    """Every limit of the project, or of a user in it; -1 is none."""
    of_project, of_user = await _both_limits(reader, project_id, user_id, config)
    return of_project | of_user


async def _both_limits(
    reader: Reader, project_id: str | None, user_id: str | None, config: Config
) -> tuple[dict[str, int], dict[str, int]]:
    """All limits of the project, and those that the user has of their own."""
    of_project, of_user = _configured(config), dict[str, int]()
    for row in await reader.fetch(_LIMITS, project_id or "", user_id or ""):
        limits = of_user if row["whose"] == _USER else of_project
        limits[row["resource"]] = row["hard_limit"]
    return of_project, of_user


async def class_limits(reader: Reader, name: str, config: Config) -> dict[str, int]:
    """The limits of a quota class; only the class `default` has a meaning."""
    found = _configured(config)
    for row in await reader.fetch("SELECT resource, hard_limit FROM quota_classes WHERE class_name = $1", name):
        found[row["resource"]] = row["hard_limit"]
    return found


async def usage(reader: Reader, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """What the project, or a user in it, has of what is counted."""
    found = await server_usage(reader, project_id, user_id)
    found["server_groups"] = int(await reader.fetch_value(_GROUPS, project_id, user_id))
    found["server_group_members"] = int(await reader.fetch_value(_MEMBERS, project_id, user_id) or 0)
    if user_id is not None:
        # Key pairs belong to users and to no project.
        found["key_pairs"] = int(await reader.fetch_value(_KEY_PAIRS, user_id))
    return found


async def server_usage(reader: Reader, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """A server counts from its creation until it is deleted, if only for a while."""
    if user_id is None:
        row = await reader.fetch_one(_USAGE, project_id)
    else:
        row = await reader.fetch_one(f"{_USAGE} AND user_id = $2", project_id, user_id)
    assert row is not None
    return {resource: int(row[resource]) for resource in COUNTED}


async def user_is_full(reader: Reader, project_id: str, user_id: str, config: Config, resource: str) -> bool:
    """Whether the user has all of it that a limit of their own allows."""
    _, of_user = await _both_limits(reader, project_id, user_id, config)
    limit = of_user.get(resource, -1)
    return limit >= 0 and (await usage(reader, project_id, user_id))[resource] >= limit


async def set_limits(tx: Transaction, project_id: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO quotas (project_id, resource, hard_limit) VALUES ($1, $2, $3)
        ON CONFLICT (project_id, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(project_id, resource, limit) for resource, limit in values.items()],
    )


async def set_user_limits(tx: Transaction, project_id: str, user_id: str, values: Mapping[str, int]) -> None:
    await tx.execute_many(
        """
        INSERT INTO user_quotas (project_id, user_id, resource, hard_limit) VALUES ($1, $2, $3, $4)
        ON CONFLICT (project_id, user_id, resource) DO UPDATE SET hard_limit = excluded.hard_limit
        """,
        [(project_id, user_id, resource, limit) for resource, limit in values.items()],
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
    """Back to the defaults, also for the users of the project."""
    await tx.execute("DELETE FROM quotas WHERE project_id = $1", project_id)
    await tx.execute("DELETE FROM user_quotas WHERE project_id = $1", project_id)


async def reset_user(tx: Transaction, project_id: str, user_id: str) -> None:
    """Back to what the project has."""
    await tx.execute("DELETE FROM user_quotas WHERE project_id = $1 AND user_id = $2", project_id, user_id)


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
