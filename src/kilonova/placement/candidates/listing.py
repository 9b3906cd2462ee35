"""Which providers `GET /resource_providers` lists: those that by themselves meet all that the query says."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.placement.candidates.conditions import Conditions, every
from kilonova.placement.candidates.model import UNNUMBERED, Ask
from kilonova.placement.candidates.query import check_names, group
from kilonova.placement.rest.common import canonical

_FEW = 8


async def provider_filter(ctx: Context) -> tuple[str, list[Any]]:
    """A condition on a provider `p`, and its arguments. 400 if the query asks for what does not exist."""
    asked = group(ctx.query, UNNUMBERED, ctx.behaves)
    await check_names(ctx.db, Ask(groups={UNNUMBERED: asked}))
    where = Conditions(apart=len(asked.required) + len(asked.member_of) + len(asked.resources) > _FEW)
    said = [
        *(f"p.name = {where.text(name)}" for name in ctx.query.get("name", ())),
        *(f"p.uuid = {where.text(canonical(uuid))}" for uuid in ctx.query.get("uuid", ())),
        *where.in_tree("p.root_id", asked),
        *where.has_traits("p.id", asked),
        *where.lacks_traits("p.id", asked),
        *where.is_member("p.id", asked),
        *where.gives("p.id", asked.resources),
    ]
    return every(said), where.arguments
