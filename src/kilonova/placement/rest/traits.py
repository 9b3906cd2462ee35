"""Traits, standard and custom, and those that a provider has."""

from __future__ import annotations

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.placement import names
from kilonova.placement.api import api, dated
from kilonova.placement.changes import facts_changed
from kilonova.placement.rest.common import (
    GENERATION,
    PROVIDER,
    Schema,
    closed,
    exists,
    find,
    lock,
    lock_at,
)
from kilonova.store import Reader, Row

POLICY, OF_PROVIDER = "placement:traits:", "placement:resource_providers:traits:"
ALL, ONE, PATH = "/traits", "/traits/{name}", f"{PROVIDER}/traits"

TEXT: Schema = {"type": "string"}
REPLACE = closed(
    {
        "traits": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 255}},
        "resource_provider_generation": GENERATION,
    }
)


@api.route("GET", ALL, policy=POLICY + "list", query={"name": TEXT, "associated": TEXT})
async def index(ctx: Context) -> Answer:
    """List traits, by name, or those that some provider has."""
    associated = ctx.query_one("associated")
    if associated is not None and associated.lower() not in ("true", "false"):
        raise BadRequest(f'The query parameter "associated" only accepts "true" or "false". Got: "{associated[:80]}"')
    rows = await ctx.db.fetch("SELECT name, updated_at FROM traits")
    found = set(names.standard_traits()).union(row["name"] for row in rows)
    if associated is not None:
        used = {row["trait"] for row in await ctx.db.fetch("SELECT DISTINCT trait FROM provider_traits")}
        found = found & used if associated.lower() == "true" else found - used
    asked = ctx.query_one("name")
    if asked is not None:
        found = _named(found, asked)
    return dated(ctx, {"traits": sorted(found)})


@api.route("GET", ONE, policy=POLICY + "show", query={"*": {}}, status=204)
async def show(ctx: Context, name: str) -> Answer:
    """Ask whether a trait exists."""
    row = await _row(ctx.db, name)
    if row is None and name not in names.standard_traits():
        raise _missing(name)
    return dated(ctx, None, row["updated_at"] if row else None)


@api.route("PUT", ONE, policy=POLICY + "update", query={"*": {}}, status=204, also=[201])
async def create(ctx: Context, name: str) -> Answer:
    """Have a custom trait."""
    if not names.CUSTOM.fullmatch(name) or len(name) > 255:
        raise BadRequest(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
            '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    async with ctx.db.transaction() as tx:
        made = await tx.execute(names.INSERT.format("traits"), name, ctx.now)
        row = await _row(tx, name)
    headers = {"Location": ctx.url(f"/traits/{name}")}
    return dated(ctx, None, row["updated_at"] if row else None, status=201 if made else 204, headers=headers)


@api.route("DELETE", ONE, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, name: str) -> None:
    """Delete a custom trait that no provider has."""
    try:
        async with ctx.db.transaction() as tx:
            if name in names.standard_traits():
                raise BadRequest(f"Cannot delete standard trait {name}.")
            if not await tx.execute("DELETE FROM traits WHERE name = $1", name):
                raise _missing(name)
    except store.Conflict:
        raise Conflict(f"The trait {name} is in use by a resource provider.") from None


@api.route("GET", PATH, policy=OF_PROVIDER + "list", query={"*": {}})
async def of_provider(ctx: Context, uuid: str) -> Answer:
    """List a provider's traits."""
    provider = await find(ctx.db, uuid)
    return _shown(ctx, provider, [row["trait"] for row in await ctx.db.fetch(_OF, provider["id"])])


@api.route("PUT", PATH, policy=OF_PROVIDER + "update", body=REPLACE, query={"*": {}}, subject=exists)
async def replace(ctx: Context, uuid: str) -> Answer:
    """Replace a provider's traits."""
    wanted = sorted(set(ctx.body["traits"]))
    async with ctx.db.transaction() as tx:
        provider = await lock_at(tx, uuid, ctx.body["resource_provider_generation"])
        unknown = await names.unknown_traits(tx, wanted)
        if unknown:
            raise BadRequest(f"No such trait {', '.join(unknown)}.")
        there = {row["trait"] for row in await tx.fetch(_OF, provider["id"])}
        gone = sorted(there.difference(wanted))
        if gone:
            await tx.execute(_LOSE, provider["id"], gone)
        new = [trait for trait in wanted if trait not in there]
        if new:
            await names.ensure(tx, "traits", new)
            await tx.execute_many(_GAIN, [(provider["id"], trait) for trait in new])
        await facts_changed(tx, [provider["id"]])
        provider = await find(tx, uuid)
    return _shown(ctx, provider, wanted)


@api.route("DELETE", PATH, policy=OF_PROVIDER + "delete", query={"*": {}}, status=204)
async def clear(ctx: Context, uuid: str) -> None:
    """Take all traits from a provider."""
    async with ctx.db.transaction() as tx:
        provider = await lock(tx, uuid)
        await tx.execute("DELETE FROM provider_traits WHERE provider_id = $1", provider["id"])
        await facts_changed(tx, [provider["id"]])


def _named(found: set[str], asked: str) -> set[str]:
    how, colon, what = asked.partition(":")
    if how == "in" and colon:
        return found.intersection(what.split(","))
    if how == "startswith" and colon:
        return {name for name in found if name.startswith(what)}
    raise BadRequest(
        "Badly formatted name parameter. Expected name query string parameter in form: "
        f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{asked[:255]}"'
    )


def _shown(ctx: Context, provider: Row, traits: list[str]) -> Answer:
    shown = {"resource_provider_generation": provider["generation"], "traits": traits}
    return dated(ctx, shown, provider["updated_at"])


async def _row(reader: Reader, name: str) -> Row | None:
    return await reader.fetch_one("SELECT updated_at FROM traits WHERE name = $1", name)


def _missing(name: str) -> NotFound:
    return NotFound(f"No such trait {name[:255]}.")


_OF = "SELECT trait FROM provider_traits WHERE provider_id = $1 ORDER BY trait"
_GAIN = "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)"
_LOSE = "DELETE FROM provider_traits WHERE provider_id = $1 AND trait = ANY($2)"
