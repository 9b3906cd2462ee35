"""Traits, standard and custom, and the traits of a provider."""

from __future__ import annotations

from kilonova import store
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.filter_values import limited
from kilonova.http.schema import Schema
from kilonova.placement import names
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.model import ResourceProvider
from kilonova.placement.rest.lookup import (
    PROVIDER_PATH,
    find_provider,
    lock_provider,
    lock_provider_at,
    require_provider,
)
from kilonova.placement.rest.schemas import GENERATION, strict_object
from kilonova.store import Reader, Row

POLICY, OF_PROVIDER = "placement:traits:", "placement:resource_providers:traits:"
ALL_PATH, ONE_PATH, PROVIDER_TRAITS_PATH = "/traits", "/traits/{name}", f"{PROVIDER_PATH}/traits"

TEXT: Schema = {"type": "string"}
REPLACE = strict_object(
    {
        "traits": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 255}},
        "resource_provider_generation": GENERATION,
    }
)


@api.route("GET", ALL_PATH, policy=POLICY + "list", query={"name": TEXT, "associated": TEXT})
async def index(ctx: Context) -> Response:
    """List traits, optionally filtered by name or by use."""
    associated = ctx.query_one("associated")
    if associated is not None and associated.lower() not in ("true", "false"):
        raise BadRequest(f'The query parameter "associated" only accepts "true" or "false". Got: "{associated[:80]}"')
    rows = await ctx.db.fetch("SELECT name, updated_at FROM traits")
    found = set(names.standard_traits()).union(row["name"] for row in rows)
    if associated is not None:
        used = {row["trait"] for row in await ctx.db.fetch("SELECT DISTINCT trait FROM provider_traits")}
        found = found & used if associated.lower() == "true" else found - used
    name_filter = ctx.query_one("name")
    if name_filter is not None:
        found = _filter_names(found, name_filter)
    return with_last_modified(ctx, {"traits": sorted(found)})


@api.route("GET", ONE_PATH, policy=POLICY + "show", query={"*": {}}, status=204)
async def show(ctx: Context, name: str) -> Response:
    """Check whether a trait exists."""
    row = await _row(ctx.db, name)
    if row is None and name not in names.standard_traits():
        raise _not_found(name)
    return with_last_modified(ctx, None, row["updated_at"] if row else None)


@api.route("PUT", ONE_PATH, policy=POLICY + "update", query={"*": {}}, status=204, other_statuses=[201])
async def create(ctx: Context, name: str) -> Response:
    """Ensure that a custom trait exists."""
    if not names.CUSTOM_NAME.fullmatch(name) or len(name) > 255:
        raise BadRequest(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
            '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    async with ctx.db.transaction() as tx:
        created = await tx.execute(names.INSERT_NAME.format("traits"), name, ctx.now)
        row = await _row(tx, name)
    headers = {"Location": ctx.url(f"/traits/{name}")}
    return with_last_modified(
        ctx, None, row["updated_at"] if row else None, status=201 if created else 204, headers=headers
    )


@api.route("DELETE", ONE_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, name: str) -> None:
    """Delete a custom trait that no provider has."""
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_traits():
                raise BadRequest(f"Cannot delete standard trait {name}.")
            if not await tx.execute("DELETE FROM traits WHERE name = $1", name):
                raise _not_found(name)
    except store.Conflict:
        raise Conflict(f"The trait {name} is in use by a resource provider.") from None


@api.route("GET", PROVIDER_TRAITS_PATH, policy=OF_PROVIDER + "list", query={"*": {}})
async def of_provider(ctx: Context, uuid: str) -> Response:
    """List a provider's traits."""
    provider = await find_provider(ctx.db, uuid)
    return _render(ctx, provider, [row["trait"] for row in await ctx.db.fetch(_TRAITS_OF_PROVIDER, provider.id)])


@api.route(
    "PUT",
    PROVIDER_TRAITS_PATH,
    policy=OF_PROVIDER + "update",
    body=REPLACE,
    query={"*": {}},
    check_exists=require_provider,
)
async def replace(ctx: Context, uuid: str) -> Response:
    """Replace a provider's traits."""
    wanted = sorted(set(ctx.body["traits"]))
    async with ctx.db.transaction() as tx:
        provider = await lock_provider_at(tx, uuid, ctx.body["resource_provider_generation"])
        unknown = await names.unknown_traits(tx, wanted)
        if unknown:
            raise BadRequest(f"No such trait {', '.join(unknown)}.")
        existing = {row["trait"] for row in await tx.fetch(_TRAITS_OF_PROVIDER, provider.id)}
        removed = sorted(existing.difference(wanted))
        if removed:
            await tx.execute(_REMOVE, provider.id, removed)
        new = [trait for trait in wanted if trait not in existing]
        if new:
            await names.ensure_rows(tx, "traits", new)
            await tx.execute_many(_ADD, [(provider.id, trait) for trait in new])
        await mark_facts_changed(tx, [provider.id])
        provider = await find_provider(tx, uuid)
    return _render(ctx, provider, wanted)


@api.route("DELETE", PROVIDER_TRAITS_PATH, policy=OF_PROVIDER + "delete", query={"*": {}}, status=204)
async def clear(ctx: Context, uuid: str) -> None:
    """Remove all traits from a provider."""
    async with ctx.db.transaction() as tx:
        provider = await lock_provider(tx, uuid)
        await tx.execute("DELETE FROM provider_traits WHERE provider_id = $1", provider.id)
        await mark_facts_changed(tx, [provider.id])


def _filter_names(found: set[str], name_filter: str) -> set[str]:
    operator, colon, value = name_filter.partition(":")
    if operator == "in" and colon:
        return found.intersection(limited("name", value.split(",")))
    if operator == "startswith" and colon:
        return {name for name in found if name.startswith(value)}
    raise BadRequest(
        "Badly formatted name parameter. Expected name query string parameter in form: "
        f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{name_filter[:255]}"'
    )


def _render(ctx: Context, provider: ResourceProvider, traits: list[str]) -> Response:
    shown = {"resource_provider_generation": provider.generation, "traits": traits}
    return with_last_modified(ctx, shown, provider.updated_at)


async def _row(reader: Reader, name: str) -> Row | None:
    return await reader.fetch_one("SELECT updated_at FROM traits WHERE name = $1", name)


def _not_found(name: str) -> NotFound:
    return NotFound(f"No such trait {name[:255]}.")


_TRAITS_OF_PROVIDER = "SELECT trait FROM provider_traits WHERE provider_id = $1 ORDER BY trait"
_ADD = "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)"
_REMOVE = "DELETE FROM provider_traits WHERE provider_id = $1 AND trait = ANY($2)"
