"""Routes of flavors themselves."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.compute.api import api
from kilonova.compute.flavors import access, model, schemas, specs, views
from kilonova.compute.flavors.lookup import locked, missing, visible
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.pagination import limit_of, marker_missing, next_link
from kilonova.http.pieces import is_true
from kilonova.ids import new_id
from kilonova.store import Row

__all__ = ["access", "specs", "views"]

_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


@api.route("GET", "/flavors", query=schemas.LIST, shows=("flavors", "flavor summary", True))
async def index(ctx: Context) -> Answer:
    """List flavors."""
    return await _list(ctx, "/flavors", "flavor summary")


@api.route("GET", "/flavors/detail", query=schemas.LIST, shows=("flavors", "flavor", True))
async def detail(ctx: Context) -> Answer:
    """List flavors with details."""
    return await _list(ctx, "/flavors/detail", "flavor")


@api.route("GET", "/flavors/{flavor_id}", query={}, shows=("flavor", "flavor", False))
async def show(ctx: Context, flavor_id: str) -> Answer:
    """Show a flavor."""
    return Answer({"flavor": ctx.render("flavor", await visible(ctx, flavor_id))})


@api.route(
    "POST",
    "/flavors",
    policy="os_compute_api:os-flavor-manage:create",
    body=schemas.CREATE,
    query={},
    shows=("flavor", "flavor", False),
)
async def create(ctx: Context) -> Answer:
    """Create a flavor."""
    values = _values(ctx.body["flavor"])
    try:
        async with ctx.db.transaction() as tx:
            taken = await model.taken(tx, values["flavor_id"], values["name"])
            if taken:
                raise Conflict(f"Flavor with {taken} already exists.")
            row = await model.create(tx, values)
    except store.Conflict:
        raise Conflict(f"Flavor with ID {values['flavor_id']} or name {values['name']} already exists.") from None
    return Answer({"flavor": ctx.render("flavor", row)})


@api.route(
    "PUT",
    "/flavors/{flavor_id}",
    policy="os_compute_api:os-flavor-manage:update",
    body=schemas.UPDATE,
    query={},
    shows=("flavor", "flavor", False),
)
async def update(ctx: Context, flavor_id: str) -> Answer:
    """Change a flavor's description."""
    description = ctx.body["flavor"]["description"]
    async with ctx.db.transaction() as tx:
        row = await locked(tx, flavor_id)
        await model.describe(tx, row, description)
    return Answer({"flavor": ctx.render("flavor", {**row, "description": description})})


@api.route("DELETE", "/flavors/{flavor_id}", policy="os_compute_api:os-flavor-manage:delete", query={}, status=202)
async def delete(ctx: Context, flavor_id: str) -> None:
    """Delete a flavor; servers keep their copy of it."""
    async with ctx.db.transaction() as tx:
        if not await model.delete(tx, flavor_id):
            raise missing(flavor_id)


async def _list(ctx: Context, path: str, view: str) -> Answer:
    limit = limit_of(ctx)
    rows = await model.page(
        ctx.db,
        ctx.token,
        is_public=_is_public(ctx),
        min_ram=int(ctx.query_one("minRam") or 0),
        min_disk=int(ctx.query_one("minDisk") or 0),
        name=ctx.query_one("name"),
        order=schemas.SORT_KEYS[ctx.query_one("sort_key") or "flavorid"],
        descending=ctx.query_one("sort_dir") == "desc",
        marker=await _marker(ctx),
        limit=limit,
    )
    shown: dict[str, Any] = {"flavors": [ctx.render(view, row) for row in rows]}
    links = next_link(ctx, path, rows[-1]["flavor_id"], len(rows) == limit) if rows else []
    if links:
        shown["flavors_links"] = links
    return Answer(shown)


async def _marker(ctx: Context) -> Row | None:
    flavor_id = ctx.query_one("marker")
    if flavor_id is None:
        return None
    row = await model.get(ctx.db, flavor_id, ctx.token)
    if row is None:
        raise marker_missing(flavor_id)
    return row


def _is_public(ctx: Context) -> bool | None:
    """Which kind to list. Only administrators choose; others see what they may use."""
    asked = ctx.query_one("is_public")
    if asked is None or not model.sees_all(ctx.token):
        return True
    word = asked.strip().lower()
    if word == "none":
        return None
    if word not in _TRUE | _FALSE:
        raise BadRequest(f"Invalid is_public filter [{asked[:80]}]")
    return word in _TRUE


def _values(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "flavor_id": new_id() if body.get("id") is None else str(body["id"]),
        "name": body["name"],
        "description": body.get("description"),
        "vcpus": int(body["vcpus"]),
        "ram": int(body["ram"]),
        "disk": int(body["disk"]),
        "ephemeral": int(body.get("OS-FLV-EXT-DATA:ephemeral", 0)),
        "swap": int(body.get("swap", 0)),
        "rxtx_factor": float(body.get("rxtx_factor", 1)),
        "is_public": is_true(body.get("os-flavor-access:is_public", True)),
    }
