"""Routes of what this identity service does not support: federation, and settings of domains."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound, NotSupported
from kilonova.identity.api import api, list_links
from kilonova.identity.resources import get, not_found

_FEDERATION = "OS-FEDERATION"


def _declare_federation(plural: str, noun: str) -> None:
    """Lists are empty, and creation is refused."""
    path = f"{_FEDERATION}/{plural}"

    async def index(ctx: Context) -> Response:
        return Response({plural: [], "links": list_links(ctx, path)})

    async def refuse_unknown(ctx: Context, item_id: str) -> Response:
        raise not_found(noun, item_id)

    async def refuse(ctx: Context, item_id: str) -> Response:
        raise NotSupported("Federation is not supported by this identity service.")

    index.__doc__ = f"List {noun}s: there are none."
    refuse_unknown.__doc__ = f"Answer that there is no such {noun}."
    refuse.__doc__ = f"Refuse to create a {noun}."
    rule = plural.removesuffix("s")
    api.route("GET", f"/v3/{path}", policy=f"identity:list_{plural}")(index)
    api.route("PUT", f"/v3/{path}/{{item_id}}", policy=f"identity:create_{rule}")(refuse)
    for method, verb in (("GET", "get"), ("PATCH", "update"), ("DELETE", "delete")):
        api.route(method, f"/v3/{path}/{{item_id}}", policy=f"identity:{verb}_{rule}")(refuse_unknown)


_declare_federation("identity_providers", "identity provider")
_declare_federation("mappings", "mapping")
_declare_federation("service_providers", "service provider")

_CONFIG = "/v3/domains/{domain_id}/config"


async def refuse_config(ctx: Context, domain_id: str) -> Response:
    """Answer that the domain has no settings of its own."""
    await get(ctx.db, "domains", domain_id)
    raise NotFound(f"Could not find domain configuration for domain {domain_id}.")


async def refuse_new_config(ctx: Context, domain_id: str) -> Response:
    """Refuse settings of a domain."""
    await get(ctx.db, "domains", domain_id)
    raise NotSupported("Domains have no settings of their own in this identity service.")


for _method, _verb in (("GET", "get"), ("DELETE", "delete")):
    api.route(_method, _CONFIG, policy=f"identity:{_verb}_domain_config")(refuse_config)
for _method, _verb in (("PUT", "create"), ("PATCH", "update")):
    api.route(_method, _CONFIG, policy=f"identity:{_verb}_domain_config")(refuse_new_config)
