"""`GET /allocation_candidates`: in which ways what is asked for could be allocated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from kilonova.http import Answer, Context, Field, View, multi
from kilonova.http.app import JSON
from kilonova.placement.api import api, dated
from kilonova.placement.candidates import query
from kilonova.placement.candidates.finding import Turn, find, in_trees_of
from kilonova.placement.candidates.model import Arrangement, Provider

# Ratios may be so large that most readers of JSON could not take in what comes of them.
LARGEST = 2**53 - 1

TREES = "candidates span trees of providers"

TEXT = multi({"type": "string"})
SUFFIX = "([a-zA-Z0-9_-]{1,64})?"
NUMBER = "([1-9][0-9]*)?"
QUERY: dict[str, dict[str, Any]] = {
    "resources": TEXT,
    "required": TEXT,
    "member_of": TEXT,
    "in_tree": TEXT,
    f"^resources{SUFFIX}$": TEXT,
    f"^required{SUFFIX}$": TEXT,
    f"^member_of{SUFFIX}$": TEXT,
    f"^in_tree{SUFFIX}$": TEXT,
    "group_policy": multi({"enum": ["none", "isolate"]}),
    "same_subtree": TEXT,
    "root_required": TEXT,
    "limit": multi({"type": "string", "pattern": "^[1-9][0-9]*$"}),
}


class Summary(NamedTuple):
    """A provider, and the classes that were asked for."""

    provider: Provider
    asked: frozenset[str]


def _allocations(arrangement: Arrangement, ctx: Context) -> dict[str, Any]:
    return {uuid: {"resources": resources} for uuid, resources in arrangement.allocations.items()}


def listed_allocations(arrangement: Arrangement, ctx: Context) -> list[dict[str, Any]]:
    """As the oldest versions have them."""
    return [
        {"resource_provider": {"uuid": uuid}, "resources": resources}
        for uuid, resources in arrangement.allocations.items()
    ]


def _resources(summary: Summary, ctx: Context) -> dict[str, Any]:
    return {
        name: {"capacity": min(int(stock.capacity), LARGEST), "used": stock.used}
        for name, stock in summary.provider.stocks.items()
    }


def asked_resources(summary: Summary, ctx: Context) -> dict[str, Any]:
    """As older versions have them: nothing that was not asked for."""
    return {name: shown for name, shown in _resources(summary, ctx).items() if name in summary.asked}


def _traits(summary: Summary, ctx: Context) -> list[str]:
    """Standard traits first."""
    return sorted(summary.provider.traits, key=lambda name: (name.startswith("CUSTOM_"), name))


api.view(
    View(
        "allocation request",
        {
            "allocations": Field(_allocations, {"type": "object"}),
            "mappings": Field(lambda arrangement, ctx: arrangement.mappings, {"type": "object"}),
        },
    )
)
api.view(
    View(
        "provider summary",
        {
            "resources": Field(_resources, {"type": "object"}),
            "traits": Field(_traits, {"type": "array"}),
            "parent_provider_uuid": Field(lambda summary, ctx: summary.provider.parent, {"type": ["string", "null"]}),
            "root_provider_uuid": Field(lambda summary, ctx: summary.provider.root, {"type": "string"}),
        },
    )
)


@api.route(
    "GET",
    "/allocation_candidates",
    policy="placement:allocation_candidates:list",
    query=QUERY,
    shows=("allocation_requests", "allocation request", True),
)
async def index(ctx: Context) -> Answer:
    """List the ways in which resources could be allocated."""
    ask = query.candidates(ctx.query, ctx.behaves)
    await query.check_names(ctx.db, ask)
    found = await find(ctx.db, ask, limit=query.limit(ctx.query), nested=ctx.behaves(TREES))
    used = dict.fromkeys(uuid for arrangement in found.arrangements for uuid in arrangement.allocations)
    shown = in_trees_of(used, found.providers) if ctx.behaves(TREES) else [found.providers[uuid] for uuid in used]
    asked = frozenset(name for group in ask.groups.values() for name in group.resources)
    requests = await _written(ctx.render("allocation request", arrangement) for arrangement in found.arrangements)
    summaries = await _written(
        {provider.uuid: ctx.render("provider summary", Summary(provider, asked))} for provider in shown
    )
    body = b'{"allocation_requests":[%b],"provider_summaries":{%b}}' % (
        b",".join(requests),
        b",".join(summary[1:-1] for summary in summaries),
    )
    return dated(ctx, body, headers={"Content-Type": JSON})


async def _written(members: Iterable[Any]) -> list[bytes]:
    """Members of a list as JSON. There may be so many that others have to get their turn in between."""
    turn, found = Turn(), []
    for member in members:
        found.append(orjson.dumps(member))
        await turn.over()
    return found
