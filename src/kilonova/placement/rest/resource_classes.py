"""Resource classes, standard and custom."""

from __future__ import annotations

from kilonova import store
from kilonova.http import Context, Field, Response, View, col
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.schema import Schema, Validator
from kilonova.placement import names
from kilonova.placement.api import api, link_path, with_last_modified
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.rest.schemas import strict_object
from kilonova.store import Reader, Row

POLICY = "placement:resource_classes:"
ALL_PATH, ONE_PATH = "/resource_classes", "/resource_classes/{name}"
PUT_ENSURES = api.behaviour("PUT creates a class or confirms it")

CLASS = strict_object({"name": {"type": "string", "pattern": "^CUSTOM\\_[A-Z0-9_]+$", "maxLength": 255}})
_CLASS_VALIDATOR = Validator(CLASS)
TEXT: Schema = {"type": "string"}


def _links(name: str, ctx: Context) -> list[dict[str, str]]:
    return [{"rel": "self", "href": link_path(ctx, "resource_classes", name)}]


api.view(
    View(
        "class",
        {"name": col("name", TEXT), "links": Field(lambda row, ctx: _links(row["name"], ctx), {"type": "array"})},
    )
)


@api.route("GET", ALL_PATH, policy=POLICY + "list", query={"*": {}}, shows=("resource_classes", "class", True))
async def index(ctx: Context) -> Response:
    """List resource classes, standard ones first."""
    rows = await ctx.db.fetch("SELECT name FROM resource_classes")
    found = sorted({*names.standard_classes(), *(row["name"] for row in rows)}, key=names.class_sort_key)
    return with_last_modified(ctx, {"resource_classes": [ctx.render("class", {"name": name}) for name in found]})


@api.route("POST", ALL_PATH, policy=POLICY + "create", body=CLASS, query={"*": {}}, status=201)
async def create(ctx: Context) -> Response:
    """Create a custom resource class."""
    name = ctx.body["name"]
    async with ctx.db.transaction() as tx:
        if not await tx.execute(names.INSERT_NAME.format("resource_classes"), name, ctx.now):
            raise Conflict(f"Conflicting resource class already exists: {name}")
    return Response(headers={"Location": ctx.url(f"/resource_classes/{name}")})


@api.route("GET", ONE_PATH, policy=POLICY + "show", query={"*": {}}, shows=("", "class", False))
async def show(ctx: Context, name: str) -> Response:
    """Show a resource class."""
    row = await _row(ctx.db, name)
    if row is None and name not in names.standard_classes():
        raise _not_found(name)
    return with_last_modified(ctx, ctx.render("class", {"name": name}), row["updated_at"] if row else None)


@api.route("PUT", ONE_PATH, policy=POLICY + "update", query={"*": {}}, status=204, other_statuses=[201])
async def put(ctx: Context, name: str) -> Response:
    """Ensure that a custom resource class exists; before 1.7, rename it."""
    if not ctx.has_behaviour(PUT_ENSURES):
        return await _rename(ctx, name, ctx.body["name"])
    _CLASS_VALIDATOR.check({"name": name}, messages=api.messages)
    async with ctx.db.transaction() as tx:
        created = await tx.execute(names.INSERT_NAME.format("resource_classes"), name, ctx.now)
    return Response(status=201 if created else 204, headers={"Location": ctx.url(f"/resource_classes/{name}")})


@api.route("DELETE", ONE_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, name: str) -> None:
    """Delete a custom resource class that has no inventory."""
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_classes():
                raise BadRequest(f"Error in delete resource class: Cannot delete standard resource class {name}.")
            if not await tx.execute("DELETE FROM resource_classes WHERE name = $1", name):
                raise _not_found(name)
    except store.Conflict:
        raise Conflict(f"Error in delete resource class: Class is in use in inventory: {name}") from None


async def _rename(ctx: Context, name: str, new: str) -> Response:
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_classes():
                raise BadRequest(f"Cannot update standard resource class {name}")
            # Schedulers know classes by name, so they must read the providers with this class again.
            rows = await tx.fetch(_PROVIDERS_WITH_CLASS, name)
            if not await tx.execute(_RENAME, name, new, ctx.now):
                raise _not_found(name)
            if rows:
                await mark_facts_changed(tx, [row["id"] for row in rows], generation=False)
    except store.Conflict:
        raise Conflict(f"Resource class already exists: {new}") from None
    return with_last_modified(ctx, ctx.render("class", {"name": new}))


async def _row(reader: Reader, name: str) -> Row | None:
    return await reader.fetch_one("SELECT updated_at FROM resource_classes WHERE name = $1", name)


def _not_found(name: str) -> NotFound:
    return NotFound(f"No such resource class {name[:255]}.")


_PROVIDERS_WITH_CLASS = """
SELECT id FROM resource_providers
WHERE id IN (SELECT provider_id FROM inventories WHERE resource_class = $1) ORDER BY id FOR UPDATE
"""
_RENAME = "UPDATE resource_classes SET name = $2, updated_at = $3 WHERE name = $1"
