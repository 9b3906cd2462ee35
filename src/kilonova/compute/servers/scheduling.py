"""Builds the scheduler's request for a server, from its row, its hints and its server group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import msgspec

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers.server import EmbeddedFlavor, Server
from kilonova.operations import TransientError
from kilonova.scheduler import Candidate, Request
from kilonova.scheduler.request import GroupRule
from kilonova.scheduler.requirements import HostRequirements, host_requirements
from kilonova.store import Reader, Transaction


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The requested destination. A forced one bypasses most filters."""

    host: str | None = None
    hypervisor_hostname: str | None = None
    hypervisor_uuid: str | None = None
    forced: bool = False


ANYWHERE = Destination()


class MoveParams(Protocol):
    """The parameters of a move that its request depends on."""

    @property
    def host(self) -> str | None: ...

    @property
    def flavor(self) -> EmbeddedFlavor | None: ...

    @property
    def same_host(self) -> bool: ...


async def request_for(
    reader: Reader,
    server: Server,
    *,
    destination: Destination = ANYWHERE,
    excluded: frozenset[str] = frozenset(),
) -> Request:
    """The request of a server. Its row need not be inserted, for dry runs."""
    hints = server.scheduler_hints
    same = hints.get("same_host")
    return Request(
        **requirements_of(server),
        zone=server.pinned_zone,
        host=destination.host,
        hypervisor_hostname=destination.hypervisor_hostname,
        hypervisor_uuid=destination.hypervisor_uuid,
        forced=destination.forced,
        excluded_hosts=excluded,
        same_hosts=None if same is None else await _hosts(reader, server, same),
        different_hosts=await _hosts(reader, server, hints.get("different_host")),
        group=await group_rule(reader, server),
        project_id=server.project_id,
        image_id=server.image_id,
        hints=hints,
    )


def requirements_of(server: Server) -> HostRequirements:
    """The request's fields that depend on flavor and image."""
    return host_requirements(server.flavor, server.image_properties, root_disk=not server.is_volume_backed)


async def move_request(
    reader: Reader, server: Server, params: MoveParams, *, tried: frozenset[str] = frozenset()
) -> Request:
    """The request of a move."""
    excluded = tried | await hosts_with_cleanup(reader, server.id)
    if server.host is not None and not params.same_host:
        excluded |= {server.host}
    wanted = server if params.flavor is None else msgspec.structs.replace(server, flavor=params.flavor)
    return await request_for(reader, wanted, destination=Destination(host=params.host), excluded=excluded)


async def hosts_with_cleanup(reader: Reader, server_id: str) -> frozenset[str]:
    """Hosts with a deferred cleanup of the server's guest, which would destroy a new guest too."""
    sql = "SELECT host FROM operations WHERE guest_id = $1 AND kind = $2 AND finished_at IS NULL"
    return frozenset(row["host"] for row in await reader.fetch(sql, server_id, kinds.CLEAN_UP_GUEST))


async def group_rule(reader: Reader, server: Server) -> GroupRule | None:
    """The current rule of the server's group; None without a group."""
    group_id = group_of(server.scheduler_hints)
    return None if group_id is None else await groups.get_rule(reader, group_id, server.id)


async def group_policy(tx: Transaction, server: Server) -> Callable[[Candidate], bool] | None:
    """A check of candidates by the policy of the server's group; None without a group or with a soft policy.

    Locks the group until `tx` ends, so that the policy still holds for the claim. Raises TransientError while a member
    of an affinity group moves, because the group's host is unknown.
    """
    group_id = group_of(server.scheduler_hints)
    if group_id is None:
        return None
    await groups.lock_members(tx, group_id)
    rule = await groups.get_rule(tx, group_id, server.id)
    if rule is None or rule.policy in groups.SOFT:
        return None
    if rule.policy == groups.AFFINITY:
        if await groups.has_moving_member(tx, group_id, server.id):
            raise TransientError("a server of its server group is moving to another host")
        # A move may have ended since the rule was read, and its server has another host now.
        rule = await groups.get_rule(tx, group_id, server.id) or rule
    return partial(_accepts, rule)


def _accepts(rule: GroupRule, candidate: Candidate) -> bool:
    return groups.accepts(rule, candidate.host)


async def others_may_leave(reader: Reader, server: Server, hosts: Collection[str], planned: GroupRule | None) -> bool:
    """Whether only servers that are being built keep the server's affinity group on these failed hosts.

    They followed the server there. If they fail too, the whole group can go elsewhere, so the server should wait.
    `planned` is the rule of the plan, since members may have left after it.
    """
    there = planned.members.keys() if planned and planned.policy == groups.AFFINITY else ()
    if planned is None or not there or not set(there) <= set(hosts):
        return False
    # In this order: a member that settles in between is still in the second result.
    settled = await groups.has_placed_member(reader, planned.id, server.id)
    now = await groups.get_rule(reader, planned.id, server.id)
    return not settled or now is None or not now.members or not now.members.keys() <= set(hosts)


def group_of(hints: Mapping[str, object]) -> str | None:
    """The group's id in the hints; the API also accepts a list of one."""
    return next(iter(_ids(hints.get("group"))), None)


def _ids(hint: object) -> list[str]:
    """The ids in a hint, which is an id or a list of ids."""
    ids = hint if isinstance(hint, list) else [hint]
    return [str(each) for each in ids if each]


async def _hosts(reader: Reader, server: Server, hint: object) -> frozenset[str]:
    """The hosts of these servers. Servers of other projects are ignored, so that hints do not reveal their hosts."""
    others = _ids(hint)
    if not others:
        return frozenset()
    rows = await reader.fetch(_PLACED, others, server.project_id)
    return frozenset(row["host"] for row in rows)


_PLACED = """
SELECT DISTINCT host FROM servers
WHERE id = ANY($1) AND project_id = $2 AND NOT deleted AND host IS NOT NULL
"""
