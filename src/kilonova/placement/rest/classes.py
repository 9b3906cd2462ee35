"""Resource classes, standard and custom."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context, Field, View, col
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.schema import Validator
from kilonova.placement import names
from kilonova.placement.api import api, dated, path
from kilonova.placement.changes import facts_changed
from kilonova.placement.rest.common import Schema, closed
from kilonova.store import Reader, Row

POLICY = "placement:resource_classes:"
ALL, ONE = "/resource_classes", "/resource_classes/{name}"
ENSURED = "putting a class makes it or confirms it"

CLASS = closed({"name": {"type": "string", "pattern": "^CUSTOM\\_[A-Z0-9_]+$", "maxLength": 255}})
_class = Validator(CLASS)
TEXT: Schema = {"type": "string"}


def _links(name: str, ctx: Context) -> list[dict[str, str]]:
    return [{"rel": "self", "href": path(ctx, "resource_classes", name)}]


api.view(
    View(
        "class",
        {"name": col("name", TEXT), "links": Field(lambda row, ctx: _links(row["name"], ctx), {"type": "array"})},
    )
)


@api.route("GET", ALL, policy=POLICY + "list", query={"*": {}}, shows=("resource_classes", "class", True))
async def index(ctx: Context) -> Answer:
    """List resource classes, standard ones first."""
    rows = await ctx.db.fetch("SELECT name FROM resource_classes")
    found = sorted({*names.standard_classes(), *(row["name"] for row in rows)}, key=names.class_order)
    return dated(ctx, {"resource_classes": [ctx.render("class", {"name": name}) for name in found]})


@api.route("POST", ALL, policy=POLICY + "create", body=CLASS, query={"*": {}}, status=201)
async def create(ctx: Context) -> Answer:
    """Create a custom resource class."""
    name = ctx.body["name"]
    async with ctx.db.transaction() as tx:
        if not await tx.execute(names.INSERT.format("resource_classes"), name, ctx.now):
            raise Conflict(f"Conflicting resource class already exists: {name}")
    return Answer(headers={"Location": ctx.url(f"/resource_classes/{name}")})


@api.route("GET", ONE, policy=POLICY + "show", query={"*": {}}, shows=("", "class", False))
async def show(ctx: Context, name: str) -> Answer:
    """Show a resource class."""
    row = await _row(ctx.db, name)
    if row is None and name not in names.standard_classes():
        raise _missing(name)
    return dated(ctx, ctx.render("class", {"name": name}), row["updated_at"] if row else None)


@api.route("PUT", ONE, policy=POLICY + "update", query={"*": {}}, status=204, also=[201])
async def put(ctx: Context, name: str) -> Answer:
    """Have a custom resource class; before 1.7, give it another name."""
    if not ctx.behaves(ENSURED):
        return await _rename(ctx, name, ctx.body["name"])
    _class.check({"name": name}, words=api.words)
    async with ctx.db.transaction() as tx:
        made = await tx.execute(names.INSERT.format("resource_classes"), name, ctx.now)
    return Answer(status=201 if made else 204, headers={"Location": ctx.url(f"/resource_classes/{name}")})


@api.route("DELETE", ONE, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, name: str) -> None:
    """Delete a custom resource class of which there is no inventory."""
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_classes():
                raise BadRequest(f"Error in delete resource class: Cannot delete standard resource class {name}.")
            if not await tx.execute("DELETE FROM resource_classes WHERE name = $1", name):
                raise _missing(name)
    except store.Conflict:
        raise Conflict(f"Error in delete resource class: Class is in use in inventory: {name}") from None


async def _rename(ctx: Context, name: str, new: str) -> Answer:
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_classes():
                raise BadRequest(f"Cannot update standard resource class {name}")
            # Whoever has such an inventory is read anew by schedulers, which know classes by their names.
            rows = await tx.fetch(_OWNERS, name)
            if not await tx.execute(_RENAME, name, new, ctx.now):
                raise _missing(name)
            if rows:
                await facts_changed(tx, [row["id"] for row in rows], generation=False)
    except store.Conflict:
        raise Conflict(f"Resource class already exists: {new}") from None
    return dated(ctx, ctx.render("class", {"name": new}))


async def _row(reader: Reader, name: str) -> Row | None:
    return await reader.fetch_one("SELECT updated_at FROM resource_classes WHERE name = $1", name)


def _missing(name: Any) -> NotFound:
    return NotFound(f"No such resource class {name[:255]}.")


_OWNERS = """
SELECT id FROM resource_providers
WHERE id IN (SELECT provider_id FROM inventories WHERE resource_class = $1) ORDER BY id FOR UPDATE
"""
_RENAME = "UPDATE resource_classes SET name = $2, updated_at = $3 WHERE name = $1"
