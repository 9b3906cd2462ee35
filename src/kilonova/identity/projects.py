"""Projects: what resources belong to."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.identity.core import (
    ANY_TEXT,
    FLAG,
    IDENT,
    OPTIONAL_TEXT,
    OPTIONS,
    PAGES,
    QUERY_FLAG,
    SHORT_NAME,
    TAGS,
    Json,
    api,
    body_of,
    change,
    extra_of,
    filters,
    flag,
    insert_row,
    link,
    links,
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
from kilonova.store import Reader, Row, Transaction

OPTIONAL_IDENT: Json = {**IDENT, "type": ["string", "null"]}
PROPERTIES: Json = {
    "name": SHORT_NAME,
    "domain_id": OPTIONAL_IDENT,
    "parent_id": OPTIONAL_IDENT,
    "description": OPTIONAL_TEXT,
    "enabled": FLAG,
    "is_domain": FLAG,
    "tags": TAGS,
    "options": OPTIONS,
}
KNOWN = ("name", "domain_id", "parent_id", "description", "enabled", "is_domain", "tags")
TAG_FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")


def view(ctx: Context, row: Row) -> Json:
    return {
        **orjson.loads(row["extra"]),
        "id": row["id"],
        "name": row["name"],
        "domain_id": row["domain_id"],
        "description": row["description"],
        "enabled": row["enabled"],
        "parent_id": row["parent_id"] or row["domain_id"],
        "is_domain": False,
        "tags": orjson.loads(row["tags"]),
        "options": {},
        "links": {"self": link(ctx, f"projects/{row['id']}")},
    }


def target(project_id: str) -> Json:
    return {"target.project.id": project_id, "project_id": project_id}


def _has_tags(ctx: Context, row: Row) -> bool:
    tags = set(orjson.loads(row["tags"]))
    asked = {key: set(value.split(",")) for key in TAG_FILTERS if (value := ctx.query_one(key)) is not None}
    return (
        asked.get("tags", set()) <= tags
        and ("tags-any" not in asked or bool(asked["tags-any"] & tags))
        and not ("not-tags" in asked and asked["not-tags"] <= tags)
        and not asked.get("not-tags-any", set()) & tags
    )


@api.route(
    "GET",
    "/v3/projects",
    policy="identity:list_projects",
    query={
        "name": ANY_TEXT,
        "domain_id": ANY_TEXT,
        "parent_id": ANY_TEXT,
        "enabled": QUERY_FLAG,
        "is_domain": QUERY_FLAG,
        **dict.fromkeys(TAG_FILTERS, ANY_TEXT),
        **PAGES,
    },
)
async def index(ctx: Context) -> Answer:
    """List projects."""
    where = filters(ctx, ["name", "domain_id"], ["enabled"])
    if (parent_id := ctx.query_one("parent_id")) is not None:
        where.add("(parent_id = {0} OR parent_id IS NULL AND domain_id = {0})", parent_id)
    if flag(ctx, "is_domain"):
        where.conditions.append("1 = 0")
    tagged = any(key in ctx.query for key in TAG_FILTERS)
    return await page(ctx, "projects", where, view, (lambda row: _has_tags(ctx, row)) if tagged else None)


@api.route("GET", "/v3/projects/{project_id}", checks=["identity:get_project"], query={})
async def show(ctx: Context, project_id: str) -> Answer:
    """Show a project."""
    ctx.authorize("identity:get_project", target(project_id))
    return Answer({"project": view(ctx, await row_of(ctx.db, "projects", project_id))})


@api.route(
    "POST",
    "/v3/projects",
    policy="identity:create_project",
    body=body_of("project", PROPERTIES, "name"),
    status=201,
)
async def create(ctx: Context) -> Answer:
    """Create a project."""
    body = ctx.body["project"]
    if body.get("is_domain"):
        raise BadRequest("A project that acts as a domain is not supported: create a domain instead.")
    row = {
        "id": new_ident(),
        "name": body["name"],
        "description": body.get("description") or "",
        "enabled": body.get("enabled", True),
        "tags": orjson.dumps(body.get("tags", [])).decode(),
        "extra": extra_of(body, KNOWN),
    }
    with storing("project", body.get("name", "")):
        async with change(ctx) as tx:
            row["domain_id"], row["parent_id"] = await _place(ctx, tx, body)
            await insert_row(tx, "projects", row)
    return Answer({"project": view(ctx, row)})


async def _place(ctx: Context, db: Reader, body: Json) -> tuple[str, str | None]:
    """The domain and, where it is a project, the parent of a new project."""
    domain_id, parent_id = body.get("domain_id"), body.get("parent_id")
    if parent_id is None or parent_id == domain_id:
        domain_id = domain_id or home_domain(ctx)
        return (await row_of(db, "domains", domain_id))["id"], None
    parent = await db.fetch_one("SELECT id, domain_id FROM projects WHERE id = $1", parent_id)
    if parent is None:
        return (await row_of(db, "domains", parent_id))["id"], None
    if domain_id is not None and domain_id != parent["domain_id"]:
        raise BadRequest("The parent of a project must be in the same domain.")
    return parent["domain_id"], parent["id"]


def home_domain(ctx: Context) -> str:
    """Where new users and projects go if the caller does not say: the domain of the token's scope."""
    return ctx.token.domain_id or ctx.token.project_domain_id or ctx.token.user_domain_id


@api.route("PATCH", "/v3/projects/{project_id}", policy="identity:update_project", body=body_of("project", PROPERTIES))
async def update(ctx: Context, project_id: str) -> Answer:
    """Change a project; disabling it ends its tokens."""
    body = ctx.body["project"]
    with storing("project", body.get("name", "")):
        async with change(ctx) as tx:
            row = await row_to_change(tx, "projects", project_id)
            _check_fixed(row, body)
            values: Json = {key: body[key] for key in ("name", "enabled") if key in body}
            if "description" in body:
                values["description"] = body["description"] or ""
            if "tags" in body:
                values["tags"] = orjson.dumps(body["tags"]).decode()
            values["extra"] = merged_extra(row, body, KNOWN)
            await update_row(tx, "projects", project_id, values)
            if row["enabled"] and not values.get("enabled", True):
                await revoke(tx, f"project {project_id}", clock.now(), validator(ctx).token_seconds)
    return Answer({"project": view(ctx, {**row, **values})})


def _check_fixed(row: Row, body: Json) -> None:
    """What is set when a project is made and stays so; naming the same value again does no harm."""
    fixed = {
        "domain_id": row["domain_id"],
        "parent_id": row["parent_id"] or row["domain_id"],
        "is_domain": False,
    }
    for key, value in fixed.items():
        if body.get(key, value) != value:
            raise BadRequest(f"The attribute {key} of a project cannot be changed.")


@api.route("DELETE", "/v3/projects/{project_id}", policy="identity:delete_project", status=204)
async def delete(ctx: Context, project_id: str) -> None:
    """Delete a project and the roles on it."""
    async with change(ctx) as tx:
        await row_to_change(tx, "projects", project_id)
        if await tx.fetch_value("SELECT 1 FROM projects WHERE parent_id = $1 LIMIT 1", project_id):
            raise Forbidden(f"Cannot delete the project {project_id} since it has projects below it.")
        await tx.execute("DELETE FROM role_assignments WHERE target_kind = 'project' AND target_id = $1", project_id)
        await tx.execute("UPDATE users SET default_project_id = NULL WHERE default_project_id = $1", project_id)
        await tx.execute("DELETE FROM projects WHERE id = $1", project_id)


# Tags

PATH = "/v3/projects/{project_id}/tags"


def _tags(row: Row) -> list[str]:
    found: list[str] = orjson.loads(row["tags"])
    return found


async def _store_tags(tx: Transaction, project_id: str, tags: list[str]) -> None:
    if len(tags) > TAGS["maxItems"]:
        raise BadRequest(f"A project can have at most {TAGS['maxItems']} tags.")
    await update_row(tx, "projects", project_id, {"tags": orjson.dumps(tags).decode()})


@api.route("GET", PATH, checks=["identity:list_project_tags"])
async def list_tags(ctx: Context, project_id: str) -> Answer:
    """List a project's tags."""
    ctx.authorize("identity:list_project_tags", target(project_id))
    return Answer(
        {
            "tags": _tags(await row_of(ctx.db, "projects", project_id)),
            "links": links(ctx, f"projects/{project_id}/tags"),
        }
    )


@api.route(
    "PUT",
    PATH,
    policy="identity:update_project_tags",
    body={"type": "object", "properties": {"tags": TAGS}, "required": ["tags"], "additionalProperties": False},
)
async def replace_tags(ctx: Context, project_id: str) -> Answer:
    """Replace a project's tags."""
    async with change(ctx) as tx:
        await row_to_change(tx, "projects", project_id)
        await _store_tags(tx, project_id, ctx.body["tags"])
    return Answer({"tags": ctx.body["tags"], "links": links(ctx, f"projects/{project_id}/tags")})


@api.route("DELETE", PATH, policy="identity:delete_project_tags", status=204)
async def delete_tags(ctx: Context, project_id: str) -> None:
    """Delete all tags of a project."""
    async with change(ctx) as tx:
        await row_to_change(tx, "projects", project_id)
        await _store_tags(tx, project_id, [])


async def has_tag(ctx: Context, project_id: str, tag: str) -> None:
    """Ask whether a project has a tag."""
    ctx.authorize("identity:get_project_tag", target(project_id))
    if tag not in _tags(await row_of(ctx.db, "projects", project_id)):
        raise NotFound(f"Could not find project tag: {tag}.")


for _method in ("GET", "HEAD"):
    api.route(_method, PATH + "/{tag}", checks=["identity:get_project_tag"], status=204)(has_tag)


@api.route("PUT", PATH + "/{tag}", policy="identity:create_project_tag", status=201)
async def add_tag(ctx: Context, project_id: str, tag: str) -> Answer:
    """Add a tag to a project."""
    if "," in tag or "/" in tag or len(tag) > 255:
        raise BadRequest("A tag has at most 255 characters, without commas and slashes.")
    async with change(ctx) as tx:
        tags = _tags(await row_to_change(tx, "projects", project_id))
        if tag not in tags:
            await _store_tags(tx, project_id, [*tags, tag])
    return Answer(None, headers={"Location": link(ctx, f"projects/{project_id}/tags/{quote(tag)}")})


@api.route("DELETE", PATH + "/{tag}", policy="identity:delete_project_tag", status=204)
async def delete_tag(ctx: Context, project_id: str, tag: str) -> None:
    """Delete a tag of a project."""
    async with change(ctx) as tx:
        tags = _tags(await row_to_change(tx, "projects", project_id))
        if tag not in tags:
            raise NotFound(f"Could not find project tag: {tag}.")
        await _store_tags(tx, project_id, [other for other in tags if other != tag])
