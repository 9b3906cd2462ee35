"""Proxy routes of volumes and snapshots: old clients reach the volume service through compute, with their own token."""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.compute.api import api
from kilonova.compute.volumes import assisted_snapshots, schemas, views
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.http.pagination import page_limit
from kilonova.http.parameter_types import is_true
from kilonova.identity.client import Auth
from kilonova.volume.client import Volume, VolumeSnapshot

__all__ = ["assisted_snapshots", "views"]

VOLUMES = "os_compute_api:os-volumes:"
SNAPSHOTS = VOLUMES + "snapshots:"
LISTED_VOLUMES, ONE_VOLUME = ("volumes", "volume of old", True), ("volume", "volume of old", False)
LISTED_SNAPSHOTS, ONE_SNAPSHOT = ("snapshots", "snapshot of old", True), ("snapshot", "snapshot of old", False)


@api.route("GET", "/os-volumes", policy=VOLUMES + "list", query=schemas.LIST, shows=LISTED_VOLUMES)
async def list_volumes(ctx: Context) -> Response:
    """List volumes."""
    return await _volumes(ctx)


@api.route("GET", "/os-volumes/detail", policy=VOLUMES + "detail", query=schemas.LIST, shows=LISTED_VOLUMES)
async def list_volumes_in_detail(ctx: Context) -> Response:
    """List volumes in detail, with the same fields."""
    return await _volumes(ctx)


@api.route("POST", "/os-volumes", policy=VOLUMES + "create", body=schemas.VOLUME, shows=ONE_VOLUME)
async def create_volume(ctx: Context) -> Response:
    """Create a volume."""
    body = dict(ctx.body["volume"])
    values = {**_translate_names(body), **body, "size": int(body["size"])}
    volume = await ctx.services.volume.create(values, _auth(ctx))
    location = {"Location": ctx.url(f"/os-volumes/{volume.id}")}
    return Response({"volume": ctx.render("volume of old", volume)}, headers=location)


@api.route("GET", "/os-volumes/{volume_id}", policy=VOLUMES + "show", shows=ONE_VOLUME)
async def show_volume(ctx: Context, volume_id: str) -> Response:
    """Show a volume."""
    return Response({"volume": ctx.render("volume of old", await _volume(ctx, volume_id))})


@api.route("DELETE", "/os-volumes/{volume_id}", policy=VOLUMES + "delete", status=202)
async def delete_volume(ctx: Context, volume_id: str) -> Response:
    """Delete a volume."""
    await _volume(ctx, volume_id)
    await ctx.services.volume.delete(volume_id, _auth(ctx))
    return Response()


@api.route("GET", "/os-snapshots", policy=SNAPSHOTS + "list", query=schemas.LIST, shows=LISTED_SNAPSHOTS)
async def list_snapshots(ctx: Context) -> Response:
    """List snapshots of volumes."""
    return await _snapshots(ctx)


@api.route("GET", "/os-snapshots/detail", policy=SNAPSHOTS + "detail", query=schemas.LIST, shows=LISTED_SNAPSHOTS)
async def list_snapshots_in_detail(ctx: Context) -> Response:
    """List snapshots of volumes in detail, with the same fields."""
    return await _snapshots(ctx)


@api.route("POST", "/os-snapshots", policy=SNAPSHOTS + "create", body=schemas.SNAPSHOT, shows=ONE_SNAPSHOT)
async def create_snapshot(ctx: Context) -> Response:
    """Create a snapshot of a volume."""
    body = dict(ctx.body["snapshot"])
    values = {**_translate_names(body), **body, "force": is_true(body.get("force", False))}
    snapshot = await ctx.services.volume.create_snapshot(values, _auth(ctx))
    location = {"Location": ctx.url(f"/os-snapshots/{snapshot.id}")}
    return Response({"snapshot": ctx.render("snapshot of old", snapshot)}, headers=location)


@api.route("GET", "/os-snapshots/{snapshot_id}", policy=SNAPSHOTS + "show", shows=ONE_SNAPSHOT)
async def show_snapshot(ctx: Context, snapshot_id: str) -> Response:
    """Show a snapshot of a volume."""
    return Response({"snapshot": ctx.render("snapshot of old", await _snapshot(ctx, snapshot_id))})


@api.route("DELETE", "/os-snapshots/{snapshot_id}", policy=SNAPSHOTS + "delete", status=202)
async def delete_snapshot(ctx: Context, snapshot_id: str) -> Response:
    """Delete a snapshot of a volume."""
    await _snapshot(ctx, snapshot_id)
    await ctx.services.volume.delete_snapshot(snapshot_id, _auth(ctx))
    return Response()


def _auth(ctx: Context) -> Auth:
    return Auth(ctx.auth_token, ctx.token.project_id)


async def _volume(ctx: Context, volume_id: str) -> Volume:
    found = await ctx.services.volume.show(volume_id, _auth(ctx))
    if found is None:
        raise NotFound(f"Volume {volume_id} could not be found.")
    return found


async def _snapshot(ctx: Context, snapshot_id: str) -> VolumeSnapshot:
    found = await ctx.services.volume.snapshot(snapshot_id, _auth(ctx))
    if found is None:
        raise NotFound(f"Snapshot {snapshot_id} could not be found.")
    return found


async def _volumes(ctx: Context) -> Response:
    return _page(ctx, "volumes", "volume of old", await ctx.services.volume.volumes(_auth(ctx)))


async def _snapshots(ctx: Context) -> Response:
    return _page(ctx, "snapshots", "snapshot of old", await ctx.services.volume.snapshots(_auth(ctx)))


def _page(ctx: Context, key: str, view: str, found: Sequence[Volume | VolumeSnapshot]) -> Response:
    start = int(ctx.query_one("offset") or 0)
    return Response({key: [ctx.render(view, item) for item in found[start : start + page_limit(ctx)]]})


def _translate_names(body: dict[str, object]) -> dict[str, object]:
    """Remove the keys that the volume service names differently, and return them under its names."""
    names = {"display_name": "name", "display_description": "description"}
    return {new: body.pop(old) for old, new in names.items() if old in body}
