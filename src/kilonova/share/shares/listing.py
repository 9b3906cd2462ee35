"""Lists of shares: filters, order and pages by offset."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import page_limit
from kilonova.http.parameter_types import is_true
from kilonova.share import types
from kilonova.share.shares import model
from kilonova.share.shares.model import Share
from kilonova.store.conditions import Conditions

_SORT = {
    **{key: key for key in ("id", "name", "size", "status", "project_id", "user_id", "created_at", "updated_at")},
    "availability_zone_id": "zone",
}
_COLUMNS = {"name": "name", "status": "status", "user_id": "user_id", "export_location_path": "export_path"}


def includes_all_projects(ctx: Context, rule: str) -> bool:
    """Whether the query asks for all projects, and the caller may see them. Other callers see their own project."""
    requested = ctx.query_one("all_tenants", "0") or "1"
    return is_true(requested) and ctx.may(rule, {"project_id": None, "user_id": None})


async def page(ctx: Context, view: str) -> Response:
    conditions = _conditions(ctx)
    column, descending = _order(ctx)
    direction = "DESC" if descending else "ASC"
    rows = await ctx.db.fetch(
        f"SELECT * FROM shares WHERE {conditions.where()} ORDER BY {column} {direction}, id {direction}"
        f" LIMIT {page_limit(ctx)} OFFSET {int(ctx.query_one('offset') or 0)}",
        *conditions.arguments,
    )
    body: dict[str, object] = {"shares": await ctx.render_all(view, Share.decode_all(rows))}
    if is_true(ctx.query_one("with_count")):
        sql = f"SELECT COUNT(*) FROM shares WHERE {conditions.where()}"
        body["count"] = int(await ctx.db.fetch_value(sql, *conditions.arguments))
    return Response(body)


def _conditions(ctx: Context) -> Conditions:
    conditions = Conditions()
    if not includes_all_projects(ctx, model.SHOW):
        conditions.add("project_id = ?", ctx.token.project_id or "")
    elif (project_id := ctx.query_one("project_id")) is not None:
        conditions.add("project_id = ?", project_id)
    for key, column in _COLUMNS.items():
        if (value := ctx.query_one(key)) is not None:
            conditions.add(f"{column} = ?", value)
    if (part := ctx.query_one("name~")) is not None:
        escaped = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        conditions.add("name LIKE ? ESCAPE '\\'", f"%{escaped}%")
    if (share_id := ctx.query_one("export_location_id")) is not None:
        conditions.add("id = ? AND export_path IS NOT NULL", share_id)
    # The service has no recycle bin, and all shares have the same protocol and type.
    if is_true(ctx.query_one("is_soft_deleted")):
        conditions.add("FALSE")
    if (ctx.query_one("share_proto") or model.PROTOCOL).upper() != model.PROTOCOL:
        conditions.add("FALSE")
    if ctx.query_one("share_type_id") not in (None, types.DEFAULT_ID):
        conditions.add("FALSE")
    return conditions


def _order(ctx: Context) -> tuple[str, bool]:
    key = ctx.query_one("sort_key") or "created_at"
    if key not in _SORT:
        raise BadRequest(f"Invalid input received: sort_key {key[:80]!r} is none of {', '.join(sorted(_SORT))}.")
    return _SORT[key], (ctx.query_one("sort_dir") or "desc") == "desc"
