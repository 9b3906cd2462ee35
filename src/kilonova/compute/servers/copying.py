"""Moves that old versions of the API force: the named host, past the scheduler's filters, with a copy of the share.

Only what a server holds of one root provider can be copied, and only to a root that has it all. Whatever is in the way
is told as the scheduler tells it. The claim decides about room and the policy of strict server groups, as it always
does; a plan that is refused here need not come to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import placing
from kilonova.placement import allocations_of
from kilonova.scheduler import Candidate, Diagnosis, Plan
from kilonova.scheduler.explain import Cause, FilterResult, Rejection
from kilonova.scheduler.filters.capacity import amount
from kilonova.store import Reader, Row

FORCE = "force"


class _Obstacle(NamedTuple):
    """What speaks against the host. `text` follows a number and names nobody."""

    text: str
    need: str
    have: str


async def plan(reader: Reader, server: Row, host: str, *, tried: frozenset[str] = frozenset()) -> Plan:
    target = await reader.fetch_one(_ROOT, host, None)
    held = (await allocations_of(reader, [server["id"]])).get(server["id"], {})
    share = next(iter(held.values()), {})
    asked = {"resources": share, "host": host, FORCE: True}
    if target is None:
        return Plan((), Diagnosis(hosts=0, filters=(), asked=asked))
    excluded = tried | await placing.uncleared(reader, server["id"]) | {server["host"]}
    obstacle = (
        _exclusion(host, excluded)
        or await _complexity(reader, server, held)
        or await _shortage(reader, target, share)
        or await _group(reader, server, host)
    )
    if obstacle is not None:
        return Plan((), _refusal(target, obstacle, asked))
    candidate = Candidate(target["uuid"], host, target["hypervisor_hostname"], {target["uuid"]: share})
    return Plan((candidate,), Diagnosis(hosts=1, filters=(FilterResult(FORCE, 0, 1),), asked=asked))


def _refusal(target: Row, obstacle: _Obstacle, asked: Mapping[str, object]) -> Diagnosis:
    rejection = Rejection(target["host"], target["hypervisor_hostname"], target["uuid"], FORCE, *obstacle)
    result = FilterResult(FORCE, 1, 0, (Cause(obstacle.text, 1),))
    return Diagnosis(hosts=1, filters=(result,), rejections=(rejection,), asked=asked)


def _exclusion(host: str, excluded: frozenset[str]) -> _Obstacle | None:
    if host not in excluded:
        return None
    return _Obstacle("excluded", f"any but {', '.join(sorted(excluded))}", host)


async def _complexity(reader: Reader, server: Row, held: Mapping[str, Mapping[str, int]]) -> _Obstacle | None:
    """A share of several providers, or of one that is nested or shared."""
    source = await reader.fetch_one(_ROOT, server["host"], server["hypervisor_hostname"])
    if source is not None and list(held) == [source["uuid"]]:
        return None
    rows = await reader.fetch("SELECT uuid, name FROM resource_providers WHERE uuid = ANY($1)", list(held))
    names = {row["uuid"]: row["name"] for row in rows}
    have = "; ".join(f"{', '.join(sorted(given))} of {names.get(uuid, uuid)}" for uuid, given in sorted(held.items()))
    text = "cannot be forced: the server's allocation is complex"
    return _Obstacle(text, "an allocation of the source's root provider alone", have or "no allocation")


async def _shortage(reader: Reader, target: Row, share: Mapping[str, int]) -> _Obstacle | None:
    """What the root does not have at all, it could give only by way of other providers."""
    rows = await reader.fetch(_STOCK, target["uuid"])
    stock = {row["resource_class"]: row for row in rows}
    if missing := sorted(share.keys() - stock.keys()):
        text = "cannot be forced: the server's allocation there would be complex"
        have = f"no {' and no '.join(missing)} of its root provider"
        return _Obstacle(text, f"{', '.join(sorted(share))} of its root provider alone", have)
    for name, wanted in share.items():
        room = stock[name]
        free = int(room["capacity"]) - room["used"]
        least, most, step = room["min_unit"], room["max_unit"], room["step_size"]
        if wanted > free:
            have = f"{amount(name, max(0, free))} free of {amount(name, room['capacity'])}"
            return _Obstacle(f"lack {amount(name, wanted)}", amount(name, wanted), have)
        if not least <= wanted <= most or wanted % step:
            have = f"{amount(name, least)} to {amount(name, most)} for one server, in steps of {step}"
            return _Obstacle(f"cannot give one server {amount(name, wanted)}", amount(name, wanted), have)
    return None


async def _group(reader: Reader, server: Row, host: str) -> _Obstacle | None:
    rule = await placing.group_rule(reader, server)
    if rule is None or rule.policy in groups.SOFT or groups.accepts(rule, host):
        return None
    there = rule.members.get(host, 0)
    return _Obstacle("against the policy of its server group", rule.policy, f"{there} of the group")


_ROOT = """
SELECT uuid, host, hypervisor_hostname FROM hypervisors
WHERE host = $1 AND (CAST($2 AS TEXT) IS NULL OR hypervisor_hostname = $2) ORDER BY id LIMIT 1
"""
_STOCK = """
SELECT i.resource_class, i.min_unit, i.max_unit, i.step_size, (i.total - i.reserved) * i.allocation_ratio AS capacity,
    COALESCE((SELECT CAST(SUM(a.used) AS BIGINT) FROM allocations a
        WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0) AS used
FROM inventories i JOIN resource_providers p ON p.id = i.provider_id WHERE p.uuid = $1
"""
