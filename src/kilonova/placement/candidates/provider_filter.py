"""The filter of `GET /resource_providers`: each listed provider meets the whole query by itself."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.placement.candidates.conditions import Conditions, all_of
from kilonova.placement.candidates.model import UNNUMBERED, ResourceRequest
from kilonova.placement.candidates.query import check_names_exist, parse_group
from kilonova.placement.rest.lookup import normalize_uuid

_MAX_JOINED = 8


async def build_provider_filter(ctx: Context) -> tuple[str, list[object]]:
    """An SQL condition on a provider `p`, and its arguments. Raises BadRequest for unknown classes and traits."""
    group = parse_group(ctx.query, UNNUMBERED, ctx.has_behaviour)
    await check_names_exist(ctx.db, ResourceRequest(groups={UNNUMBERED: group}))
    where = Conditions(separate=len(group.required) + len(group.member_of) + len(group.resources) > _MAX_JOINED)
    conditions = [
        *(f"p.name = {where.add_text(name)}" for name in ctx.query.get("name", ())),
        *(f"p.uuid = {where.add_text(normalize_uuid(uuid))}" for uuid in ctx.query.get("uuid", ())),
        *where.in_tree("p.root_id", group),
        *where.has_traits("p.id", group),
        *where.lacks_traits("p.id", group),
        *where.in_aggregates("p.id", group),
        *where.has_capacity("p.id", group.resources),
    ]
    return all_of(conditions), where.arguments
