"""Forced moves (API before 2.68): the destination bypasses the scheduler's filters and gets a copy of the allocation.

Only an allocation of one root provider can be copied, to a root provider with all its resource classes. Obstacles are
reported as the scheduler's rejections are. The claim still checks capacity and strict server groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import scheduling
from kilonova.compute.servers.server import Server
from kilonova.placement import get_allocations
from kilonova.scheduler import Candidate, Diagnosis, Plan
from kilonova.scheduler.explain import Cause, FilterResult, Rejection
from kilonova.scheduler.filters.capacity import format_amount
from kilonova.store import Reader, Row

FORCE = "force"


class _Obstacle(NamedTuple):
    """Why the host is rejected. `text` follows a count of hosts and names none."""

    text: str
    need: str
    have: str


async def plan(reader: Reader, server: Server, host: str, *, tried: frozenset[str] = frozenset()) -> Plan:
    target = await reader.fetch_one(_ROOT, host, None)
    held = (await get_allocations(reader, [server.id])).get(server.id, {})
    amounts = next(iter(held.values()), {})
    request = {"resources": amounts, "host": host, FORCE: True}
    if target is None:
        return Plan((), Diagnosis(hosts=0, filters=(), asked=request))
    excluded = tried | await scheduling.hosts_with_cleanup(reader, server.id) | {server.host_name}
    obstacle = (
        _exclusion(host, excluded)
        or await _complexity(reader, server, held)
        or await _shortage(reader, target, amounts)
        or await _group(reader, server, host)
    )
    if obstacle is not None:
        return Plan((), _refusal(target, obstacle, request))
    candidate = Candidate(target["uuid"], host, target["hypervisor_hostname"], {target["uuid"]: amounts})
    return Plan((candidate,), Diagnosis(hosts=1, filters=(FilterResult(FORCE, 0, 1),), asked=request))


def _refusal(target: Row, obstacle: _Obstacle, request: Mapping[str, object]) -> Diagnosis:
    rejection = Rejection(target["host"], target["hypervisor_hostname"], target["uuid"], FORCE, *obstacle)
    result = FilterResult(FORCE, 1, 0, (Cause(obstacle.text, 1),))
    return Diagnosis(hosts=1, filters=(result,), rejections=(rejection,), asked=request)


def _exclusion(host: str, excluded: frozenset[str]) -> _Obstacle | None:
    if host not in excluded:
        return None
    return _Obstacle("excluded", f"any but {', '.join(sorted(excluded))}", host)


async def _complexity(reader: Reader, server: Server, held: Mapping[str, Mapping[str, int]]) -> _Obstacle | None:
    """An allocation of several providers, or of a nested or sharing one, cannot be copied."""
    source = await reader.fetch_one(_ROOT, server.host, server.hypervisor_hostname)
    if source is not None and list(held) == [source["uuid"]]:
        return None
    rows = await reader.fetch("SELECT uuid, name FROM resource_providers WHERE uuid = ANY($1)", list(held))
    names = {row["uuid"]: row["name"] for row in rows}
    have = "; ".join(f"{', '.join(sorted(given))} of {names.get(uuid, uuid)}" for uuid, given in sorted(held.items()))
    text = "cannot be forced: the server's allocation is complex"
    return _Obstacle(text, "an allocation of the source's root provider alone", have or "no allocation")


async def _shortage(reader: Reader, target: Row, amounts: Mapping[str, int]) -> _Obstacle | None:
    """The destination's root provider must have every resource class and enough of it."""
    rows = await reader.fetch(_STOCK, target["uuid"])
    stock = {row["resource_class"]: row for row in rows}
    if missing := sorted(amounts.keys() - stock.keys()):
        text = "cannot be forced: the server's allocation there would be complex"
        have = f"no {' and no '.join(missing)} of its root provider"
        return _Obstacle(text, f"{', '.join(sorted(amounts))} of its root provider alone", have)
    for name, wanted in amounts.items():
        room = stock[name]
        free = int(room["capacity"]) - room["used"]
        least, most, step = room["min_unit"], room["max_unit"], room["step_size"]
        if wanted > free:
            have = f"{format_amount(name, max(0, free))} free of {format_amount(name, room['capacity'])}"
            return _Obstacle(f"lack {format_amount(name, wanted)}", format_amount(name, wanted), have)
        if not least <= wanted <= most or wanted % step:
            have = f"{format_amount(name, least)} to {format_amount(name, most)} for one server, in steps of {step}"
            return _Obstacle(f"cannot give one server {format_amount(name, wanted)}", format_amount(name, wanted), have)
    return None


async def _group(reader: Reader, server: Server, host: str) -> _Obstacle | None:
    rule = await scheduling.group_rule(reader, server)
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
