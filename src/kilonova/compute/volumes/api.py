"""Routes of volumes and snapshots: the old ways to the volume service, asked in the caller's name."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.volumes import assisting, schemas, views
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.http.pagination import limit_of
from kilonova.http.pieces import is_true
from kilonova.identity.client import Auth

__all__ = ["assisting", "views"]

VOLUMES = "os_compute_api:os-volumes:"
SNAPSHOTS = VOLUMES + "snapshots:"
Item = dict[str, Any]


@api.route("GET", "/os-volumes", policy=VOLUMES + "list", query=schemas.LIST, shows=("volumes", "volume of old", True))
async def list_volumes(ctx: Context) -> Answer:
    """List volumes."""
    return await _volumes(ctx)


@api.route(
    "GET",
    "/os-volumes/detail",
    policy=VOLUMES + "detail",
    query=schemas.LIST,
    shows=("volumes", "volume of old", True),
)
async def list_volumes_in_detail(ctx: Context) -> Answer:
    """List volumes in detail, which shows no more."""
    return await _volumes(ctx)


@api.route(
    "POST",
    "/os-volumes",
    policy=VOLUMES + "create",
    body=schemas.VOLUME,
    shows=("volume", "volume of old", False),
)
async def create_volume(ctx: Context) -> Answer:
    """Create a volume."""
    asked = dict(ctx.body["volume"])
    wanted = {**_named(asked), **asked, "size": int(asked["size"])}
    volume = await ctx.services.volume.create(wanted, _auth(ctx))
    location = {"Location": ctx.url(f"/os-volumes/{volume['id']}")}
    return Answer({"volume": ctx.render("volume of old", volume)}, headers=location)


@api.route("GET", "/os-volumes/{volume_id}", policy=VOLUMES + "show", shows=("volume", "volume of old", False))
async def show_volume(ctx: Context, volume_id: str) -> Answer:
    """Show a volume."""
    return Answer({"volume": ctx.render("volume of old", await _volume(ctx, volume_id))})


@api.route("DELETE", "/os-volumes/{volume_id}", policy=VOLUMES + "delete", status=202)
async def delete_volume(ctx: Context, volume_id: str) -> Answer:
    """Delete a volume."""
    await _volume(ctx, volume_id)
    await ctx.services.volume.delete(volume_id, _auth(ctx))
    return Answer()


@api.route(
    "GET", "/os-snapshots", policy=SNAPSHOTS + "list", query=schemas.LIST, shows=("snapshots", "snapshot of old", True)
)
async def list_snapshots(ctx: Context) -> Answer:
    """List snapshots of volumes."""
    return await _snapshots(ctx)


@api.route(
    "GET",
    "/os-snapshots/detail",
    policy=SNAPSHOTS + "detail",
    query=schemas.LIST,
    shows=("snapshots", "snapshot of old", True),
)
async def list_snapshots_in_detail(ctx: Context) -> Answer:
    """List snapshots of volumes in detail, which shows no more."""
    return await _snapshots(ctx)


@api.route(
    "POST",
    "/os-snapshots",
    policy=SNAPSHOTS + "create",
    body=schemas.SNAPSHOT,
    shows=("snapshot", "snapshot of old", False),
)
async def create_snapshot(ctx: Context) -> Answer:
    """Create a snapshot of a volume."""
    asked = dict(ctx.body["snapshot"])
    wanted = {**_named(asked), **asked, "force": is_true(asked.get("force", False))}
    snapshot = await ctx.services.volume.create_snapshot(wanted, _auth(ctx))
    location = {"Location": ctx.url(f"/os-snapshots/{snapshot['id']}")}
    return Answer({"snapshot": ctx.render("snapshot of old", snapshot)}, headers=location)


@api.route(
    "GET", "/os-snapshots/{snapshot_id}", policy=SNAPSHOTS + "show", shows=("snapshot", "snapshot of old", False)
)
async def show_snapshot(ctx: Context, snapshot_id: str) -> Answer:
    """Show a snapshot of a volume."""
    return Answer({"snapshot": ctx.render("snapshot of old", await _snapshot(ctx, snapshot_id))})


@api.route("DELETE", "/os-snapshots/{snapshot_id}", policy=SNAPSHOTS + "delete", status=202)
async def delete_snapshot(ctx: Context, snapshot_id: str) -> Answer:
    """Delete a snapshot of a volume."""
    await _snapshot(ctx, snapshot_id)
    await ctx.services.volume.delete_snapshot(snapshot_id, _auth(ctx))
    return Answer()


def _auth(ctx: Context) -> Auth:
    return Auth(ctx.auth_token, ctx.token.project_id)


async def _volume(ctx: Context, volume_id: str) -> Item:
    found = await ctx.services.volume.show(volume_id, _auth(ctx))
    if found is None:
        raise NotFound(f"Volume {volume_id} could not be found.")
    return found


async def _snapshot(ctx: Context, snapshot_id: str) -> Item:
    found = await ctx.services.volume.snapshot(snapshot_id, _auth(ctx))
    if found is None:
        raise NotFound(f"Snapshot {snapshot_id} could not be found.")
    return found


async def _volumes(ctx: Context) -> Answer:
    return _listed(ctx, "volumes", "volume of old", await ctx.services.volume.volumes(_auth(ctx)))


async def _snapshots(ctx: Context) -> Answer:
    return _listed(ctx, "snapshots", "snapshot of old", await ctx.services.volume.snapshots(_auth(ctx)))


def _listed(ctx: Context, key: str, view: str, found: list[Item]) -> Answer:
    start = int(ctx.query_one("offset") or 0)
    return Answer({key: [ctx.render(view, item) for item in found[start : start + limit_of(ctx)]]})


def _named(asked: Item) -> Item:
    """What the volume service calls by other names, taken out."""
    words = {"display_name": "name", "display_description": "description"}
    return {new: asked.pop(old) for old, new in words.items() if old in asked}
