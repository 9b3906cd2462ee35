"""The aggregates of a provider: a set of uuids."""

from __future__ import annotations

from kilonova.http import Context, Response, View, col
from kilonova.http.schema import Schema
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.rest.lookup import (
    PROVIDER_PATH,
    find_provider,
    lock_provider_at,
    require_provider,
)
from kilonova.placement.rest.schemas import GENERATION, UUID, strict_object

POLICY = "placement:resource_providers:aggregates:"
PATH = f"{PROVIDER_PATH}/aggregates"
WITH_GENERATION = api.behaviour("aggregates change a provider's generation")

LIST: Schema = {"type": "array", "items": UUID, "uniqueItems": True}
REPLACE = strict_object({"aggregates": LIST, "resource_provider_generation": GENERATION})

api.view(
    View(
        "aggregates",
        {
            "aggregates": col("aggregates", {"type": "array", "items": {"type": "string"}}),
            "resource_provider_generation": col("generation", GENERATION),
        },
    )
)


def without_generation(body: object) -> dict[str, object]:
    """Upgrades the list of versions before 1.19, which has no generation."""
    return {"aggregates": body, "resource_provider_generation": None}


@api.route("GET", PATH, policy=POLICY + "list", query={"*": {}}, shows=("", "aggregates", False))
async def index(ctx: Context, uuid: str) -> Response:
    """List a provider's aggregates."""
    provider = await find_provider(ctx.db, uuid)
    rows = await ctx.db.fetch(_ALL, provider.id)
    shown = {"aggregates": [row["aggregate_uuid"] for row in rows], "generation": provider.generation}
    return with_last_modified(ctx, ctx.render("aggregates", shown), provider.updated_at)


@api.route("PUT", PATH, policy=POLICY + "update", body=REPLACE, query={"*": {}}, check_exists=require_provider)
async def replace(ctx: Context, uuid: str) -> Response:
    """Replace a provider's aggregates."""
    # Stored as given: clients compare the spelling, with or without hyphens, to what they sent.
    wanted: list[str] = ctx.body["aggregates"]
    async with ctx.db.transaction() as tx:
        provider = await lock_provider_at(tx, uuid, ctx.body["resource_provider_generation"])
        existing = {row["aggregate_uuid"] for row in await tx.fetch(_ALL, provider.id)}
        removed = sorted(existing.difference(wanted))
        if removed:
            await tx.execute(_REMOVE, provider.id, removed)
        added = [(provider.id, aggregate) for aggregate in wanted if aggregate not in existing]
        if added:
            await tx.execute_many(_ADD, added)
        await mark_facts_changed(tx, [provider.id], generation=ctx.has_behaviour(WITH_GENERATION))
        provider = await find_provider(tx, uuid)
    shown = {"aggregates": wanted, "generation": provider.generation}
    return with_last_modified(ctx, ctx.render("aggregates", shown), provider.updated_at)


_ALL = "SELECT aggregate_uuid FROM provider_aggregates WHERE provider_id = $1 ORDER BY aggregate_uuid"
_ADD = "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)"
_REMOVE = "DELETE FROM provider_aggregates WHERE provider_id = $1 AND aggregate_uuid = ANY($2)"
