"""Dry runs: respond with the scheduler's plan instead of placing servers. Nothing is written.

    if dry_run.is_requested(ctx):
        return await dry_run.plan_response(ctx, target, requests)

Callers do so after all checks, so a dry run is refused for the same reasons as the real request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import structs

from kilonova.compute.api import api
from kilonova.compute.operations.steps.move import MoveParams
from kilonova.compute.placements import views
from kilonova.compute.placements.visibility import Visibility, get_visibility
from kilonova.compute.servers import forced_moves, model, scheduling
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Field, Response, View
from kilonova.http.dry_run import is_requested
from kilonova.http.views import OMIT
from kilonova.scheduler import Candidate, Plan, Request

__all__ = ["is_requested", "plan_response"]

_RENDER_BATCH = 50


async def plan_response(ctx: Context, target: Mapping[str, str | None], requests: Sequence[Request]) -> Response:
    """Plan these requests one after the other. `target` decides which hosts the caller may see."""
    plans = await ctx.services.scheduler.dry_run(lambda taken: _next_request(requests, taken))
    return await _build_response(ctx, target, len(requests), plans)


async def move_plan_response(ctx: Context, server: Server, params: MoveParams) -> Response:
    """Plan a move with the parameters of its operation."""
    return await _build_response(ctx, model.target(server), 1, [await plan_move(ctx, server, params)])


async def plan_move(ctx: Context, server: Server, params: MoveParams) -> Plan:
    if params.unverified:
        return await forced_moves.plan(ctx.db, server, params.host or "")
    request = await scheduling.move_request(ctx.db, server, params)
    (plan,) = await ctx.services.scheduler.dry_run(lambda taken: _next_request([request], taken))
    return plan


async def _build_response(
    ctx: Context, target: Mapping[str, str | None], servers: int, plans: Sequence[Plan]
) -> Response:
    visibility = await get_visibility(ctx, target)
    placed = sum(bool(plan.candidates) for plan in plans)
    body = {
        "sees": visibility.sees,
        "servers": servers,
        "placed": placed,
        "plans": await _render_plans(ctx, plans, visibility),
    }
    return Response({"plan": body}, status=200)


async def _render_plans(ctx: Context, plans: Sequence[Plan], visibility: Visibility) -> list[dict[str, object]]:
    """Rendering a thousand plans takes a while, so other coroutines get to run in between."""
    shown = []
    for number, plan in enumerate(plans, 1):
        shown.append(ctx.render("plan", (plan, visibility)))
        if number % _RENDER_BATCH == 0:
            await asyncio.sleep(0)
    return shown


def _next_request(requests: Sequence[Request], taken: Sequence[Candidate]) -> Request | None:
    """The next request. Members of its server group that were planned before it count as placed."""
    if len(taken) == len(requests):
        return None
    request = requests[len(taken)]
    if request.group is None:
        return request
    members = dict(request.group.members)
    for candidate, earlier in zip(taken, requests, strict=False):
        if earlier.group is not None and earlier.group.id == request.group.id:
            members[candidate.host] = members.get(candidate.host, 0) + 1
    return structs.replace(request, group=structs.replace(request.group, members=members))


def _chosen(item: tuple[Plan, Visibility], ctx: Context) -> object:
    """The best host; OMIT if the caller may not see it."""
    plan, visibility = item
    if not plan.candidates:
        return None if visibility.sees != "reasons" else OMIT
    return _candidate(plan.candidates[0], visibility) or OMIT


def _alternates(item: tuple[Plan, Visibility], ctx: Context) -> object:
    plan, visibility = item
    if visibility.sees == "reasons":
        return OMIT
    return [shown for candidate in plan.candidates[1:] if (shown := _candidate(candidate, visibility)) is not None]


def _candidate(candidate: Candidate, visibility: Visibility) -> dict[str, object] | None:
    names = visibility.identify(candidate.host, candidate.hypervisor_hostname)
    if names is None:
        return None
    return {**names, "allocations": {uuid: {"resources": taken} for uuid, taken in candidate.allocations.items()}}


api.view(
    View(
        "plan",
        {
            "placed": Field(lambda item, ctx: bool(item[0].candidates), {"type": "boolean"}),
            "chosen": Field(_chosen, {"type": ["object", "null"]}, optional=True),
            "alternates": Field(_alternates, views.OBJECTS, optional=True),
            **views.DIAGNOSIS,
        },
    )
)
