"""Route of service providers: one for routers. Other services, such as VPN, have none."""

from __future__ import annotations

from kilonova.http import Context, Response, multi
from kilonova.network.api import api

PROVIDERS = ({"service_type": "L3_ROUTER_NAT", "name": "kilonova", "default": True},)
_TEXTS = multi({"type": "string"})


@api.route(
    "GET", "/v2.0/service-providers", policy="get_service_provider", query={"service_type": _TEXTS, "name": _TEXTS}
)
async def index(ctx: Context) -> Response:
    """List the providers of network services."""
    shown = [
        provider
        for provider in PROVIDERS
        if all(provider[key] in ctx.query.get(key, (provider[key],)) for key in ("service_type", "name"))
    ]
    return Response({"service_providers": shown})
