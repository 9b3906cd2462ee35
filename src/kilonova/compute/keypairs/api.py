"""Routes of key pairs."""

from __future__ import annotations

import asyncio

from kilonova.compute.api import api
from kilonova.compute.keypairs import keys, model, schemas, views
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import find_source
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, Forbidden, NotFound
from kilonova.http.pagination import marker_not_found, next_link, page_limit

__all__ = ["views"]

INDEX, SHOW = "os_compute_api:os-keypairs:index", "os_compute_api:os-keypairs:show"
CREATE, DELETE = "os_compute_api:os-keypairs:create", "os_compute_api:os-keypairs:delete"
PAGED = api.behaviour("key pair lists come in pages")


@api.route("GET", "/os-keypairs", checks=[INDEX], query=schemas.LIST)
async def index(ctx: Context) -> Response:
    """List a user's key pairs."""
    user_id = _user(ctx, INDEX, ctx.query_one("user_id"))
    marker = ctx.query_one("marker")
    if marker is not None and await model.get(ctx.db, user_id, marker) is None:
        raise marker_not_found(marker)
    limit = page_limit(ctx) if ctx.has_behaviour(PAGED) else None
    found = await model.page(ctx.db, user_id, marker or "", limit)
    shown: dict[str, object] = {"keypairs": [{"keypair": ctx.render("keypair", key)} for key in found]}
    links = next_link(ctx, "/os-keypairs", found[-1].name, len(found) == limit) if found else []
    if links:
        shown["keypairs_links"] = links
    return Response(shown)


@api.route(
    "POST",
    "/os-keypairs",
    checks=[CREATE],
    body=schemas.CREATE,
    query={},
    status=201,
    shows=("keypair", "new keypair", False),
)
async def create(ctx: Context) -> Response:
    """Import a public key, or before 2.92 generate a key pair."""
    body = ctx.body["keypair"]
    user_id = _user(ctx, CREATE, body.get("user_id"))
    kind = body.get("type", "ssh")
    public, private = await _keys(body.get("public_key"), kind, user_id)
    new = model.NewKeyPair(
        user_id=user_id,
        name=body["name"],
        type=kind,
        fingerprint=keys.fingerprint(kind, public),
        public_key=public,
        private_key=private,
    )
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        limits = await quotas.limits(tx, ctx.token.project_id, source, user_id)
        if 0 <= limits["key_pairs"] <= await model.count(tx, user_id):
            raise Forbidden("Quota exceeded, too many key pairs.")
        if not await model.create(tx, new):
            raise Conflict(f"Key pair '{new.name}' already exists.")
    return Response({"keypair": ctx.render("new keypair", new)})


@api.route(
    "GET", "/os-keypairs/{name}", checks=[SHOW], query=schemas.OF_USER, shows=("keypair", "keypair detail", False)
)
async def show(ctx: Context, name: str) -> Response:
    """Show a key pair."""
    user_id = _user(ctx, SHOW, ctx.query_one("user_id"))
    key = await model.get(ctx.db, user_id, name)
    if key is None:
        raise _missing(name, user_id)
    return Response({"keypair": ctx.render("keypair detail", key)})


@api.route("DELETE", "/os-keypairs/{name}", checks=[DELETE], query=schemas.OF_USER, status=204)
async def delete(ctx: Context, name: str) -> None:
    """Delete a key pair; servers keep their copy of the public key."""
    user_id = _user(ctx, DELETE, ctx.query_one("user_id"))
    async with ctx.db.transaction() as tx:
        if not await model.delete(tx, user_id, name):
            raise _missing(name, user_id)


def _user(ctx: Context, rule: str, requested: str | None) -> str:
    """The owner of the key pairs: the requested user, if the rule allows it, or the caller."""
    user_id = requested or ctx.token.user_id
    ctx.authorize(rule, {"user_id": user_id, "project_id": ctx.token.project_id})
    return user_id


async def _keys(public: str | None, kind: str, user_id: str) -> tuple[str, str | None]:
    if public is not None:
        return public, None
    pair = await asyncio.to_thread(keys.generate, kind, user_id)
    return pair.public, pair.private


def _missing(name: str, user_id: str) -> NotFound:
    return NotFound(f"Keypair {name} not found for user {user_id}")
