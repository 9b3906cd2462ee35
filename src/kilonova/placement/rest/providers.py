"""Resource providers and their trees."""

from __future__ import annotations

from msgspec import Struct

from kilonova import store
from kilonova.http import Context, Field, Response, View, attribute, multi
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.schema import Schema
from kilonova.ids import new_id
from kilonova.placement import errors
from kilonova.placement.api import api, link_path, with_last_modified
from kilonova.placement.candidates.provider_filter import build_provider_filter
from kilonova.placement.changes import NEXT_CHANGE, delete_providers, mark_facts_changed
from kilonova.placement.model import ResourceProvider
from kilonova.placement.providers import TREE_LOCK
from kilonova.placement.rest.lookup import PROVIDER_PATH, find_provider, lock_provider, normalize_uuid
from kilonova.placement.rest.schemas import UUID, strict_object
from kilonova.store import Reader, Transaction

POLICY = "placement:resource_providers:"
RETURNS_PROVIDER = api.behaviour("the response to a create request shows the provider")
REPARENTING = api.behaviour("providers can get another parent")

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
PARENT: Schema = {"anyOf": [UUID, {"type": "null"}]}
CREATE = strict_object({"name": NAME, "uuid": UUID, "parent_provider_uuid": PARENT}, ["name"])
UPDATE = strict_object({"name": NAME, "parent_provider_uuid": PARENT}, ["name"])
LIST: dict[str, Schema] = {
    "name": TEXT,
    "uuid": UUID,
    "member_of": multi(TEXT),
    "resources": TEXT,
    "in_tree": UUID,
    "required": multi(TEXT),
}


class ShownProvider(Struct, frozen=True):
    uuid: str
    name: str
    generation: int
    updated_at: float
    parent_uuid: str | None
    root_uuid: str


def _link(*below: str) -> Field:
    return Field(lambda provider, ctx: link_path(ctx, "resource_providers", provider.uuid, *below), TEXT)


def _links(provider: ShownProvider, ctx: Context) -> list[dict[str, object]]:
    return [{"rel": rel, "href": href} for rel, href in ctx.render("provider links", provider).items()]


api.view(
    View(
        "provider links",
        {
            "self": _link(),
            "inventories": _link("inventories"),
            "usages": _link("usages"),
            "aggregates": _link("aggregates"),
            "traits": _link("traits"),
            "allocations": _link("allocations"),
        },
    )
)
api.view(
    View(
        "provider",
        {
            "uuid": attribute("uuid", TEXT),
            "name": attribute("name", TEXT),
            "generation": attribute("generation", {"type": "integer"}),
            "parent_provider_uuid": attribute("parent_uuid", {"type": ["string", "null"]}),
            "root_provider_uuid": attribute("root_uuid", TEXT),
            "links": Field(_links, {"type": "array"}),
        },
    )
)


@api.route(
    "GET", "/resource_providers", policy=POLICY + "list", query=LIST, shows=("resource_providers", "provider", True)
)
async def index(ctx: Context) -> Response:
    """List resource providers, optionally filtered."""
    where, arguments = await build_provider_filter(ctx)
    rows = await ctx.db.fetch(f"{_SHOWN} WHERE {where} ORDER BY p.id", *arguments)
    found = [ShownProvider(**row) for row in rows]
    shown = await ctx.render_all("provider", found)
    changed_at = max((provider.updated_at for provider in found), default=None)
    return with_last_modified(ctx, {"resource_providers": shown}, changed_at)


@api.route("POST", "/resource_providers", policy=POLICY + "create", body=CREATE, query={"*": {}})
async def create(ctx: Context) -> Response:
    """Create a resource provider: a root, or a child of a parent."""
    uuid = normalize_uuid(ctx.body["uuid"]) if "uuid" in ctx.body else new_id()
    name, parent = ctx.body["name"], ctx.body.get("parent_provider_uuid")
    if parent is not None and normalize_uuid(parent) == uuid:
        raise _action_failed("create", name, uuid, "parent provider UUID cannot be same as UUID.")
    async with ctx.db.transaction() as tx:
        parent_ids = await _lock_parent(tx, "create", name, uuid, parent) if parent is not None else None
        if not await tx.execute(_INSERT, uuid, name, *(parent_ids or (None, None)), ctx.now):
            raise await _duplicate(tx, uuid, name)
        if parent_ids is None:
            await tx.execute("UPDATE resource_providers SET root_id = id WHERE uuid = $1", uuid)
        else:
            await mark_facts_changed(tx, [parent_ids[1]], generation=False)
        provider = await find_shown(tx, uuid)
    headers = {"Location": ctx.url(f"/resource_providers/{uuid}")}
    if not ctx.has_behaviour(RETURNS_PROVIDER):
        return Response(headers=headers)
    return with_last_modified(ctx, ctx.render("provider", provider), provider.updated_at, headers=headers)


@api.route("GET", PROVIDER_PATH, policy=POLICY + "show", query={"*": {}}, shows=("", "provider", False))
async def show(ctx: Context, uuid: str) -> Response:
    """Show a resource provider."""
    provider = await find_shown(ctx.db, uuid)
    return with_last_modified(ctx, ctx.render("provider", provider), provider.updated_at)


@api.route("PUT", PROVIDER_PATH, policy=POLICY + "update", body=UPDATE, query={"*": {}}, shows=("", "provider", False))
async def update(ctx: Context, uuid: str) -> Response:
    """Rename a resource provider, or change its parent."""
    name = ctx.body["name"]
    try:
        async with ctx.db.transaction() as tx:
            provider = await find_provider(tx, uuid)
            if "parent_provider_uuid" in ctx.body:
                await _change_parent(ctx, tx, provider.uuid, name, ctx.body["parent_provider_uuid"])
            else:
                await lock_provider(tx, provider.uuid)
            await tx.execute("UPDATE resource_providers SET name = $2 WHERE id = $1", provider.id, name)
            await mark_facts_changed(tx, [provider.id], generation=False)
            changed = await find_shown(tx, uuid)
    except store.Conflict:
        raise _name_taken(name) from None
    return with_last_modified(ctx, ctx.render("provider", changed), changed.updated_at)


@api.route("DELETE", PROVIDER_PATH, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, uuid: str) -> None:
    """Delete a resource provider without allocations and children."""
    try:
        async with ctx.db.transaction() as tx:
            await tx.lock(TREE_LOCK)
            provider = await find_provider(tx, uuid, " for delete")
            await _lock(tx, provider.id, provider.root)
            provider = await find_provider(tx, uuid, " for delete")
            if await tx.fetch_value("SELECT 1 FROM resource_providers WHERE parent_id = $1", provider.id):
                raise _has_children(provider.uuid)
            if await tx.fetch_value("SELECT 1 FROM allocations WHERE provider_id = $1 LIMIT 1", provider.id):
                raise Conflict(
                    f"Unable to delete resource provider {provider.uuid}: Resource provider has allocations.",
                    code=errors.PROVIDER_IN_USE,
                )
            await delete_providers(tx, [provider.id])
            if provider.root != provider.id:
                await mark_facts_changed(tx, [provider.root], generation=False)
    except store.Conflict:
        # Another request added a child at the same time.
        raise _has_children(uuid) from None


async def find_shown(reader: Reader, uuid: str) -> ShownProvider:
    """The provider for the view. Raises NotFound."""
    row = await reader.fetch_one(f"{_SHOWN} WHERE p.uuid = $1", normalize_uuid(uuid))
    if row is None:
        raise errors.provider_not_found(uuid)
    return ShownProvider(**row)


# Trees


async def _lock_parent(tx: Transaction, verb: str, name: str, uuid: str, parent: str) -> tuple[int, int]:
    """Lock a parent and return its id and its root's id."""
    await tx.lock(TREE_LOCK)
    found = await _find_parent(tx, parent)
    if found is None or found.id not in await _lock(tx, found.id, found.root):
        raise _action_failed(verb, name, uuid, "parent provider UUID does not exist.")
    return found.id, found.root


async def _find_parent(tx: Transaction, parent: str) -> ResourceProvider | None:
    row = await tx.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1", normalize_uuid(parent))
    return ResourceProvider.decode_optional(row)


async def _lock(tx: Transaction, *ids: int) -> set[int]:
    """Lock the providers and return the ids of those that exist."""
    return {row["id"] for row in await tx.fetch(_LOCK, sorted(set(ids)))}


async def _change_parent(ctx: Context, tx: Transaction, uuid: str, name: str, parent: str | None) -> None:
    """Move a provider with its descendants below another parent, or make it a root."""
    await tx.lock(TREE_LOCK)
    provider = await find_provider(tx, uuid)
    below = [row["id"] for row in await tx.fetch(_SUBTREE, provider.id)]
    new_parent = None if parent is None else await _find_parent(tx, parent)
    if parent is not None and new_parent is None:
        raise _action_failed("save", name, uuid, "parent provider UUID does not exist.")
    parent_id = new_parent.id if new_parent else None
    if provider.parent_id is not None and parent_id != provider.parent_id and not ctx.has_behaviour(REPARENTING):
        kind = "re-parenting" if new_parent else "un-parenting"
        raise _action_failed("save", name, uuid, f"{kind} a provider is not currently allowed.")
    if parent_id in below:
        raise _action_failed("save", name, uuid, "creating loop in the provider tree is not allowed.")
    root_id = new_parent.root if new_parent else provider.id
    locked = await _lock(tx, *below, root_id, provider.root, *([parent_id] if parent_id else []))
    if provider.id not in locked:
        raise errors.provider_not_found(uuid)
    if parent_id is not None and parent_id not in locked:
        raise _action_failed("save", name, uuid, "parent provider UUID does not exist.")
    if parent_id == provider.parent_id:
        return
    await tx.execute("UPDATE resource_providers SET parent_id = $2 WHERE id = $1", provider.id, parent_id)
    await tx.execute("UPDATE resource_providers SET root_id = $2 WHERE id = ANY($1)", below, root_id)
    await mark_facts_changed(tx, sorted({*below, root_id, provider.root}), generation=False)


# Errors


def _action_failed(verb: str, name: str, uuid: str, why: str) -> BadRequest:
    return BadRequest(
        f'Unable to {verb} resource provider "{name}", {uuid}: Object action {verb} failed because: {why}'
    )


async def _duplicate(reader: Reader, uuid: str, name: str) -> Conflict:
    if await reader.fetch_value("SELECT 1 FROM resource_providers WHERE uuid = $1", uuid):
        return Conflict(f"Conflicting resource provider uuid: {uuid} already exists.", code=errors.DUPLICATE_NAME)
    return _name_taken(name)


def _name_taken(name: str) -> Conflict:
    return Conflict(f"Conflicting resource provider name: {name} already exists.", code=errors.DUPLICATE_NAME)


def _has_children(uuid: str) -> Conflict:
    return Conflict(
        f"Unable to delete parent resource provider {uuid}: It has child resource providers.",
        code=errors.PROVIDER_IS_PARENT,
    )


_SHOWN = """
SELECT p.uuid, p.name, p.generation, p.updated_at, parent.uuid AS parent_uuid, root.uuid AS root_uuid
FROM resource_providers p JOIN resource_providers root ON root.id = p.root_id
LEFT JOIN resource_providers parent ON parent.id = p.parent_id
"""
_INSERT = f"""
INSERT INTO resource_providers
    (uuid, name, parent_id, root_id, generation, change, facts, created_at, updated_at, reported)
VALUES ($1, $2, $3, $4, 0, {NEXT_CHANGE}, {NEXT_CHANGE}, $5, $5, FALSE) ON CONFLICT DO NOTHING
"""
_LOCK = "SELECT id FROM resource_providers WHERE id = ANY($1) ORDER BY id FOR UPDATE"
_SUBTREE = """
WITH RECURSIVE below (id) AS (
    SELECT CAST($1 AS BIGINT)
    UNION SELECT p.id FROM resource_providers p JOIN below ON p.parent_id = below.id
)
SELECT id FROM below ORDER BY id
"""
