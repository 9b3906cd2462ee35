"""Routes of implied roles (role inference rules)."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.resources import conflicts, get, not_found, write_transaction
from kilonova.store import Reader, Row


def _brief(ctx: Context, row: Row) -> Json:
    return {"id": row["id"], "name": row["name"], "links": {"self": link(ctx, f"roles/{row['id']}")}}


async def _implied(db: Reader, prior_id: str) -> list[Row]:
    return await db.fetch(
        "SELECT r.* FROM implied_roles i JOIN roles r ON r.id = i.implied_id WHERE i.prior_id = $1 ORDER BY r.name",
        prior_id,
    )


async def _is_implied(db: Reader, prior_id: str, implied_id: str) -> bool:
    sql = "SELECT 1 FROM implied_roles WHERE prior_id = $1 AND implied_id = $2"
    return await db.fetch_value(sql, prior_id, implied_id) is not None


@api.route("GET", "/v3/role_inferences", policy="identity:list_role_inference_rules")
async def list_inferences(ctx: Context) -> Response:
    """List all implications between roles."""
    roles = {row["id"]: row for row in await ctx.db.fetch("SELECT * FROM roles")}
    implied: dict[str, list[Json]] = {}
    for pair in await ctx.db.fetch("SELECT prior_id, implied_id FROM implied_roles ORDER BY prior_id, implied_id"):
        implied.setdefault(pair["prior_id"], []).append(_brief(ctx, roles[pair["implied_id"]]))
    shown = [{"prior_role": _brief(ctx, roles[prior]), "implies": briefs} for prior, briefs in implied.items()]
    return Response({"role_inferences": shown, "links": list_links(ctx, "role_inferences")})


@api.route("GET", "/v3/roles/{role_id}/implies", policy="identity:list_implied_roles")
async def list_implied(ctx: Context, role_id: str) -> Response:
    """List the roles that a role implies directly."""
    prior = await get(ctx.db, "roles", role_id)
    implies = [_brief(ctx, row) for row in await _implied(ctx.db, role_id)]
    inference = {"prior_role": _brief(ctx, prior), "implies": implies}
    return Response({"role_inference": inference, "links": list_links(ctx, f"roles/{role_id}/implies")})


def _inference(ctx: Context, prior: Row, implied: Row) -> Json:
    path = f"roles/{prior['id']}/implies/{implied['id']}"
    return {
        "role_inference": {"prior_role": _brief(ctx, prior), "implies": _brief(ctx, implied)},
        "links": {"self": link(ctx, path)},
    }


@api.route("PUT", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:create_implied_role", status=201)
async def create_implied(ctx: Context, role_id: str, implied_id: str) -> Response:
    """Make a role imply another."""
    with conflicts("implied role", implied_id):
        async with write_transaction(ctx) as tx:
            prior = await get(tx, "roles", role_id)
            implied = await get(tx, "roles", implied_id)
            if implied["name"] == "admin":
                raise Forbidden("The role admin cannot be implied by another role.")
            if implied["domain_id"] and not prior["domain_id"]:
                raise Forbidden("A role of the whole cloud cannot imply a role of a domain.")
            await tx.execute(
                "INSERT INTO implied_roles (prior_id, implied_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                role_id,
                implied_id,
            )
    return Response(_inference(ctx, prior, implied))


@api.route("GET", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:get_implied_role")
async def show_implied(ctx: Context, role_id: str, implied_id: str) -> Response:
    """Show that a role implies another."""
    await check_implied(ctx, role_id, implied_id)
    return Response(_inference(ctx, await get(ctx.db, "roles", role_id), await get(ctx.db, "roles", implied_id)))


@api.route("HEAD", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:check_implied_role", status=204)
async def check_implied(ctx: Context, role_id: str, implied_id: str) -> Any:
    """Check whether a role implies another."""
    if not await _is_implied(ctx.db, role_id, implied_id):
        raise not_found("implied role", f"{role_id} implies {implied_id}")


@api.route("DELETE", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:delete_implied_role", status=204)
async def delete_implied(ctx: Context, role_id: str, implied_id: str) -> None:
    """Delete the implication of a role by another."""
    async with write_transaction(ctx) as tx:
        sql = "DELETE FROM implied_roles WHERE prior_id = $1 AND implied_id = $2"
        if not await tx.execute(sql, role_id, implied_id):
            raise not_found("implied role", f"{role_id} implies {implied_id}")
