"""Routes of share types. There is one, which all shares have."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.errors import NotFound
from kilonova.http.parameter_types import STRING, Schema
from kilonova.share.api import api

DEFAULT_ID, DEFAULT_NAME = "6b1d4a2e-97a3-5a3c-8d3e-0f4f5a0c6a55", "default"
_QUERY: dict[str, Schema] = {"is_public": STRING, "*": multi(STRING)}
_SPECS = {"driver_handles_share_servers": "False", "snapshot_support": "False"}
_TYPE: dict[str, object] = {
    "id": DEFAULT_ID,
    "name": DEFAULT_NAME,
    "description": "A directory of this machine, for guests on its hosts.",
    "is_default": True,
    "share_type_access:is_public": True,
    "os-share-type-access:is_public": True,
    "required_extra_specs": {"driver_handles_share_servers": "False"},
    "extra_specs": _SPECS,
}


@api.route("GET", "/types", policy="share_type:index", query=_QUERY)
async def index(ctx: Context) -> Response:
    """List share types."""
    return Response({"share_types": [_TYPE], "volume_types": [_TYPE]})


@api.route("GET", "/types/default", policy="share_type:default")
async def default(ctx: Context) -> Response:
    """Show the default share type."""
    return Response({"share_type": _TYPE, "volume_type": _TYPE})


@api.route("GET", "/types/{type_id}", policy="share_type:show")
async def show(ctx: Context, type_id: str) -> Response:
    """Show a share type."""
    _check(type_id)
    return Response({"share_type": _TYPE, "volume_type": _TYPE})


@api.route("GET", "/types/{type_id}/extra_specs", policy="share_types_extra_spec:index")
async def extra_specs(ctx: Context, type_id: str) -> Response:
    """Show the extra specs of a share type."""
    _check(type_id)
    return Response({"extra_specs": _SPECS})


def _check(type_id: str) -> None:
    if type_id != DEFAULT_ID:
        raise NotFound(f"Share type {type_id[:80]} could not be found.")
