"""The service catalogue: made from the configuration, so it is read here and changed there."""

from __future__ import annotations

import uuid
from collections.abc import Container
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.http import Answer, Context
from kilonova.http.errors import Forbidden, NotSupported
from kilonova.identity.core import ANY_TEXT, Json, api, link, links, missing, root
from kilonova.identity.token import UNSCOPED

if TYPE_CHECKING:
    from kilonova.config import Config

INTERFACES = ("public", "internal", "admin")
READ_ONLY = "The service catalogue comes from the configuration and cannot be changed here."
_NAMESPACE = uuid.UUID("6b1c6d4e-3f0a-5a57-9f0e-6a1f7d1f7c11")


class Service(NamedTuple):
    """A service of the catalogue; `url` is absolute, or a path below the process's own base."""

    type: str
    name: str
    url: str

    @property
    def is_here(self) -> bool:
        return self.url.startswith("/")


def services(config: Config, mounts: Container[str]) -> list[Service]:
    """The services this cloud has: those served here, and those that the configuration says are elsewhere."""
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
    return [service for service in known if not service.is_here or service.url.split("/")[1] in mounts]


def catalog(config: Config, mounts: Container[str], base_url: str) -> list[Json]:
    """The catalogue as a token shows it. `base_url` is the scheme and host by which the client reached us."""
    return [
        {
            "id": _ident(service.type),
            "type": service.type,
            "name": service.name,
            "endpoints": [_endpoint(config, service, interface, base_url) for interface in INTERFACES],
        }
        for service in services(config, mounts)
    ]


def catalog_for(ctx: Context) -> list[Json]:
    return catalog(ctx.services.config, ctx.services.mounts, root(ctx).removesuffix(api.prefix))


@cache
def _ident(*parts: str) -> str:
    """Ids that stay the same from start to start, though nothing is stored."""
    return uuid.uuid5(_NAMESPACE, " ".join(parts)).hex


def _endpoint(config: Config, service: Service, interface: str, base_url: str) -> Json:
    region = config.identity.region
    return {
        "id": _ident(service.type, interface, region),
        "interface": interface,
        "region": region,
        "region_id": region,
        "url": base_url + service.url if service.is_here else service.url,
    }


@api.route("GET", "/v3/auth/catalog", policy="identity:get_auth_catalog", query={})
async def own_catalog(ctx: Context) -> Answer:
    """Show the catalogue of the own token."""
    if ctx.token.scope == UNSCOPED:
        raise Forbidden("An unscoped token has no catalogue.")
    return Answer({"catalog": catalog_for(ctx), "links": {"self": link(ctx, "auth/catalog")}})


def _service_view(ctx: Context, entry: Json) -> Json:
    return {
        "id": entry["id"],
        "type": entry["type"],
        "name": entry["name"],
        "description": "",
        "enabled": True,
        "links": {"self": link(ctx, f"services/{entry['id']}")},
    }


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


def _region_view(ctx: Context) -> Json:
    region = ctx.services.config.identity.region
    return {
        "id": region,
        "description": "",
        "parent_region_id": None,
        "links": {"self": link(ctx, f"regions/{region}")},
    }


def _matching(ctx: Context, entries: list[Json], *keys: str) -> list[Json]:
    asked = {key: value for key in keys if (value := ctx.query_one(key)) is not None}
    return [entry for entry in entries if all(entry[key] == value for key, value in asked.items())]


def _one(entries: list[Json], noun: str, ident: str) -> Json:
    for entry in entries:
        if entry["id"] == ident:
            return entry
    raise missing(noun, ident)


@api.route("GET", "/v3/services", policy="identity:list_services", query={"type": ANY_TEXT, "name": ANY_TEXT})
async def list_services(ctx: Context) -> Answer:
    """List the services of the catalogue."""
    shown = [_service_view(ctx, entry) for entry in catalog_for(ctx)]
    return Answer({"services": _matching(ctx, shown, "type", "name"), "links": links(ctx, "services")})


@api.route("GET", "/v3/services/{service_id}", policy="identity:get_service")
async def show_service(ctx: Context, service_id: str) -> Answer:
    """Show a service of the catalogue."""
    return Answer({"service": _service_view(ctx, _one(catalog_for(ctx), "service", service_id))})


@api.route(
    "GET",
    "/v3/endpoints",
    policy="identity:list_endpoints",
    query={"service_id": ANY_TEXT, "interface": ANY_TEXT, "region_id": ANY_TEXT, "region": ANY_TEXT},
)
async def list_endpoints(ctx: Context) -> Answer:
    """List the endpoints of the catalogue."""
    shown = _matching(ctx, _endpoint_views(ctx), "service_id", "interface", "region_id", "region")
    return Answer({"endpoints": shown, "links": links(ctx, "endpoints")})


@api.route("GET", "/v3/endpoints/{endpoint_id}", policy="identity:get_endpoint")
async def show_endpoint(ctx: Context, endpoint_id: str) -> Answer:
    """Show an endpoint of the catalogue."""
    return Answer({"endpoint": _one(_endpoint_views(ctx), "endpoint", endpoint_id)})


@api.route("GET", "/v3/regions", policy="identity:list_regions", query={"parent_region_id": ANY_TEXT})
async def list_regions(ctx: Context) -> Answer:
    """List the regions: there is one."""
    shown = _matching(ctx, [_region_view(ctx)], "parent_region_id")
    return Answer({"regions": shown, "links": links(ctx, "regions")})


@api.route("GET", "/v3/regions/{region_id}", policy="identity:get_region")
async def show_region(ctx: Context, region_id: str) -> Answer:
    """Show a region."""
    return Answer({"region": _one([_region_view(ctx)], "region", region_id)})


async def _refuse(ctx: Context, **params: Any) -> Answer:
    """Refuse to change the catalogue."""
    raise NotSupported(READ_ONLY)


for _noun in ("service", "endpoint", "region"):
    api.route("POST", f"/v3/{_noun}s", policy=f"identity:list_{_noun}s")(_refuse)
    for _method in ("PATCH", "PUT", "DELETE"):
        api.route(_method, f"/v3/{_noun}s/{{{_noun}_id}}", policy=f"identity:get_{_noun}")(_refuse)
