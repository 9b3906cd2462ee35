"""Server groups in the database. Membership lasts from a server's creation to its deletion, or the group's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kilonova.compute.quotas import model as quotas
from kilonova.compute.servers import states
from kilonova.http.errors import Forbidden
from kilonova.scheduler.request import GroupRule
from kilonova.store import Reader, Row, Transaction

if TYPE_CHECKING:
    from kilonova.config import Config

AFFINITY, ANTI_AFFINITY = "affinity", "anti-affinity"
SOFT = ("soft-affinity", "soft-anti-affinity")
APART = (ANTI_AFFINITY, "soft-anti-affinity")

_COLUMNS = ("id", "project_id", "user_id", "name", "policy", "max_server_per_host", "created_at")
_INSERT = "INSERT INTO server_groups ({}) VALUES ({})".format(
    ", ".join(_COLUMNS), ", ".join(f"${place}" for place in range(1, len(_COLUMNS) + 1))
)
_HOSTS = """
SELECT s.host, COUNT(*) AS members FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = $1 AND s.id <> $2 AND NOT s.deleted AND s.host IS NOT NULL GROUP BY s.host
"""
# Beside where they are: where moves under way take them, and where a resize that is not decided can bring them back.
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
_SETTLED = """
SELECT 1 FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = $1 AND s.id <> $2 AND NOT s.deleted AND s.host IS NOT NULL AND s.vm_state <> $3 LIMIT 1
"""
_MEMBERS = """
SELECT m.group_id, m.server_id FROM server_group_members m JOIN servers s ON s.id = m.server_id
WHERE m.group_id = ANY($1) AND NOT s.deleted ORDER BY s.created_at, s.launch_index, s.id
"""


async def get(reader: Reader, group_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM server_groups WHERE id = $1", group_id)


async def page(reader: Reader, project_id: str | None, limit: int, offset: int) -> list[Row]:
    """Groups of a project, or of all, in the order of their creation."""
    return await reader.fetch(
        "SELECT * FROM server_groups WHERE (CAST($1 AS TEXT) IS NULL OR project_id = $1)"
        " ORDER BY created_at, id LIMIT $2 OFFSET $3",
        project_id,
        limit,
        offset,
    )


async def dress(reader: Reader, groups: Sequence[Row]) -> None:
    """Add the ids of their servers."""
    members: dict[str, list[str]] = {group["id"]: [] for group in groups}
    if members:
        for row in await reader.fetch(_MEMBERS, list(members)):
            members[row["group_id"]].append(row["server_id"])
    for group in groups:
        group["members"] = members[group["id"]]


async def count(tx: Transaction, project_id: str) -> int:
    """How many the project has. Until the transaction ends nobody else can add one."""
    await tx.hold(f"server-groups:{project_id}")
    found: int = await tx.fetch_value("SELECT COUNT(*) FROM server_groups WHERE project_id = $1", project_id)
    return found


async def create(tx: Transaction, group: Row) -> None:
    await tx.execute(_INSERT, *(group[name] for name in _COLUMNS))


async def delete(tx: Transaction, group_id: str) -> bool:
    """Its servers stay as they are, and are free to go where they like."""
    await hold(tx, group_id)
    return await tx.execute("DELETE FROM server_groups WHERE id = $1", group_id) > 0


# Members


async def hold(tx: Transaction, group_id: str) -> None:
    """Until the transaction ends nobody else joins the group, or places one of its servers."""
    await tx.hold(f"server-group:{group_id}")


async def room(
    tx: Transaction, group_id: str, project_id: str, user_id: str, config: Config, least: int, most: int
) -> int:
    """How many servers may join: `most` or fewer. Where `least` may not, all are refused (403).

    A limit of the user's own is one on how many of the group are theirs.
    """
    for whose in (None, user_id):
        limit = (await quotas.limits(tx, project_id, config, whose))["server_group_members"]
        if limit < 0:
            continue
        there = int(await tx.fetch_value(_COUNT, group_id, whose))
        if limit - there < least:
            raise Forbidden(f"Quota exceeded, too many servers in group: {there} there, {limit} allowed")
        most = min(most, limit - there)
    return most


async def join(tx: Transaction, group_id: str, server_ids: Iterable[str]) -> None:
    await tx.execute_many(
        "INSERT INTO server_group_members (group_id, server_id) VALUES ($1, $2)",
        [(group_id, server_id) for server_id in server_ids],
    )


async def leave(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM server_group_members WHERE server_id = $1", server_id)


async def of_servers(reader: Reader, server_ids: Collection[str]) -> dict[str, str]:
    """The group of each of these servers that is in one."""
    sql = "SELECT server_id, group_id FROM server_group_members WHERE server_id = ANY($1)"
    return {row["server_id"]: row["group_id"] for row in await reader.fetch(sql, list(server_ids))}


# Policy


async def rule_of(reader: Reader, group_id: str, server_id: str) -> GroupRule | None:
    """What the group asks of the server's host, and where its other servers are. None: there is no such group.

    Whoever shall stay away from them also stays away from where they may be soon.
    """
    group = await get(reader, group_id)
    if group is None:
        return None
    members = Counter({row["host"]: row["members"] for row in await reader.fetch(_HOSTS, group_id, server_id)})
    if group["policy"] in APART:
        for row in await reader.fetch(_MOVING, group_id, server_id):
            members[row["host"]] += row["members"]
    most = group["max_server_per_host"] or 1
    return GroupRule(id=group_id, policy=group["policy"], max_per_host=most, members=dict(members))


async def is_moving(reader: Reader, group_id: str, server_id: str) -> bool:
    """Whether another server of the group is on its way to another host."""
    return any(not row["undecided"] for row in await reader.fetch(_MOVING, group_id, server_id))


async def has_settled(reader: Reader, group_id: str, server_id: str) -> bool:
    """Whether another server of the group has a host for good, and is not just being built there."""
    return await reader.fetch_value(_SETTLED, group_id, server_id, states.BUILDING) is not None


def accepts(rule: GroupRule, host: str) -> bool:
    """Whether the group lets one more of its servers go to the host. Soft policies only wish."""
    if rule.policy == ANTI_AFFINITY:
        return rule.members.get(host, 0) < rule.max_per_host
    return rule.policy != AFFINITY or not rule.members or host in rule.members
