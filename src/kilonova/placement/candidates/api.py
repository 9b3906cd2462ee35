"""`GET /allocation_candidates`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from kilonova.http import Context, Field, Response, View, multi
from kilonova.http.loop_yielder import LoopYielder
from kilonova.http.media_types import JSON
from kilonova.http.schema import Schema
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.candidates import query
from kilonova.placement.candidates.finder import find_candidates, providers_of_trees
from kilonova.placement.candidates.model import AllocationRequest, Provider

# Large allocation ratios yield capacities that most JSON parsers cannot represent.
MAX_JSON_INTEGER = 2**53 - 1

NESTED_CANDIDATES = api.behaviour("candidates span provider trees")

TEXT = multi({"type": "string"})
SUFFIX = "([a-zA-Z0-9_-]{1,64})?"
NUMBER = "([1-9][0-9]*)?"
QUERY: dict[str, Schema] = {
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


class ProviderSummary(NamedTuple):
    """A provider, and the requested classes."""

    provider: Provider
    requested: frozenset[str]


def _allocations(candidate: AllocationRequest, ctx: Context) -> dict[str, object]:
    return {uuid: {"resources": resources} for uuid, resources in candidate.allocations.items()}


def allocations_as_list(candidate: AllocationRequest, ctx: Context) -> list[dict[str, object]]:
    """The form before 1.12."""
    return [
        {"resource_provider": {"uuid": uuid}, "resources": resources}
        for uuid, resources in candidate.allocations.items()
    ]


def _resources(summary: ProviderSummary, ctx: Context) -> dict[str, object]:
    return {
        name: {"capacity": min(int(inventory.capacity), MAX_JSON_INTEGER), "used": inventory.used}
        for name, inventory in summary.provider.inventories.items()
    }


def requested_resources(summary: ProviderSummary, ctx: Context) -> dict[str, object]:
    """The form before 1.27: requested classes only."""
    return {name: shown for name, shown in _resources(summary, ctx).items() if name in summary.requested}


def _traits(summary: ProviderSummary, ctx: Context) -> list[str]:
    """Standard traits first."""
    return sorted(summary.provider.traits, key=lambda name: (name.startswith("CUSTOM_"), name))


api.view(
    View(
        "allocation request",
        {
            "allocations": Field(_allocations, {"type": "object"}),
            "mappings": Field(lambda candidate, ctx: candidate.mappings, {"type": "object"}),
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
async def index(ctx: Context) -> Response:
    """List allocation candidates."""
    request = query.parse_request(ctx.query, ctx.has_behaviour)
    await query.check_names_exist(ctx.db, request)
    nested = ctx.has_behaviour(NESTED_CANDIDATES)
    found = await find_candidates(ctx.db, request, limit=query.parse_limit(ctx.query), nested=nested)
    used = dict.fromkeys(uuid for one in found.allocation_requests for uuid in one.allocations)
    shown = providers_of_trees(used, found.providers) if nested else [found.providers[uuid] for uuid in used]
    requested = frozenset(name for group in request.groups.values() for name in group.resources)
    requests = await _encode_all(ctx.render("allocation request", candidate) for candidate in found.allocation_requests)
    summaries = await _encode_all(
        {provider.uuid: ctx.render("provider summary", ProviderSummary(provider, requested))} for provider in shown
    )
    body = b'{"allocation_requests":[%b],"provider_summaries":{%b}}' % (
        b",".join(requests),
        b",".join(summary[1:-1] for summary in summaries),
    )
    return with_last_modified(ctx, body, headers={"Content-Type": JSON})


async def _encode_all(members: Iterable[dict[str, object]]) -> list[bytes]:
    """Encode members as JSON. There may be many, so this yields to the event loop."""
    yielder, encoded = LoopYielder(), []
    for member in members:
        encoded.append(orjson.dumps(member))
        await yielder.maybe_yield()
    return encoded
