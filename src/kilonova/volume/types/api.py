"""Routes of volume types themselves."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.pieces import is_true
from kilonova.store import Row
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.types import access, defaults, encryption, model, schemas, specs, views
from kilonova.volume.types.lookup import locked, visible

__all__ = ["access", "defaults", "encryption", "specs", "views"]

TYPE = "/types/{type_id}"
BY_SPECS = "types are listed by extra specs"
_SORT_KEYS = ("id", "name", "description", "is_public", "created_at", "updated_at")
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


@api.route(
    "GET",
    "/types",
    policy="volume_extension:type_get_all",
    query=schemas.LIST,
    shows=("volume_types", "volume type", True),
)
async def index(ctx: Context) -> Answer:
    """List volume types."""
    rows = await model.of_kind(ctx.db, ctx.token, _is_public(ctx))
    name, asked = ctx.query_one("name"), _asked_specs(ctx)
    chosen = [row for row in rows if name in (None, row["name"]) and asked.items() <= row["extra_specs"].items()]
    found, links = paging.page(ctx, chosen, "/types", _SORT_KEYS)
    shown: dict[str, Any] = {"volume_types": [ctx.render("volume type", row) for row in found]}
    return Answer({**shown, "volume_types_links": links} if links else shown)


@api.route(
    "GET",
    "/types/default",
    policy="volume_extension:type_get",
    query={},
    shows=("volume_type", "volume type", False),
)
async def default(ctx: Context) -> Answer:
    """Show the type of the own project's volumes for which nobody names one."""
    row = await model.default_of(ctx.db, ctx.token.project_id or "")
    return Answer({"volume_type": ctx.render("volume type", row)})


@api.route("GET", TYPE, policy="volume_extension:type_get", query={}, shows=("volume_type", "volume type", False))
async def show(ctx: Context, type_id: str) -> Answer:
    """Show a volume type."""
    return Answer({"volume_type": ctx.render("volume type", await visible(ctx, type_id))})


@api.route(
    "POST",
    "/types",
    policy="volume_extension:type_create",
    body=schemas.CREATE,
    query={},
    shows=("volume_type", "new volume type", False),
)
async def create(ctx: Context) -> Answer:
    """Create a volume type."""
    body = ctx.body["volume_type"]
    values = {
        "name": body["name"],
        "description": body.get("description"),
        "extra_specs": body.get("extra_specs"),
        "is_public": is_true(body.get(schemas.IS_PUBLIC, True)),
    }
    try:
        async with ctx.db.transaction() as tx:
            row = await model.create(tx, values, ctx.now)
    except store.Conflict:
        raise _taken(body["name"]) from None
    return Answer({"volume_type": ctx.render("new volume type", row)})


@api.route(
    "PUT",
    TYPE,
    policy="volume_extension:type_update",
    body=schemas.UPDATE,
    query={},
    shows=("volume_type", "changed volume type", False),
)
async def update(ctx: Context, type_id: str) -> Answer:
    """Change a volume type's name, description and whether it is public."""
    values = _changes(ctx.body["volume_type"])
    try:
        async with ctx.db.transaction() as tx:
            row = await locked(tx, type_id)
            changed = {**row, **values, "updated_at": ctx.now}
            _check_default(row, changed)
            if changed["name"] != row["name"]:
                await quotas.rename_type(tx, row["name"], changed["name"])
            await model.write(tx, changed)
    except store.Conflict:
        raise _taken(values["name"]) from None
    return Answer({"volume_type": ctx.render("changed volume type", changed)})


@api.route("DELETE", TYPE, policy="volume_extension:type_delete", query={}, status=202)
async def delete(ctx: Context, type_id: str) -> None:
    """Delete a volume type that no volume has."""
    try:
        async with ctx.db.transaction() as tx:
            row = await locked(tx, type_id)
            if row["name"] == model.DEFAULT or await model.is_default(tx, row):
                raise BadRequest(f"The volume type {type_id} is a default volume type and cannot be deleted.")
            await quotas.forget_type(tx, row["name"])
            await model.delete(tx, row)
    except store.Conflict:
        raise BadRequest("Target volume type is still in use.") from None


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


def _asked_specs(ctx: Context) -> dict[str, str]:
    asked = ctx.query_one("extra_specs")
    if asked is None or not ctx.behaves(BY_SPECS):
        return {}
    return filters.dictionary("extra_specs", asked)


def _changes(body: dict[str, Any]) -> dict[str, Any]:
    values = {key: body[key] for key in ("name", "description") if body.get(key) is not None}
    for key in ("is_public", schemas.IS_PUBLIC):
        if key in body:
            values["is_public"] = is_true(body[key])
    if not values:
        raise BadRequest("Specify volume type name, description, is_public or a combination thereof.")
    return values


def _check_default(row: Row, changed: Row) -> None:
    """Everybody has to find the type of volumes for which nobody names one."""
    if row["name"] == model.DEFAULT and (changed["name"] != model.DEFAULT or not changed["is_public"]):
        raise BadRequest(f"The volume type {row['id']} is a default volume type: it keeps its name and stays public.")


def _taken(name: str) -> Conflict:
    return Conflict(f"Volume Type {name} already exists.")
