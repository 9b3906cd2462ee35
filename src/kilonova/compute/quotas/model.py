"""Quotas of projects and of users in them. Usage is counted from the resources themselves on each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from kilonova.compute.quotas import resource_classes
from kilonova.compute.quotas.source import Source
from kilonova.compute.servers import states
from kilonova.http.errors import Forbidden
from kilonova.store import Reader, Transaction
from kilonova.unified_limits import LIMIT_NAMES

DEFAULT_CLASS = "default"
COUNTED = ("instances", "cores", "ram")
RESOURCES = tuple(LIMIT_NAMES)

# Precedence: a user's own limit overrides the project's, which overrides the default class.
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
# The limit applies to each group, so the usage is that of the largest group.
_MEMBERS = f"""
SELECT COUNT(*) AS number FROM server_group_members m JOIN server_groups g ON g.id = m.group_id
WHERE {_WHOSE} GROUP BY g.id ORDER BY number DESC LIMIT 1
"""
_KEY_PAIRS = "SELECT COUNT(*) FROM keypairs WHERE user_id = $1"


async def count_within_quota(
    tx: Transaction,
    project_id: str,
    source: Source,
    each: Mapping[str, int],
    minimum: int = 1,
    maximum: int = 1,
    *,
    user_id: str | None = None,
) -> int:
    """The number of servers, each with these resources, that the quota allows: at most `maximum`; 403 if it is less
    than `minimum`.

    The user's own limits count, too. Other requests of the project wait until `tx` ends.
    """
    await tx.lock(f"quota:{project_id}")
    if source.unified is not None:
        limit = {resource: source.unified.limit(resource) for resource in each}
        return await _count_within_limits(tx, limit, resource_classes.used, (project_id,), each, minimum, maximum)
    of_project, of_user = await _project_and_user_limits(tx, project_id, user_id, source)
    count = await _count_within_limits(tx, of_project, server_usage, (project_id,), each, minimum, maximum)
    if not of_user:
        return count
    return await _count_within_limits(tx, of_user, server_usage, (project_id, user_id), each, minimum, count)


async def _count_within_limits(
    tx: Transaction,
    limit: Mapping[str, int],
    usage: Callable[..., Awaitable[Mapping[str, int]]],
    owner: tuple[str | None, ...],
    each: Mapping[str, int],
    minimum: int,
    maximum: int,
) -> int:
    limited = {resource: delta for resource, delta in each.items() if delta > 0 and limit.get(resource, -1) >= 0}
    if not limited:
        return maximum
    used = await usage(tx, *owner)
    counts = {resource: max(limit[resource] - used.get(resource, 0), 0) // delta for resource, delta in limited.items()}
    exceeded = [resource for resource, count in counts.items() if count < minimum]
    if exceeded:
        requested = {resource: minimum * delta for resource, delta in limited.items()}
        raise Forbidden(_exceeded_message(exceeded, requested, {**dict.fromkeys(exceeded, 0), **used}, limit))
    return min(maximum, *counts.values())


async def limits(reader: Reader, project_id: str | None, source: Source, user_id: str | None = None) -> dict[str, int]:
    """All limits of the project, or of a user in it; -1 is unlimited."""
    of_project, of_user = await _project_and_user_limits(reader, project_id, user_id, source)
    return of_project | of_user


async def _project_and_user_limits(
    reader: Reader, project_id: str | None, user_id: str | None, source: Source
) -> tuple[dict[str, int], dict[str, int]]:
    """All limits of the project, and the user's own limits. Users have none among unified limits."""
    of_project, of_user = dict(source.limits), dict[str, int]()
    if source.unified is not None:
        return of_project, of_user
    for row in await reader.fetch(_LIMITS, project_id or "", user_id or ""):
        limits = of_user if row["whose"] == _USER else of_project
        limits[row["resource"]] = row["hard_limit"]
    return of_project, of_user


async def class_limits(reader: Reader, name: str, source: Source) -> dict[str, int]:
    """The limits of a quota class; only the class `default` has an effect. With unified limits all are the defaults."""
    found = dict(source.limits)
    if source.unified is not None:
        return found | source.unified.defaults_of_api()
    for row in await reader.fetch("SELECT resource, hard_limit FROM quota_classes WHERE class_name = $1", name):
        found[row["resource"]] = row["hard_limit"]
    return found


async def usage(reader: Reader, project_id: str, source: Source, user_id: str | None = None) -> dict[str, int]:
    """The usage of the project, or of a user in it."""
    if source.unified is None:
        found = await server_usage(reader, project_id, user_id)
    else:
        counted = await resource_classes.used(reader, project_id)
        found = {resource: counted[LIMIT_NAMES[resource]] for resource in COUNTED}
    found["server_groups"] = int(await reader.fetch_value(_GROUPS, project_id, user_id))
    found["server_group_members"] = int(await reader.fetch_value(_MEMBERS, project_id, user_id) or 0)
    if user_id is not None:
        # Key pairs belong to users and to no project.
        found["key_pairs"] = int(await reader.fetch_value(_KEY_PAIRS, user_id))
    return found


async def server_usage(reader: Reader, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """A server counts from its creation until it is deleted or soft-deleted."""
    if user_id is None:
        row = await reader.fetch_one(_USAGE, project_id)
    else:
        row = await reader.fetch_one(f"{_USAGE} AND user_id = $2", project_id, user_id)
    assert row is not None
    return {resource: int(row[resource]) for resource in COUNTED}


async def is_user_limit_reached(reader: Reader, project_id: str, user_id: str, source: Source, resource: str) -> bool:
    """Whether the user's own limit, if there is one, is reached."""
    _, of_user = await _project_and_user_limits(reader, project_id, user_id, source)
    limit = of_user.get(resource, -1)
    return limit >= 0 and (await usage(reader, project_id, source, user_id))[resource] >= limit


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
    """Reset the project and its users to the defaults."""
    await tx.execute("DELETE FROM quotas WHERE project_id = $1", project_id)
    await tx.execute("DELETE FROM user_quotas WHERE project_id = $1", project_id)


async def reset_user(tx: Transaction, project_id: str, user_id: str) -> None:
    """Reset the user to the project's limits."""
    await tx.execute("DELETE FROM user_quotas WHERE project_id = $1 AND user_id = $2", project_id, user_id)


def _exceeded_message(
    exceeded: list[str], requested: Mapping[str, int], used: Mapping[str, int], limit: Mapping[str, int]
) -> str:
    def join(amounts: Mapping[str, int]) -> str:
        return ", ".join(str(amounts[resource]) for resource in exceeded)

    names = ", ".join(exceeded)
    return (
        f"Quota exceeded for {names}: Requested {join(requested)},"
        f" but already used {join(used)} of {join(limit)} {names}"
    )
