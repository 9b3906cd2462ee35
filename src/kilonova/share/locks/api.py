"""Routes of resource locks."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pagination import LIMIT, page_limit
from kilonova.http.parameter_types import BOOLEAN, STRING, UUID, Schema, is_true, request_body
from kilonova.share.access_rules import model as access_rules
from kilonova.share.api import api
from kilonova.share.locks import model
from kilonova.share.locks.model import Lock
from kilonova.share.schemas import DESCRIPTION
from kilonova.share.shares import model as shares
from kilonova.store import Reader
from kilonova.store.conditions import Conditions

LOCKS = "/resource-locks"
LOCK = LOCKS + "/{lock_id}"
LIST = "resource_lock:get_all"
CREATE, UPDATE, DELETE = "resource_lock:create", "resource_lock:update", "resource_lock:delete"
_ACTION: Schema = {"type": "string", "enum": [model.DELETE, model.SHOW]}
_CREATE_BODY = request_body(
    "resource_lock",
    {
        "resource_id": UUID,
        "resource_type": {"type": "string", "enum": [model.SHARE, model.RULE]},
        "resource_action": _ACTION,
        "lock_reason": DESCRIPTION,
    },
    ["resource_id"],
)
_UPDATE_BODY = request_body("resource_lock", {"resource_action": _ACTION, "lock_reason": DESCRIPTION}, minProperties=1)
_FILTERS = {
    "id": "id",
    "resource_id": "resource_id",
    "resource_type": "resource_type",
    "resource_action": "action",
    "user_id": "user_id",
    "lock_context": "context",
    "lock_reason": "reason",
}
_QUERY: dict[str, Schema] = {
    **dict.fromkeys(_FILTERS, STRING),
    "project_id": STRING,
    "all_projects": BOOLEAN,
    "with_count": BOOLEAN,
    "limit": LIMIT,
    "offset": LIMIT,
    "*": multi(STRING),
}
_ONE = ("resource_lock", "resource lock", False)
_TEXT = {"type": "string"}

api.view(
    View(
        "resource lock",
        {
            "id": attribute("id", _TEXT),
            "user_id": attribute("user_id", _TEXT),
            "project_id": attribute("project_id", _TEXT),
            "lock_context": attribute("context", _TEXT),
            "resource_type": attribute("resource_type", _TEXT),
            "resource_id": attribute("resource_id", _TEXT),
            "resource_action": attribute("action", _TEXT),
            "lock_reason": attribute("reason", {"type": ["string", "null"]}),
            "created_at": Field(lambda lock, ctx: clock.iso_micro(lock.created_at), _TEXT),
            "updated_at": Field(lambda lock, ctx: clock.iso_micro(lock.updated_at), _TEXT),
            "links": Field(lambda lock, ctx: ctx.links(f"{LOCKS}/{lock.id}"), {"type": "array"}),
        },
    )
)


@api.route("GET", LOCKS, policy=LIST, query=_QUERY, shows=("resource_locks", "resource lock", True))
async def index(ctx: Context) -> Response:
    """List resource locks."""
    conditions = Conditions()
    if not (is_true(ctx.query_one("all_projects")) and ctx.may(model.GET, {"project_id": None, "user_id": None})):
        conditions.add("project_id = ?", ctx.token.project_id or "")
    elif (project_id := ctx.query_one("project_id")) is not None:
        conditions.add("project_id = ?", project_id)
    for key, column in _FILTERS.items():
        if (value := ctx.query_one(key)) is not None:
            conditions.add(f"{column} = ?", value)
    rows = await ctx.db.fetch(
        f"SELECT * FROM share_locks WHERE {conditions.where()} ORDER BY created_at DESC, id DESC"
        f" LIMIT {page_limit(ctx)} OFFSET {int(ctx.query_one('offset') or 0)}",
        *conditions.arguments,
    )
    body: dict[str, object] = {"resource_locks": await ctx.render_all("resource lock", Lock.decode_all(rows))}
    if is_true(ctx.query_one("with_count")):
        sql = f"SELECT COUNT(*) FROM share_locks WHERE {conditions.where()}"
        body["count"] = int(await ctx.db.fetch_value(sql, *conditions.arguments))
    return Response(body)


@api.route("GET", LOCK, checks=[model.GET], shows=_ONE)
async def show(ctx: Context, lock_id: str) -> Response:
    """Show a resource lock."""
    return Response({"resource_lock": ctx.render("resource lock", await model.find(ctx, ctx.db, lock_id))})


@api.route("POST", LOCKS, checks=[CREATE], body=_CREATE_BODY, shows=_ONE)
async def create(ctx: Context) -> Response:
    """Lock an action on a share or an access rule."""
    body = ctx.body["resource_lock"]
    kind, action = body.get("resource_type", model.SHARE), body.get("resource_action", model.DELETE)
    _check_action(kind, action)
    async with ctx.db.transaction() as tx:
        await _check_resource(ctx, tx, kind, body["resource_id"])
        lock = await model.insert(ctx, tx, kind, body["resource_id"], action, body.get("lock_reason"))
    return Response({"resource_lock": ctx.render("resource lock", lock)})


@api.route("PUT", LOCK, checks=[UPDATE], body=_UPDATE_BODY, shows=_ONE)
async def update(ctx: Context, lock_id: str) -> Response:
    """Change the action or the reason of a resource lock."""
    body = ctx.body["resource_lock"]
    async with ctx.db.transaction() as tx:
        lock = await model.find(ctx, tx, lock_id, rule=UPDATE)
        model.check_owner(ctx, lock)
        action = body.get("resource_action", lock.action)
        _check_action(lock.resource_type, action)
        await tx.execute(
            "UPDATE share_locks SET action = $2, reason = $3, updated_at = $4 WHERE id = $1",
            lock_id,
            action,
            body.get("lock_reason", lock.reason),
            ctx.now,
        )
        lock = await model.find(ctx, tx, lock_id)
    return Response({"resource_lock": ctx.render("resource lock", lock)})


@api.route("DELETE", LOCK, checks=[DELETE], status=204)
async def delete(ctx: Context, lock_id: str) -> None:
    """Delete a resource lock."""
    async with ctx.db.transaction() as tx:
        lock = await model.find(ctx, tx, lock_id, rule=DELETE)
        model.check_owner(ctx, lock)
        await tx.execute("DELETE FROM share_locks WHERE id = $1", lock_id)


def _check_action(resource_type: str, action: str) -> None:
    if resource_type == model.SHARE and action != model.DELETE:
        raise BadRequest(f"resource_action: shares can be locked for the action {model.DELETE} only, not {action}.")


async def _check_resource(ctx: Context, reader: Reader, resource_type: str, resource_id: str) -> None:
    """Lock the share's row, so that the share is not deleted meanwhile. Raises 404 for an unknown resource."""
    share_id = resource_id
    if resource_type == model.RULE:
        rule = await access_rules.get(reader, resource_id)
        if rule is None:
            raise NotFound(f"Access rule {resource_id} could not be found.")
        share_id = rule.share_id
    share = await shares.find(ctx, reader, share_id, lock=True)
    ctx.authorize(CREATE, shares.target(share))
    if share.status in (shares.DELETING, shares.ERROR_DELETING):
        raise BadRequest(f"Invalid share: Share {share.id} is being deleted.")
