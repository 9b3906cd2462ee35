"""Routes of volume types."""

from __future__ import annotations

from msgspec import structs

from kilonova import store
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.is_public import is_public_filter
from kilonova.http.parameter_types import is_true
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.types import access, defaults, encryption, extra_specs, model, schemas, views
from kilonova.volume.types.lookup import get_locked, get_visible
from kilonova.volume.types.model import VolumeType

__all__ = ["access", "defaults", "encryption", "extra_specs", "views"]

TYPE = "/types/{type_id}"
RULE = "volume_extension:type_"
BY_SPECS = api.behaviour("types are filtered by extra specs")
_SORT_KEYS = ("id", "name", "description", "is_public", "created_at", "updated_at")


@api.route("GET", "/types", policy=RULE + "get_all", query=schemas.LIST, shows=("volume_types", "volume type", True))
async def index(ctx: Context) -> Response:
    """List volume types."""
    visible = await model.list_types(ctx.db, ctx.token, is_public_filter(ctx))
    name, specs = ctx.query_one("name"), _extra_specs_filter(ctx)
    chosen = [each for each in visible if name in (None, each.name) and specs.items() <= each.extra_specs.items()]
    found, links = paging.page(ctx, chosen, "/types", _SORT_KEYS)
    shown: dict[str, object] = {"volume_types": [ctx.render("volume type", each) for each in found]}
    return Response({**shown, "volume_types_links": links} if links else shown)


@api.route("GET", "/types/default", policy=RULE + "get", query={}, shows=("volume_type", "volume type", False))
async def default(ctx: Context) -> Response:
    """Show the default volume type of the own project."""
    default = await model.get_default(ctx.db, ctx.token.project_id or "")
    return Response({"volume_type": ctx.render("volume type", default)})


@api.route("GET", TYPE, policy=RULE + "get", query={}, shows=("volume_type", "volume type", False))
async def show(ctx: Context, type_id: str) -> Response:
    """Show a volume type."""
    return Response({"volume_type": ctx.render("volume type", await get_visible(ctx, type_id))})


@api.route(
    "POST",
    "/types",
    policy=RULE + "create",
    body=schemas.CREATE,
    query={},
    shows=("volume_type", "new volume type", False),
)
async def create(ctx: Context) -> Response:
    """Create a volume type."""
    body = ctx.body["volume_type"]
    try:
        async with ctx.db.transaction() as tx:
            created = await model.create(
                tx,
                body["name"],
                ctx.now,
                description=body.get("description"),
                is_public=is_true(body.get(schemas.IS_PUBLIC, True)),
                extra_specs=body.get("extra_specs"),
            )
    except store.Conflict:
        raise _already_exists(body["name"]) from None
    return Response({"volume_type": ctx.render("new volume type", created)})


@api.route(
    "PUT",
    TYPE,
    policy=RULE + "update",
    body=schemas.UPDATE,
    query={},
    shows=("volume_type", "changed volume type", False),
)
async def update(ctx: Context, type_id: str) -> Response:
    """Update the name, the description or the visibility of a volume type."""
    values = _changes(ctx.body["volume_type"])
    try:
        async with ctx.db.transaction() as tx:
            before = await get_locked(tx, type_id)
            changed = structs.replace(before, updated_at=ctx.now, **values)
            _check_default(before, changed)
            if changed.name != before.name:
                await quotas.rename_type(tx, before.name, changed.name)
            await model.write(tx, changed)
    except store.Conflict:
        raise _already_exists(str(values["name"])) from None
    return Response({"volume_type": ctx.render("changed volume type", changed)})


@api.route("DELETE", TYPE, policy=RULE + "delete", query={}, status=202)
async def delete(ctx: Context, type_id: str) -> None:
    """Delete an unused volume type."""
    try:
        async with ctx.db.transaction() as tx:
            volume_type = await get_locked(tx, type_id)
            if volume_type.name == model.DEFAULT or await model.is_default(tx, volume_type):
                raise BadRequest(f"The volume type {type_id} is a default volume type and cannot be deleted.")
            await quotas.delete_type(tx, volume_type.name)
            await model.delete(tx, volume_type)
    except store.Conflict:
        raise BadRequest("Target volume type is still in use.") from None


def _extra_specs_filter(ctx: Context) -> dict[str, str]:
    text = ctx.query_one("extra_specs")
    if text is None or not ctx.has_behaviour(BY_SPECS):
        return {}
    return filters.dictionary("extra_specs", text)


def _changes(body: dict[str, str]) -> dict[str, str | bool]:
    values: dict[str, str | bool] = {key: body[key] for key in ("name", "description") if body.get(key) is not None}
    for key in ("is_public", schemas.IS_PUBLIC):
        if key in body:
            values["is_public"] = is_true(body[key])
    if not values:
        raise BadRequest("Specify volume type name, description, is_public or a combination thereof.")
    return values


def _check_default(before: VolumeType, changed: VolumeType) -> None:
    """All projects must find the default type by its name."""
    if before.name == model.DEFAULT and (changed.name != model.DEFAULT or not changed.is_public):
        raise BadRequest(f"The volume type {before.id} is a default volume type: it keeps its name and stays public.")


def _already_exists(name: str) -> Conflict:
    return Conflict(f"Volume Type {name} already exists.")
