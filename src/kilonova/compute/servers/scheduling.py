"""Builds the scheduler's request for a server, from its row, its hints and its server group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec
import orjson

from kilonova.compute.server_groups import model as groups
from kilonova.operations import TransientError
from kilonova.scheduler import Candidate, Request
from kilonova.scheduler.request import GroupRule
from kilonova.scheduler.requirements import host_requirements
from kilonova.store import Reader, Row, Transaction


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The requested destination. A forced one bypasses most filters."""

    host: str | None = None
    hypervisor_hostname: str | None = None
    hypervisor_uuid: str | None = None
    forced: bool = False


ANYWHERE = Destination()


async def request_for(
    reader: Reader,
    server: Row,
    *,
    destination: Destination = ANYWHERE,
    excluded: frozenset[str] = frozenset(),
) -> Request:
    """The request of a server. Its row need not be inserted, for dry runs."""
    hints = orjson.loads(server["scheduler_hints"])
    same = hints.get("same_host")
    return Request(
        **requirements_of(server),
        zone=server["pinned_zone"],
        host=destination.host,
        hypervisor_hostname=destination.hypervisor_hostname,
        hypervisor_uuid=destination.hypervisor_uuid,
        forced=destination.forced,
        excluded_hosts=excluded,
        same_hosts=None if same is None else await _hosts(reader, server, same),
        different_hosts=await _hosts(reader, server, hints.get("different_host", ())),
        group=await group_rule(reader, server),
        project_id=server["project_id"],
        image_id=server["image_id"],
        hints=hints,
    )


def requirements_of(server: Row) -> dict[str, Any]:
    """The request's fields that depend on flavor and image. A server without an image boots from a volume."""
    flavor, properties = orjson.loads(server["flavor"]), orjson.loads(server["image_properties"])
    return host_requirements(flavor, properties, root_disk=server["image_id"] is not None)


async def move_request(
    reader: Reader, server: Row, params: Mapping[str, Any], *, tried: frozenset[str] = frozenset()
) -> Request:
    """The request of a move; `params` are those of `operations.steps.move.Move`."""
    stays = params.get("same_host", False)
    excluded = tried | await hosts_with_cleanup(reader, server["id"]) | (frozenset() if stays else {server["host"]})
    flavor = params.get("flavor")
    wanted = server if flavor is None else {**server, "flavor": orjson.dumps(flavor).decode()}
    return await request_for(reader, wanted, destination=Destination(host=params.get("host")), excluded=excluded)


async def hosts_with_cleanup(reader: Reader, server_id: str) -> frozenset[str]:
    """Hosts with a deferred cleanup of the server's guest, which would destroy a new guest too."""
    rows = await reader.fetch(_CLEARING, server_id)
    return frozenset(row["host"] for row in rows if orjson.loads(row["params"])["guest_id"] == server_id)


# A lost host may have thousands of deferred cleanups, so the query filters by server.
_CLEARING = """
SELECT host, params FROM operations
WHERE kind = 'clean_up_guest' AND finished_at IS NULL AND params LIKE '%' || CAST($1 AS TEXT) || '%'
"""


async def group_rule(reader: Reader, server: Row) -> GroupRule | None:
    """The current rule of the server's group; None without a group."""
    group_id = group_of(orjson.loads(server["scheduler_hints"]))
    return None if group_id is None else await groups.get_rule(reader, group_id, server["id"])


async def group_policy(tx: Transaction, server: Row) -> Callable[[Candidate], bool] | None:
    """A check of candidates by the policy of the server's group; None without a group or with a soft policy.

    Locks the group until `tx` ends, so that the policy still holds for the claim. Raises TransientError while a member
    of an affinity group moves, because the group's host is unknown.
    """
    group_id = group_of(orjson.loads(server["scheduler_hints"]))
    if group_id is None:
        return None
    await groups.lock_members(tx, group_id)
    rule = await groups.get_rule(tx, group_id, server["id"])
    if rule is None or rule.policy in groups.SOFT:
        return None
    if rule.policy == groups.AFFINITY:
        if await groups.has_moving_member(tx, group_id, server["id"]):
            raise TransientError("a server of its server group is moving to another host")
        # A move may have ended since the rule was read, and its server has another host now.
        rule = await groups.get_rule(tx, group_id, server["id"]) or rule
    return partial(_accepts, rule)


def _accepts(rule: GroupRule, candidate: Candidate) -> bool:
    return groups.accepts(rule, candidate.host)


async def others_may_leave(reader: Reader, server: Row, hosts: Collection[str], planned: GroupRule | None) -> bool:
    """Whether only servers that are being built keep the server's affinity group on these failed hosts.

    They followed the server there. If they fail too, the whole group can go elsewhere, so the server should wait.
    `planned` is the rule of the plan, since members may have left after it.
    """
    there = planned.members.keys() if planned and planned.policy == groups.AFFINITY else ()
    if planned is None or not there or not set(there) <= set(hosts):
        return False
    # In this order: a member that settles in between is still in the second result.
    settled = await groups.has_placed_member(reader, planned.id, server["id"])
    now = await groups.get_rule(reader, planned.id, server["id"])
    return not settled or now is None or not now.members or not now.members.keys() <= set(hosts)


def group_of(hints: dict[str, Any]) -> str | None:
    """The group's id in the hints; the API also accepts a list of one."""
    named = hints.get("group")
    if isinstance(named, list):
        named = named[0] if named else None
    return named


async def _hosts(reader: Reader, server: Row, others: str | list[str]) -> frozenset[str]:
    """The hosts of these servers. Servers of other projects are ignored, so that hints do not reveal their hosts."""
    if not others:
        return frozenset()
    wanted = [others] if isinstance(others, str) else others
    rows = await reader.fetch(_PLACED, wanted, server["project_id"])
    return frozenset(row["host"] for row in rows)


_PLACED = """
SELECT DISTINCT host FROM servers
WHERE id = ANY($1) AND project_id = $2 AND NOT deleted AND host IS NOT NULL
"""
