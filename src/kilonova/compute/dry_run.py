"""What would happen: plans for servers that are not placed. Nothing is written, and nobody waits for anything.

    if dry_run.asked(ctx):
        return await dry_run.answer(ctx, target, requests)

Everything that can be refused was refused before, as if it were done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from kilonova.compute.api import api
from kilonova.compute.placements import views
from kilonova.compute.placements.sight import Sight, sight
from kilonova.compute.servers import copying, model, placing
from kilonova.http import Answer, Context, Field, View
from kilonova.http.dry_run import asked
from kilonova.http.views import OMIT
from kilonova.scheduler import Candidate, Plan, Request
from kilonova.store import Row

__all__ = ["answer", "asked"]

_AT_ONCE = 50


async def answer(ctx: Context, target: dict[str, Any], requests: Sequence[Request]) -> Answer:
    """The plans of these requests, one after the other, for a caller who looks at servers of the target's project."""
    plans = await ctx.services.scheduler.rehearse(lambda taken: _following(requests, taken))
    return await _answer(ctx, target, len(requests), plans)


async def answer_move(ctx: Context, server: Row, params: Mapping[str, Any]) -> Answer:
    """The plan of a move; `params` are those of `operations.moving.Move`."""
    return await _answer(ctx, model.target(server), 1, [await plan_move(ctx, server, params)])


async def plan_move(ctx: Context, server: Row, params: Mapping[str, Any]) -> Plan:
    if params.get("unverified"):
        return await copying.plan(ctx.db, server, params["host"])
    request = await placing.move_request(ctx.db, server, params)
    (plan,) = await ctx.services.scheduler.rehearse(lambda taken: _following([request], taken))
    return plan


async def _answer(ctx: Context, target: dict[str, Any], servers: int, plans: Sequence[Plan]) -> Answer:
    seen = await sight(ctx, target)
    placed = sum(bool(plan.candidates) for plan in plans)
    body = {
        "sees": seen.sees,
        "servers": servers,
        "placed": placed,
        "plans": await _shown(ctx, plans, seen),
    }
    return Answer({"plan": body}, status=200)


async def _shown(ctx: Context, plans: Sequence[Plan], seen: Sight) -> list[dict[str, Any]]:
    """A thousand plans take a while; others have their turns in between."""
    shown = []
    for number, plan in enumerate(plans, 1):
        shown.append(ctx.render("plan", (plan, seen)))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return shown


def _following(requests: Sequence[Request], taken: Sequence[Candidate]) -> Request | None:
    """What the next one asks, with those before it where they would be: they may be of the same group."""
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


def _chosen(item: tuple[Plan, Sight], ctx: Context) -> Any:
    """The best host; OMIT where the caller must not know which it is."""
    plan, seen = item
    if not plan.candidates:
        return None if seen.sees != "reasons" else OMIT
    return _candidate(plan.candidates[0], seen) or OMIT


def _alternates(item: tuple[Plan, Sight], ctx: Context) -> Any:
    plan, seen = item
    if seen.sees == "reasons":
        return OMIT
    return [shown for candidate in plan.candidates[1:] if (shown := _candidate(candidate, seen)) is not None]


def _candidate(candidate: Candidate, seen: Sight) -> dict[str, Any] | None:
    names = seen.shown(candidate.host, candidate.hypervisor_hostname)
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
