"""What a server asks of the scheduler: from its own row, its hints, and where others are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import orjson

from kilonova.compute.server_groups import model as groups
from kilonova.operations import Passing
from kilonova.scheduler import Candidate, Request
from kilonova.scheduler.request import GroupRule
from kilonova.scheduler.specs import needs
from kilonova.store import Reader, Row, Transaction


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where somebody wants the server. A forced destination is taken without asking most of the filters."""

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
    """The row need not be in the database yet: a plan can be made for a server that may never be."""
    hints = orjson.loads(server["scheduler_hints"])
    same = hints.get("same_host")
    return Request(
        **needs_of(server),
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


def needs_of(server: Row) -> dict[str, Any]:
    """The fields of a request that the server's flavor and image decide. One without an image boots from a volume."""
    flavor, properties = orjson.loads(server["flavor"]), orjson.loads(server["image_properties"])
    return needs(flavor, properties, root_disk=server["image_id"] is not None)


async def move_request(
    reader: Reader, server: Row, params: Mapping[str, Any], *, tried: frozenset[str] = frozenset()
) -> Request:
    """What a move asks; `params` are those of `operations.moving.Move`. It leaves its host, unless it may stay."""
    stays = params.get("same_host", False)
    excluded = tried | await uncleared(reader, server["id"]) | (frozenset() if stays else {server["host"]})
    flavor = params.get("flavor")
    wanted = server if flavor is None else {**server, "flavor": orjson.dumps(flavor).decode()}
    return await request_for(reader, wanted, destination=Destination(host=params.get("host")), excluded=excluded)


async def uncleared(reader: Reader, server_id: str) -> frozenset[str]:
    """Hosts that are to remove remains of the server's guest, and might remove a new one with them."""
    rows = await reader.fetch(_CLEARING, server_id)
    return frozenset(row["host"] for row in rows if orjson.loads(row["params"])["guest_id"] == server_id)


# A lost host may have thousands to clear, so what is not about this server is not even read.
_CLEARING = """
SELECT host, params FROM operations
WHERE kind = 'clear guest' AND finished_at IS NULL AND params LIKE '%' || CAST($1 AS TEXT) || '%'
"""


async def group_rule(reader: Reader, server: Row) -> GroupRule | None:
    """The rule of the server's group as it stands now. A group that was deleted rules no longer."""
    group_id = group_of(orjson.loads(server["scheduler_hints"]))
    return None if group_id is None else await groups.rule_of(reader, group_id, server["id"])


async def group_policy(tx: Transaction, server: Row) -> Callable[[Candidate], bool] | None:
    """Which candidates the server's group lets it have. None: no group, or one that only wishes.

    Until `tx` ends no other member is placed, so what is true now stays true for the claim. Where an affinity group
    will be is not known while one of its servers moves: Passing.
    """
    group_id = group_of(orjson.loads(server["scheduler_hints"]))
    if group_id is None:
        return None
    await groups.hold(tx, group_id)
    rule = await groups.rule_of(tx, group_id, server["id"])
    if rule is None or rule.policy in groups.SOFT:
        return None
    if rule.policy == groups.AFFINITY and await groups.is_moving(tx, group_id, server["id"]):
        raise Passing("a server of its group is on its way to another host")
    return lambda candidate: groups.accepts(rule, candidate.host)


async def others_may_leave(reader: Reader, server: Row, hosts: Collection[str], planned: GroupRule | None) -> bool:
    """Whether nothing but servers that were being built kept a server's affinity group on these hosts.

    They followed it there before it failed. If they fail too, they leave as it did, and all may go elsewhere together.
    Some may have left since the plan was made, which is why its rule is asked for.
    """
    there = planned.members.keys() if planned and planned.policy == groups.AFFINITY else ()
    if planned is None or not there or not set(there) <= set(hosts):
        return False
    # In this order: who has settled stays, so that whoever is still there next did so there.
    settled = await groups.has_settled(reader, planned.id, server["id"])
    now = await groups.rule_of(reader, planned.id, server["id"])
    return not settled or now is None or not now.members or not now.members.keys() <= set(hosts)


def group_of(hints: dict[str, Any]) -> str | None:
    """The id of the group that the hints name; the API also takes it as a list of one."""
    named = hints.get("group")
    if isinstance(named, list):
        named = named[0] if named else None
    return named


async def _hosts(reader: Reader, server: Row, others: str | list[str]) -> frozenset[str]:
    """Where these servers of the same project are: nobody learns by hints where those of others are.

    One that is gone, or nowhere yet, is no reason to go or not to go anywhere.
    """
    if not others:
        return frozenset()
    wanted = [others] if isinstance(others, str) else others
    rows = await reader.fetch(_PLACED, wanted, server["project_id"])
    return frozenset(row["host"] for row in rows)


_PLACED = """
SELECT DISTINCT host FROM servers
WHERE id = ANY($1) AND project_id = $2 AND NOT deleted AND host IS NOT NULL
"""
