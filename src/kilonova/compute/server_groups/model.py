"""Server groups in the database. A server is a member from its creation until it or the group is deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import Source
from kilonova.compute.servers import states
from kilonova.http.errors import Forbidden
from kilonova.scheduler.request import GroupRule
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record

AFFINITY, ANTI_AFFINITY = "affinity", "anti-affinity"
SOFT = ("soft-affinity", "soft-anti-affinity")
APART = (ANTI_AFFINITY, "soft-anti-affinity")

_HOSTS = """
SELECT s.host, COUNT(*) AS members FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = $1 AND s.id <> $2 AND NOT s.deleted AND s.host IS NOT NULL GROUP BY s.host
"""
# Further hosts of members: destinations of running moves, and sources of resizes that may still be reverted.
_MOVING = """
SELECT place.host, place.undecided, COUNT(*) AS members FROM (
    SELECT CASE WHEN o.finished_at IS NULL THEN v.dest_host ELSE v.source_host END AS host, s.host AS now,
        o.finished_at IS NOT NULL AS undecided
    FROM server_group_members m JOIN servers s ON s.id = m.server_id
    JOIN moves v ON v.server_id = s.id JOIN operations o ON o.id = v.operation_id
    WHERE m.group_id = $1 AND s.id <> $2 AND NOT s.deleted AND (o.finished_at IS NULL OR (
        o.state = 'done' AND v.outcome IS NULL AND v.type IN ('migration', 'resize')))
) place WHERE place.host IS NOT NULL AND place.host <> place.now GROUP BY place.host, place.undecided
"""
_COUNT = """
SELECT COUNT(*) FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = $1 AND (CAST($2 AS TEXT) IS NULL OR s.user_id = $2)
"""
_PLACED_MEMBER = """
SELECT 1 FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = $1 AND s.id <> $2 AND NOT s.deleted AND s.host IS NOT NULL AND s.vm_state <> $3 LIMIT 1
"""
_MEMBERS = """
SELECT m.group_id, m.server_id FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = ANY($1) AND NOT s.deleted ORDER BY s.created_at, s.launch_index, s.id
"""


class ServerGroup(Record, frozen=True):
    """`max_server_per_host`: only of anti-affinity groups."""

    table: ClassVar[str] = "server_groups"

    id: str
    project_id: str
    user_id: str
    name: str
    policy: str
    max_server_per_host: int | None
    created_at: float


class GroupWithMembers(NamedTuple):
    group: ServerGroup
    members: list[str]
    """The ids of its servers."""


async def get(reader: Reader, group_id: str) -> ServerGroup | None:
    return ServerGroup.decode_optional(await reader.fetch_one("SELECT * FROM server_groups WHERE id = $1", group_id))


async def page(reader: Reader, project_id: str | None, limit: int, offset: int) -> list[ServerGroup]:
    """Groups of a project (None: of all projects) in the order of their creation."""
    rows = await reader.fetch(
        "SELECT * FROM server_groups WHERE (CAST($1 AS TEXT) IS NULL OR project_id = $1)"
        " ORDER BY created_at, id LIMIT $2 OFFSET $3",
        project_id,
        limit,
        offset,
    )
    return ServerGroup.decode_all(rows)


async def load_members(reader: Reader, groups: Sequence[ServerGroup]) -> list[GroupWithMembers]:
    members: dict[str, list[str]] = {group.id: [] for group in groups}
    if members:
        for row in await reader.fetch(_MEMBERS, list(members)):
            members[row["group_id"]].append(row["server_id"])
    return [GroupWithMembers(group, members[group.id]) for group in groups]


async def count(tx: Transaction, project_id: str) -> int:
    """The number of groups of the project. No other transaction can add one until `tx` ends."""
    await tx.lock(f"server-groups:{project_id}")
    found: int = await tx.fetch_value("SELECT COUNT(*) FROM server_groups WHERE project_id = $1", project_id)
    return found


async def create(tx: Transaction, group: ServerGroup) -> None:
    await insert_row(tx, "server_groups", group.encode())


async def delete(tx: Transaction, group_id: str) -> bool:
    """Delete the group. Its servers stay, without a policy."""
    await lock_members(tx, group_id)
    return await tx.execute("DELETE FROM server_groups WHERE id = $1", group_id) > 0


# Members


async def lock_members(tx: Transaction, group_id: str) -> None:
    """No other transaction adds members to the group or places one of its servers until `tx` ends."""
    await tx.lock(f"server-group:{group_id}")


async def count_within_quota(
    tx: Transaction, group_id: str, project_id: str, user_id: str, source: Source, minimum: int, maximum: int
) -> int:
    """The number of servers that may join, at most `maximum`; 403 if it is less than `minimum`.

    A user's own limit applies to the user's servers in the group.
    """
    for owner in (None, user_id):
        limit = (await quotas.limits(tx, project_id, source, owner))["server_group_members"]
        if limit < 0:
            continue
        members = int(await tx.fetch_value(_COUNT, group_id, owner))
        if limit - members < minimum:
            raise Forbidden(f"Quota exceeded, too many servers in group: {members} of {limit} members")
        maximum = min(maximum, limit - members)
    return maximum


async def join(tx: Transaction, group_id: str, server_ids: Iterable[str]) -> None:
    await tx.execute_many(
        "INSERT INTO server_group_members (group_id, server_id) VALUES ($1, $2)",
        [(group_id, server_id) for server_id in server_ids],
    )


async def leave(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM server_group_members WHERE server_id = $1", server_id)


async def of_servers(reader: Reader, server_ids: Collection[str]) -> dict[str, str]:
    """The group ids of these servers, without servers that are in no group."""
    sql = "SELECT server_id, group_id FROM server_group_members WHERE server_id = ANY($1)"
    return {row["server_id"]: row["group_id"] for row in await reader.fetch(sql, list(server_ids))}


# Policy


async def get_rule(reader: Reader, group_id: str, server_id: str) -> GroupRule | None:
    """The group's policy and the hosts of its other servers; None if there is no such group.

    Anti-affinity also counts the hosts to which members may come soon.
    """
    group = await get(reader, group_id)
    if group is None:
        return None
    members = Counter({row["host"]: row["members"] for row in await reader.fetch(_HOSTS, group_id, server_id)})
    if group.policy in APART:
        for row in await reader.fetch(_MOVING, group_id, server_id):
            members[row["host"]] += row["members"]
    most = group.max_server_per_host or 1
    return GroupRule(id=group_id, policy=group.policy, max_per_host=most, members=dict(members))


async def has_moving_member(reader: Reader, group_id: str, server_id: str) -> bool:
    """Whether another server of the group is being moved to another host."""
    return any(not row["undecided"] for row in await reader.fetch(_MOVING, group_id, server_id))


async def has_placed_member(reader: Reader, group_id: str, server_id: str) -> bool:
    """Whether another server of the group has a host and is not being built."""
    return await reader.fetch_value(_PLACED_MEMBER, group_id, server_id, states.BUILDING) is not None


def accepts(rule: GroupRule, host: str) -> bool:
    """Whether the group allows one more of its servers on the host. Soft policies allow every host."""
    if rule.policy == ANTI_AFFINITY:
        return rule.members.get(host, 0) < rule.max_per_host
    return rule.policy != AFFINITY or not rule.members or host in rule.members
