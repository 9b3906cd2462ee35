"""The service catalogue of a token: the cloud's own services and the registered ones."""

from __future__ import annotations

import re

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden
from kilonova.identity import own_services
from kilonova.identity.api import Json, api, link
from kilonova.identity.endpoint_filters import added_endpoints
from kilonova.policy.credentials import Credentials
from kilonova.store import Row

# What the URL of a registered endpoint may contain, written %(project_id)s or $(project_id)s.
SUBSTITUTES = ("project_id", "tenant_id", "user_id")
SUBSTITUTION = re.compile(r"[%$]\((\w+)\)s")


async def catalog_for(ctx: Context, token: Credentials) -> list[Json]:
    """The catalogue of the token. The own services are first.

    If endpoints are added to the project of the token, it has only these and their services.
    """
    services = await ctx.db.fetch("SELECT * FROM catalog_services WHERE enabled ORDER BY type, name, id")
    endpoints = await ctx.db.fetch("SELECT * FROM catalog_endpoints WHERE enabled ORDER BY interface, region_id, id")
    is_added = await added_endpoints(ctx.db, token.project_id) if token.project_id is not None else None
    listed: dict[str, list[Json]] = {}
    for row in (*own_services.endpoints(ctx), *endpoints):
        if (is_added is None or is_added(row)) and (url := _url(row["url"], token)) is not None:
            listed.setdefault(row["service_id"], []).append(_endpoint(row, url))
    return [
        {"id": row["id"], "type": row["type"], "name": row["name"], "endpoints": listed.get(row["id"], [])}
        for row in (*own_services.services(ctx), *services)
        if is_added is None or row["id"] in listed
    ]


def _endpoint(row: Row, url: str) -> Json:
    region = row["region_id"]
    return {"id": row["id"], "interface": row["interface"], "region": region, "region_id": region, "url": url}


def _url(url: str, token: Credentials) -> str | None:
    """The URL with the ids of the token; None if it needs a project and the token has none."""
    values = dict(zip(SUBSTITUTES, (token.project_id, token.project_id, token.user_id), strict=True))
    if any(values.get(name) is None for name in SUBSTITUTION.findall(url)):
        return None
    return SUBSTITUTION.sub(lambda found: values[found[1]] or "", url)


@api.route("GET", "/v3/auth/catalog", policy="identity:get_auth_catalog", query={})
async def own_catalog(ctx: Context) -> Response:
    """Show the catalogue of the own token."""
    if not ctx.token.is_scoped:
        raise Forbidden("An unscoped token has no catalogue.")
    return Response({"catalog": await catalog_for(ctx, ctx.token), "links": {"self": link(ctx, "auth/catalog")}})
