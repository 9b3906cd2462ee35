"""The aggregates of a provider: nothing but uuids that providers share."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context, View, col
from kilonova.placement.api import api, dated
from kilonova.placement.changes import facts_changed
from kilonova.placement.rest.common import (
    GENERATION,
    PROVIDER,
    UUID,
    Schema,
    canonical,
    closed,
    exists,
    find,
    lock_at,
)

POLICY = "placement:resource_providers:aggregates:"
PATH = f"{PROVIDER}/aggregates"
GUARDED = "aggregates move a provider's generation"

LIST: Schema = {"type": "array", "items": UUID, "uniqueItems": True}
REPLACE = closed({"aggregates": LIST, "resource_provider_generation": GENERATION})

api.view(
    View(
        "aggregates",
        {
            "aggregates": col("aggregates", {"type": "array", "items": {"type": "string"}}),
            "resource_provider_generation": col("generation", GENERATION),
        },
    )
)


def unguarded(body: Any) -> Any:
    """The bare list of old versions, which names no generation."""
    return {"aggregates": body, "resource_provider_generation": None}


@api.route("GET", PATH, policy=POLICY + "list", query={"*": {}}, shows=("", "aggregates", False))
async def index(ctx: Context, uuid: str) -> Answer:
    """List a provider's aggregates."""
    provider = await find(ctx.db, uuid)
    rows = await ctx.db.fetch(_ALL, provider["id"])
    shown = {"aggregates": [row["aggregate_uuid"] for row in rows], "generation": provider["generation"]}
    return dated(ctx, ctx.render("aggregates", shown), provider["updated_at"])


@api.route("PUT", PATH, policy=POLICY + "update", body=REPLACE, query={"*": {}}, subject=exists)
async def replace(ctx: Context, uuid: str) -> Answer:
    """Replace a provider's aggregates."""
    wanted = list(dict.fromkeys(canonical(given) for given in ctx.body["aggregates"]))
    async with ctx.db.transaction() as tx:
        provider = await lock_at(tx, uuid, ctx.body["resource_provider_generation"])
        there = {row["aggregate_uuid"] for row in await tx.fetch(_ALL, provider["id"])}
        left = sorted(there.difference(wanted))
        if left:
            await tx.execute(_LEAVE, provider["id"], left)
        joined = [(provider["id"], aggregate) for aggregate in wanted if aggregate not in there]
        if joined:
            await tx.execute_many(_JOIN, joined)
        await facts_changed(tx, [provider["id"]], generation=ctx.behaves(GUARDED))
        provider = await find(tx, uuid)
    shown = {"aggregates": wanted, "generation": provider["generation"]}
    return dated(ctx, ctx.render("aggregates", shown), provider["updated_at"])


_ALL = "SELECT aggregate_uuid FROM provider_aggregates WHERE provider_id = $1 ORDER BY aggregate_uuid"
_JOIN = "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)"
_LEAVE = "DELETE FROM provider_aggregates WHERE provider_id = $1 AND aggregate_uuid = ANY($2)"
