"""Routes of project tags."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.identity.api import api, link, list_links
from kilonova.identity.projects import PROJECTS
from kilonova.identity.resources import check_mutable, lock, update, write_transaction
from kilonova.identity.schemas import TAGS
from kilonova.store import Row, Transaction

PATH = "/v3/projects/{project_id}/tags"


def _tags(row: Row) -> list[str]:
    found: list[str] = orjson.loads(row["tags"])
    return found


async def _lock(ctx: Context, tx: Transaction, project_id: str, rule: str) -> Row:
    await PROJECTS.get(ctx, tx, project_id, rule)
    row = await lock(tx, "projects", project_id)
    check_mutable("project", row)
    return row


async def _write_tags(tx: Transaction, project_id: str, tags: list[str]) -> None:
    if len(tags) > TAGS["maxItems"]:
        raise BadRequest(f"A project can have at most {TAGS['maxItems']} tags.")
    await update(tx, "projects", project_id, {"tags": orjson.dumps(tags).decode()})


@api.route("GET", PATH, checks=["identity:list_project_tags"])
async def list_tags(ctx: Context, project_id: str) -> Response:
    """List a project's tags."""
    row = await PROJECTS.get(ctx, ctx.db, project_id, "identity:list_project_tags")
    return Response({"tags": _tags(row), "links": list_links(ctx, f"projects/{project_id}/tags")})


@api.route(
    "PUT",
    PATH,
    checks=["identity:update_project_tags"],
    body={"type": "object", "properties": {"tags": TAGS}, "required": ["tags"], "additionalProperties": False},
)
async def replace_tags(ctx: Context, project_id: str) -> Response:
    """Replace a project's tags."""
    async with write_transaction(ctx) as tx:
        await _lock(ctx, tx, project_id, "identity:update_project_tags")
        await _write_tags(tx, project_id, ctx.body["tags"])
    return Response({"tags": ctx.body["tags"], "links": list_links(ctx, f"projects/{project_id}/tags")})


@api.route("DELETE", PATH, checks=["identity:delete_project_tags"], status=204)
async def delete_tags(ctx: Context, project_id: str) -> None:
    """Delete all tags of a project."""
    async with write_transaction(ctx) as tx:
        await _lock(ctx, tx, project_id, "identity:delete_project_tags")
        await _write_tags(tx, project_id, [])


async def has_tag(ctx: Context, project_id: str, tag: str) -> None:
    """Check whether a project has a tag."""
    row = await PROJECTS.get(ctx, ctx.db, project_id, "identity:get_project_tag")
    if tag not in _tags(row):
        raise NotFound(f"Could not find project tag: {tag}.")


for _method in ("GET", "HEAD"):
    api.route(_method, PATH + "/{tag}", checks=["identity:get_project_tag"], status=204)(has_tag)


@api.route("PUT", PATH + "/{tag}", checks=["identity:create_project_tag"], status=201)
async def add_tag(ctx: Context, project_id: str, tag: str) -> Response:
    """Add a tag to a project."""
    if "," in tag or "/" in tag or len(tag) > 255:
        raise BadRequest("A tag must have at most 255 characters, without commas and slashes.")
    async with write_transaction(ctx) as tx:
        tags = _tags(await _lock(ctx, tx, project_id, "identity:create_project_tag"))
        if tag not in tags:
            await _write_tags(tx, project_id, [*tags, tag])
    return Response(None, headers={"Location": link(ctx, f"projects/{project_id}/tags/{quote(tag)}")})


@api.route("DELETE", PATH + "/{tag}", checks=["identity:delete_project_tag"], status=204)
async def delete_tag(ctx: Context, project_id: str, tag: str) -> None:
    """Delete a tag of a project."""
    async with write_transaction(ctx) as tx:
        tags = _tags(await _lock(ctx, tx, project_id, "identity:delete_project_tag"))
        if tag not in tags:
            raise NotFound(f"Could not find project tag: {tag}.")
        await _write_tags(tx, project_id, [other for other in tags if other != tag])
