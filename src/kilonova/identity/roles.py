"""Roles, and which role implies which other."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity.core import (
    ANY_TEXT,
    NAME,
    OPTIONAL_TEXT,
    OPTIONS,
    PAGES,
    Json,
    api,
    body_of,
    change,
    extra_of,
    filters,
    insert_row,
    link,
    links,
    merged_extra,
    missing,
    new_ident,
    page,
    row_of,
    row_to_change,
    storing,
    update_row,
)
from kilonova.store import Reader, Row

PROPERTIES: Json = {
    "name": NAME,
    "description": OPTIONAL_TEXT,
    "domain_id": {"type": ["string", "null"]},
    "options": OPTIONS,
}
KNOWN = ("name", "description", "domain_id")


def view(ctx: Context, row: Row) -> Json:
    return {
        **orjson.loads(row["extra"]),
        "id": row["id"],
        "name": row["name"],
        "domain_id": None,
        "description": row["description"],
        "options": {},
        "links": {"self": link(ctx, f"roles/{row['id']}")},
    }


@api.route(
    "GET",
    "/v3/roles",
    policy="identity:list_roles",
    query={"name": ANY_TEXT, "domain_id": ANY_TEXT, **PAGES},
)
async def index(ctx: Context) -> Answer:
    """List roles."""
    where = filters(ctx, ["name"])
    if ctx.query_one("domain_id"):
        where.conditions.append("1 = 0")
    return await page(ctx, "roles", where, view)


@api.route("GET", "/v3/roles/{role_id}", policy="identity:get_role")
async def show(ctx: Context, role_id: str) -> Answer:
    """Show a role."""
    return Answer({"role": view(ctx, await row_of(ctx.db, "roles", role_id))})


@api.route("POST", "/v3/roles", policy="identity:create_role", body=body_of("role", PROPERTIES, "name"), status=201)
async def create(ctx: Context) -> Answer:
    """Create a role."""
    body = ctx.body["role"]
    _check_domain(body)
    row = {
        "id": new_ident(),
        "name": body["name"],
        "description": body.get("description"),
        "extra": extra_of(body, KNOWN),
    }
    with storing("role", body["name"]):
        async with change(ctx) as tx:
            await insert_row(tx, "roles", row)
    return Answer({"role": view(ctx, row)})


@api.route("PATCH", "/v3/roles/{role_id}", policy="identity:update_role", body=body_of("role", PROPERTIES))
async def update(ctx: Context, role_id: str) -> Answer:
    """Change a role."""
    body = ctx.body["role"]
    _check_domain(body)
    values: Json = {key: body[key] for key in ("name", "description") if key in body}
    with storing("role", body.get("name", "")):
        async with change(ctx) as tx:
            row = await row_to_change(tx, "roles", role_id)
            values["extra"] = merged_extra(row, body, KNOWN)
            await update_row(tx, "roles", role_id, values)
    return Answer({"role": view(ctx, {**row, **values})})


def _check_domain(body: Json) -> None:
    if body.get("domain_id") is not None:
        raise BadRequest("Roles of a domain are not supported: domain_id must be null.")


@api.route("DELETE", "/v3/roles/{role_id}", policy="identity:delete_role", status=204)
async def delete(ctx: Context, role_id: str) -> None:
    """Delete a role; whoever had it has it no longer."""
    async with change(ctx) as tx:
        await row_to_change(tx, "roles", role_id)
        await tx.execute("DELETE FROM role_assignments WHERE role_id = $1", role_id)
        await tx.execute("DELETE FROM implied_roles WHERE prior_id = $1 OR implied_id = $1", role_id)
        await tx.execute("DELETE FROM roles WHERE id = $1", role_id)


# Implied roles


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
async def list_inferences(ctx: Context) -> Answer:
    """List all implications between roles."""
    roles = {row["id"]: row for row in await ctx.db.fetch("SELECT * FROM roles")}
    implied: dict[str, list[Json]] = {}
    for pair in await ctx.db.fetch("SELECT prior_id, implied_id FROM implied_roles ORDER BY prior_id, implied_id"):
        implied.setdefault(pair["prior_id"], []).append(_brief(ctx, roles[pair["implied_id"]]))
    shown = [{"prior_role": _brief(ctx, roles[prior]), "implies": briefs} for prior, briefs in implied.items()]
    return Answer({"role_inferences": shown, "links": links(ctx, "role_inferences")})


@api.route("GET", "/v3/roles/{role_id}/implies", policy="identity:list_implied_roles")
async def list_implied(ctx: Context, role_id: str) -> Answer:
    """List what a role implies directly."""
    prior = await row_of(ctx.db, "roles", role_id)
    implies = [_brief(ctx, row) for row in await _implied(ctx.db, role_id)]
    inference = {"prior_role": _brief(ctx, prior), "implies": implies}
    return Answer({"role_inference": inference, "links": links(ctx, f"roles/{role_id}/implies")})


def _inference(ctx: Context, prior: Row, implied: Row) -> Json:
    path = f"roles/{prior['id']}/implies/{implied['id']}"
    return {
        "role_inference": {"prior_role": _brief(ctx, prior), "implies": _brief(ctx, implied)},
        "links": {"self": link(ctx, path)},
    }


@api.route("PUT", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:create_implied_role", status=201)
async def imply(ctx: Context, role_id: str, implied_id: str) -> Answer:
    """Make a role imply another."""
    with storing("implied role", implied_id):
        async with change(ctx) as tx:
            prior = await row_of(tx, "roles", role_id)
            implied = await row_of(tx, "roles", implied_id)
            if implied["name"] == "admin":
                raise Forbidden("The role admin cannot be implied by another role.")
            await tx.execute(
                "INSERT INTO implied_roles (prior_id, implied_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                role_id,
                implied_id,
            )
    return Answer(_inference(ctx, prior, implied))


@api.route("GET", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:get_implied_role")
async def show_implied(ctx: Context, role_id: str, implied_id: str) -> Answer:
    """Show that a role implies another."""
    await check_implied(ctx, role_id, implied_id)
    return Answer(_inference(ctx, await row_of(ctx.db, "roles", role_id), await row_of(ctx.db, "roles", implied_id)))


@api.route("HEAD", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:check_implied_role", status=204)
async def check_implied(ctx: Context, role_id: str, implied_id: str) -> Any:
    """Ask whether a role implies another."""
    if not await _is_implied(ctx.db, role_id, implied_id):
        raise missing("implied role", f"{role_id} implies {implied_id}")


@api.route("DELETE", "/v3/roles/{role_id}/implies/{implied_id}", policy="identity:delete_implied_role", status=204)
async def stop_implying(ctx: Context, role_id: str, implied_id: str) -> None:
    """Stop a role from implying another."""
    async with change(ctx) as tx:
        sql = "DELETE FROM implied_roles WHERE prior_id = $1 AND implied_id = $2"
        if not await tx.execute(sql, role_id, implied_id):
            raise missing("implied role", f"{role_id} implies {implied_id}")
