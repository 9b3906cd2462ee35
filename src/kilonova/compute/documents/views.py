"""How versions are shown in their documents."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.http import Context

_ROOTS = {"v2.0": "/v2", "v2.1": "/v2.1"}
_MEDIA = "application/vnd.openstack.compute+json;version="


def short_version(ctx: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "links": [{"rel": "self", "href": f"{ctx.base_url()}{_ROOTS[name]}/"}],
        **_STATES[name],
    }


def version(ctx: Context, name: str) -> dict[str, Any]:
    shown = short_version(ctx, name)
    described = {"rel": "describedby", "type": "application/json", "href": f"{ctx.base_url()}/openapi.json"}
    return {**shown, "links": [*shown["links"], described], "media-types": _media(name)}


def choice(ctx: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "status": _STATES[name]["status"],
        "links": [{"rel": "self", "href": f"{ctx.base_url()}{_ROOTS[name]}{ctx.params['path']}"}],
        "media-types": _media(name),
    }


def _media(name: str) -> list[dict[str, str]]:
    return [{"base": "application/json", "type": _MEDIA + _ROOTS[name].removeprefix("/v")}]


_STATES: dict[str, dict[str, str]] = {
    "v2.0": {"status": "DEPRECATED", "version": "", "min_version": "", "updated": "2025-07-04T12:00:00Z"},
    "v2.1": {
        "status": "CURRENT",
        "version": f"{api.major}.{api.high}",
        "min_version": f"{api.major}.{api.low}",
        "updated": "2013-07-23T11:33:21Z",
    },
}
