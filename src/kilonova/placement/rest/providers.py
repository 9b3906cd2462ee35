"""Resource providers, and the trees they stand in."""

from __future__ import annotations

from kilonova import store
from kilonova.http import Answer, Context, Field, View, col, multi
from kilonova.http.errors import BadRequest, Conflict
from kilonova.ids import new_id
from kilonova.placement import errors
from kilonova.placement.api import api, dated, path
from kilonova.placement.candidates.listing import provider_filter
from kilonova.placement.changes import NEXT, delete_providers, facts_changed
from kilonova.placement.providers import TREES
from kilonova.placement.rest.common import PROVIDER, UUID, Schema, canonical, closed, find, lock
from kilonova.store import Reader, Row, Transaction

POLICY = "placement:resource_providers:"
SHOWN = "the answer to a new provider shows it"
MOVABLE = "providers move in their tree"

TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "maxLength": 200}
PARENT: Schema = {"anyOf": [UUID, {"type": "null"}]}
CREATE = closed({"name": NAME, "uuid": UUID, "parent_provider_uuid": PARENT}, ["name"])
UPDATE = closed({"name": NAME, "parent_provider_uuid": PARENT}, ["name"])
LIST: dict[str, Schema] = {
    "name": TEXT,
    "uuid": UUID,
    "member_of": multi(TEXT),
    "resources": TEXT,
    "in_tree": UUID,
    "required": multi(TEXT),
}


def _link(*below: str) -> Field:
    return Field(lambda row, ctx: path(ctx, "resource_providers", row["uuid"], *below), TEXT)


def _links(row: Row, ctx: Context) -> list[dict[str, str]]:
    return [{"rel": rel, "href": href} for rel, href in ctx.render("provider links", row).items()]


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
            "uuid": col("uuid", TEXT),
            "name": col("name", TEXT),
            "generation": col("generation", {"type": "integer"}),
            "parent_provider_uuid": col("parent_uuid", {"type": ["string", "null"]}),
            "root_provider_uuid": col("root_uuid", TEXT),
            "links": Field(_links, {"type": "array"}),
        },
    )
)


@api.route(
    "GET",
    "/resource_providers",
    policy=POLICY + "list",
    query=LIST,
    shows=("resource_providers", "provider", True),
)
async def index(ctx: Context) -> Answer:
    """List resource providers, all or those that fit."""
    where, arguments = await provider_filter(ctx)
    rows = await ctx.db.fetch(f"{_SHOWN} WHERE {where} ORDER BY p.id", *arguments)
    shown = [ctx.render("provider", row) for row in rows]
    return dated(ctx, {"resource_providers": shown}, max((row["updated_at"] for row in rows), default=None))


@api.route("POST", "/resource_providers", policy=POLICY + "create", body=CREATE, query={"*": {}})
async def create(ctx: Context) -> Answer:
    """Create a resource provider, a root or below a parent."""
    uuid = canonical(ctx.body["uuid"]) if "uuid" in ctx.body else new_id()
    name, parent = ctx.body["name"], ctx.body.get("parent_provider_uuid")
    if parent is not None and canonical(parent) == uuid:
        raise _cannot("create", name, uuid, "parent provider UUID cannot be same as UUID.")
    async with ctx.db.transaction() as tx:
        above = await _parent(tx, "create", name, uuid, parent) if parent is not None else None
        if not await tx.execute(_INSERT, uuid, name, *(above or (None, None)), ctx.now):
            raise await _duplicate(tx, uuid, name)
        if above is None:
            await tx.execute("UPDATE resource_providers SET root_id = id WHERE uuid = $1", uuid)
        else:
            await facts_changed(tx, [above[1]], generation=False)
        row = await shown(tx, uuid)
    headers = {"Location": ctx.url(f"/resource_providers/{uuid}")}
    if not ctx.behaves(SHOWN):
        return Answer(headers=headers)
    return dated(ctx, ctx.render("provider", row), row["updated_at"], headers=headers)


@api.route("GET", PROVIDER, policy=POLICY + "show", query={"*": {}}, shows=("", "provider", False))
async def show(ctx: Context, uuid: str) -> Answer:
    """Show a resource provider."""
    row = await shown(ctx.db, uuid)
    return dated(ctx, ctx.render("provider", row), row["updated_at"])


@api.route("PUT", PROVIDER, policy=POLICY + "update", body=UPDATE, query={"*": {}}, shows=("", "provider", False))
async def update(ctx: Context, uuid: str) -> Answer:
    """Rename a resource provider, or put it below another parent."""
    name = ctx.body["name"]
    try:
        async with ctx.db.transaction() as tx:
            row = await find(tx, uuid)
            if "parent_provider_uuid" in ctx.body:
                await _move(ctx, tx, row, name, ctx.body["parent_provider_uuid"])
            else:
                await lock(tx, row["uuid"])
            await tx.execute("UPDATE resource_providers SET name = $2 WHERE id = $1", row["id"], name)
            await facts_changed(tx, [row["id"]], generation=False)
            changed = await shown(tx, uuid)
    except store.Conflict:
        raise _name_taken(name) from None
    return dated(ctx, ctx.render("provider", changed), changed["updated_at"])


@api.route("DELETE", PROVIDER, policy=POLICY + "delete", query={"*": {}}, status=204)
async def delete(ctx: Context, uuid: str) -> None:
    """Delete a resource provider that nobody uses and that has nothing below it."""
    try:
        async with ctx.db.transaction() as tx:
            await tx.hold(TREES)
            row = await find(tx, uuid, " for delete")
            await _lock(tx, row["id"], row["root_id"])
            row = await find(tx, uuid, " for delete")
            if await tx.fetch_value("SELECT 1 FROM resource_providers WHERE parent_id = $1", row["id"]):
                raise _is_parent(row["uuid"])
            if await tx.fetch_value("SELECT 1 FROM allocations WHERE provider_id = $1 LIMIT 1", row["id"]):
                raise Conflict(
                    f"Unable to delete resource provider {row['uuid']}: Resource provider has allocations.",
                    code=errors.PROVIDER_IN_USE,
                )
            await delete_providers(tx, [row["id"]])
            if row["root_id"] != row["id"]:
                await facts_changed(tx, [row["root_id"]], generation=False)
    except store.Conflict:
        # A child was put below it in this very moment.
        raise _is_parent(uuid) from None


async def shown(reader: Reader, uuid: str) -> Row:
    """The row that the view shows."""
    row = await reader.fetch_one(f"{_SHOWN} WHERE p.uuid = $1", canonical(uuid))
    if row is None:
        raise errors.no_provider(uuid)
    return row


# Trees


async def _parent(tx: Transaction, verb: str, name: str, uuid: str, parent: str) -> tuple[int, int]:
    """Id and root of a parent, which stay so until the end of the transaction."""
    await tx.hold(TREES)
    row = await tx.fetch_one("SELECT id, root_id FROM resource_providers WHERE uuid = $1", canonical(parent))
    if row is None or row["id"] not in await _lock(tx, row["id"], row["root_id"]):
        raise _cannot(verb, name, uuid, "parent provider UUID does not exist.")
    return row["id"], row["root_id"]


async def _lock(tx: Transaction, *ids: int) -> set[int]:
    """Those of the providers that are still there, and now stay."""
    return {row["id"] for row in await tx.fetch(_LOCK, sorted(set(ids)))}


async def _move(ctx: Context, tx: Transaction, row: Row, name: str, parent: str | None) -> None:
    """Put a provider, with all that is below it, below another one or make it a root."""
    await tx.hold(TREES)
    uuid = row["uuid"]
    row = await find(tx, uuid)
    below = [found["id"] for found in await tx.fetch(_SUBTREE, row["id"])]
    above: Row | None = None
    if parent is not None:
        above = await tx.fetch_one("SELECT id, root_id FROM resource_providers WHERE uuid = $1", canonical(parent))
        if above is None:
            raise _cannot("save", name, uuid, "parent provider UUID does not exist.")
    parent_id = above["id"] if above else None
    if row["parent_id"] is not None and parent_id != row["parent_id"] and not ctx.behaves(MOVABLE):
        kind = "re-parenting" if above else "un-parenting"
        raise _cannot("save", name, uuid, f"{kind} a provider is not currently allowed.")
    if parent_id in below:
        raise _cannot("save", name, uuid, "creating loop in the provider tree is not allowed.")
    root_id = above["root_id"] if above else row["id"]
    locked = await _lock(tx, *below, root_id, row["root_id"], *([parent_id] if parent_id else []))
    if row["id"] not in locked:
        raise errors.no_provider(uuid)
    if parent_id is not None and parent_id not in locked:
        raise _cannot("save", name, uuid, "parent provider UUID does not exist.")
    if parent_id == row["parent_id"]:
        return
    await tx.execute("UPDATE resource_providers SET parent_id = $2 WHERE id = $1", row["id"], parent_id)
    await tx.execute("UPDATE resource_providers SET root_id = $2 WHERE id = ANY($1)", below, root_id)
    await facts_changed(tx, sorted({*below, root_id, row["root_id"]}), generation=False)


# Errors


def _cannot(verb: str, name: str, uuid: str, why: str) -> BadRequest:
    return BadRequest(
        f'Unable to {verb} resource provider "{name}", {uuid}: Object action {verb} failed because: {why}'
    )


async def _duplicate(reader: Reader, uuid: str, name: str) -> Conflict:
    if await reader.fetch_value("SELECT 1 FROM resource_providers WHERE uuid = $1", uuid):
        return Conflict(f"Conflicting resource provider uuid: {uuid} already exists.", code=errors.DUPLICATE_NAME)
    return _name_taken(name)


def _name_taken(name: str) -> Conflict:
    return Conflict(f"Conflicting resource provider name: {name} already exists.", code=errors.DUPLICATE_NAME)


def _is_parent(uuid: str) -> Conflict:
    return Conflict(
        f"Unable to delete parent resource provider {uuid}: It has child resource providers.",
        code=errors.PROVIDER_IS_PARENT,
    )


_SHOWN = """
SELECT p.id, p.uuid, p.name, p.generation, p.updated_at, parent.uuid AS parent_uuid, root.uuid AS root_uuid
FROM resource_providers p JOIN resource_providers root ON root.id = p.root_id
LEFT JOIN resource_providers parent ON parent.id = p.parent_id
"""
_INSERT = f"""
INSERT INTO resource_providers
    (uuid, name, parent_id, root_id, generation, change, facts, created_at, updated_at, reported)
VALUES ($1, $2, $3, $4, 0, {NEXT}, {NEXT}, $5, $5, FALSE) ON CONFLICT DO NOTHING
"""
_LOCK = "SELECT id FROM resource_providers WHERE id = ANY($1) ORDER BY id FOR UPDATE"
_SUBTREE = """
WITH RECURSIVE below (id) AS (
    SELECT CAST($1 AS BIGINT)
    UNION SELECT p.id FROM resource_providers p JOIN below ON p.parent_id = below.id
)
SELECT id FROM below ORDER BY id
"""
