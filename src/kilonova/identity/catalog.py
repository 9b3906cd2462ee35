"""The service catalogue. It comes from the configuration, so its routes are read-only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden, NotSupported
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.resources import not_found
from kilonova.identity.schemas import QUERY_TEXT

if TYPE_CHECKING:
    from kilonova.config import Config

INTERFACES = ("public", "internal", "admin")
READ_ONLY = "The service catalogue comes from the configuration and cannot be changed by the API."
_NAMESPACE = uuid.UUID("6b1c6d4e-3f0a-5a57-9f0e-6a1f7d1f7c11")


class Service(NamedTuple):
    """A service of the catalogue; `url` is absolute, or a path below the process's own base."""

    type: str
    name: str
    url: str

    @property
    def is_local(self) -> bool:
        return self.url.startswith("/")


def services(config: Config, mounts: Container[str]) -> list[Service]:
    """The services of this process, and those whose URL is in the configuration."""
    volumes = f"{config.volume.url.rstrip('/') or '/volume'}/v3"
    known = (
        Service("identity", "keystone", "/identity"),
        Service("compute", "nova", "/compute/v2.1"),
        Service("placement", "placement", "/placement"),
        Service("image", "glance", config.image.url or "/image"),
        Service("network", "neutron", config.network.url or "/network"),
        Service("block-storage", "cinder", volumes),
        Service("volumev3", "cinderv3", volumes),
    )
    return [service for service in known if not service.is_local or service.url.split("/")[1] in mounts]


def catalog(config: Config, mounts: Container[str], base_url: str) -> list[Json]:
    """The catalogue of a token. `base_url` is the scheme and host that the client used."""
    return [
        {
            "id": _stable_id(service.type),
            "type": service.type,
            "name": service.name,
            "endpoints": [_endpoint(config, service, interface, base_url) for interface in INTERFACES],
        }
        for service in services(config, mounts)
    ]


def catalog_for(ctx: Context) -> list[Json]:
    return catalog(ctx.services.config, ctx.services.mounts, ctx.base_url().removesuffix(api.prefix))


@cache
def _stable_id(*parts: str) -> str:
    """Derived ids, so that they stay the same after a restart."""
    return uuid.uuid5(_NAMESPACE, " ".join(parts)).hex


def _endpoint(config: Config, service: Service, interface: str, base_url: str) -> Json:
    region = config.identity.region
    return {
        "id": _stable_id(service.type, interface, region),
        "interface": interface,
        "region": region,
        "region_id": region,
        "url": base_url + service.url if service.is_local else service.url,
    }


@api.route("GET", "/v3/auth/catalog", policy="identity:get_auth_catalog", query={})
async def own_catalog(ctx: Context) -> Response:
    """Show the catalogue of the own token."""
    if not ctx.token.is_scoped:
        raise Forbidden("An unscoped token has no catalogue.")
    return Response({"catalog": catalog_for(ctx), "links": {"self": link(ctx, "auth/catalog")}})


def _service_views(ctx: Context) -> list[Json]:
    return [
        {
            "id": entry["id"],
            "type": entry["type"],
            "name": entry["name"],
            "description": "",
            "enabled": True,
            "links": {"self": link(ctx, f"services/{entry['id']}")},
        }
        for entry in catalog_for(ctx)
    ]


def _endpoint_views(ctx: Context) -> list[Json]:
    return [
        {
            **endpoint,
            "service_id": entry["id"],
            "enabled": True,
            "links": {"self": link(ctx, f"endpoints/{endpoint['id']}")},
        }
        for entry in catalog_for(ctx)
        for endpoint in entry["endpoints"]
    ]


def _region_views(ctx: Context) -> list[Json]:
    region = ctx.services.config.identity.region
    return [
        {
            "id": region,
            "description": "",
            "parent_region_id": None,
            "links": {"self": link(ctx, f"regions/{region}")},
        }
    ]


def _declare_routes(noun: str, views: Callable[[Context], list[Json]], *filters: str) -> None:
    many, one = f"/v3/{noun}s", f"/v3/{noun}s/{{{noun}_id}}"
    list_rule, show_rule = f"identity:list_{noun}s", f"identity:get_{noun}"

    async def index(ctx: Context) -> Response:
        wanted = {key: value for key in filters if (value := ctx.query_one(key)) is not None}
        shown = [item for item in views(ctx) if all(item[key] == value for key, value in wanted.items())]
        return Response({f"{noun}s": shown, "links": list_links(ctx, f"{noun}s")})

    async def show(ctx: Context, **params: str) -> Response:
        item_id = params[f"{noun}_id"]
        for item in views(ctx):
            if item["id"] == item_id:
                return Response({noun: item})
        raise not_found(noun, item_id)

    async def refuse(ctx: Context, **params: str) -> Response:
        """Refuse to change the catalogue."""
        raise NotSupported(READ_ONLY)

    index.__doc__, show.__doc__ = f"List the {noun}s of the catalogue.", f"Show a {noun} of the catalogue."
    api.route("GET", many, policy=list_rule, query=dict.fromkeys(filters, QUERY_TEXT))(index)
    api.route("GET", one, policy=show_rule)(show)
    api.route("POST", many, policy=list_rule)(refuse)
    for method in ("PATCH", "PUT", "DELETE"):
        api.route(method, one, policy=show_rule)(refuse)


_declare_routes("service", _service_views, "type", "name")
_declare_routes("endpoint", _endpoint_views, "service_id", "interface", "region_id", "region")
_declare_routes("region", _region_views, "parent_region_id")
