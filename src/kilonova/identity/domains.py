"""Domains: the namespaces of users and projects."""

from __future__ import annotations

import orjson

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import Forbidden
from kilonova.identity.bootstrap import serve
from kilonova.identity.core import (
    ANY_TEXT,
    FLAG,
    OPTIONAL_TEXT,
    OPTIONS,
    PAGES,
    QUERY_FLAG,
    SHORT_NAME,
    Json,
    api,
    body_of,
    change,
    extra_of,
    filters,
    insert_row,
    link,
    merged_extra,
    new_ident,
    page,
    row_of,
    row_to_change,
    storing,
    update_row,
    validator,
)
from kilonova.identity.tokens import revoke
from kilonova.store import Row

PROPERTIES: Json = {"name": SHORT_NAME, "description": OPTIONAL_TEXT, "enabled": FLAG, "options": OPTIONS}
KNOWN = ("name", "description", "enabled")


def view(ctx: Context, row: Row) -> Json:
    return {
        **orjson.loads(row["extra"]),
        "id": row["id"],
        "name": row["name"],
        "description": row["description"],
        "enabled": row["enabled"],
        "tags": [],
        "options": {},
        "links": {"self": link(ctx, f"domains/{row['id']}")},
    }


@api.route(
    "GET",
    "/v3/domains",
    policy="identity:list_domains",
    query={"name": ANY_TEXT, "enabled": QUERY_FLAG, **PAGES},
)
async def index(ctx: Context) -> Answer:
    """List domains."""
    return await page(ctx, "domains", filters(ctx, ["name"], ["enabled"]), view)


@api.route("GET", "/v3/domains/{domain_id}", checks=["identity:get_domain"])
async def show(ctx: Context, domain_id: str) -> Answer:
    """Show a domain."""
    ctx.authorize("identity:get_domain", {"target.domain.id": domain_id})
    return Answer({"domain": view(ctx, await row_of(ctx.db, "domains", domain_id))})


@api.route(
    "POST",
    "/v3/domains",
    policy="identity:create_domain",
    body=body_of("domain", PROPERTIES, "name"),
    status=201,
)
async def create(ctx: Context) -> Answer:
    """Create a domain."""
    body = ctx.body["domain"]
    row = {
        "id": new_ident(),
        "name": body["name"],
        "description": body.get("description") or "",
        "enabled": body.get("enabled", True),
        "extra": extra_of(body, KNOWN),
    }
    with storing("domain", body.get("name", "")):
        async with change(ctx) as tx:
            await insert_row(tx, "domains", row)
            await serve(tx, row["id"])
    return Answer({"domain": view(ctx, row)})


@api.route("PATCH", "/v3/domains/{domain_id}", policy="identity:update_domain", body=body_of("domain", PROPERTIES))
async def update(ctx: Context, domain_id: str) -> Answer:
    """Change a domain; disabling it ends the tokens of its users and projects."""
    body = ctx.body["domain"]
    with storing("domain", body.get("name", "")):
        async with change(ctx) as tx:
            row = await row_to_change(tx, "domains", domain_id)
            values: Json = {key: body[key] for key in ("name", "enabled") if key in body}
            if "description" in body:
                values["description"] = body["description"] or ""
            values["extra"] = merged_extra(row, body, KNOWN)
            await update_row(tx, "domains", domain_id, values)
            if row["enabled"] and not values.get("enabled", True):
                await revoke(tx, f"domain {domain_id}", clock.now(), validator(ctx).token_seconds)
    return Answer({"domain": view(ctx, {**row, **values})})


@api.route("DELETE", "/v3/domains/{domain_id}", policy="identity:delete_domain", status=204)
async def delete(ctx: Context, domain_id: str) -> None:
    """Delete a disabled domain with its users and projects."""
    async with change(ctx) as tx:
        row = await row_to_change(tx, "domains", domain_id)
        if row["enabled"]:
            raise Forbidden("Cannot delete a domain that is enabled, please disable it first.")
        projects = "SELECT id FROM projects WHERE domain_id = $1"
        await tx.execute(
            f"DELETE FROM role_assignments WHERE target_kind = 'project' AND target_id IN ({projects})", domain_id
        )
        await tx.execute(
            "DELETE FROM role_assignments WHERE target_kind IN ('domain', 'inherited') AND target_id = $1", domain_id
        )
        await tx.execute("DELETE FROM users WHERE domain_id = $1", domain_id)
        await tx.execute("UPDATE projects SET parent_id = NULL WHERE domain_id = $1", domain_id)
        await tx.execute("DELETE FROM projects WHERE domain_id = $1", domain_id)
        await tx.execute("DELETE FROM domains WHERE id = $1", domain_id)
