"""Lists of images: visibility, filters, sorting and pages."""

from __future__ import annotations

import csv
from urllib.parse import urlencode

from kilonova import clock
from kilonova.http import Context, multi
from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.http.schema import Schema
from kilonova.image.authorization import sees_all
from kilonova.image.images.model import Image
from kilonova.image.images.schemas import MEMBER_STATUSES, VISIBILITIES
from kilonova.store import Row
from kilonova.store.conditions import Conditions
from kilonova.store.paging import Page, SortKey

DEFAULT_LIMIT = 25
MAX_LIMIT = 1000

_TEXTS = {
    "id": "r.id",
    "name": "r.name",
    "status": "r.status",
    "owner": "r.owner",
    "disk_format": "r.disk_format",
    "container_format": "r.container_format",
    "checksum": "r.checksum",
    "os_hash_algo": "r.hash_algo",
    "os_hash_value": "r.hash_value",
}
# Filters that accept several values: `in:a,b`.
_LISTS = ("id", "name", "status", "disk_format", "container_format")
_NUMBERS = {
    "size_min": "r.size >= ?",
    "size_max": "r.size <= ?",
    "size": "r.size = ?",
    "min_disk": "r.min_disk = ?",
    "min_ram": "r.min_ram = ?",
}
_BOOLEANS = {"protected": "r.protected", "os_hidden": "r.hidden"}
_TIMES = {"created_at": "r.created_at", "updated_at": "r.updated_at"}
_COMPARISONS = {"eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SORTABLE = {
    **{name: SortKey(column) for name, column in _TEXTS.items()},
    "id": SortKey("r.id", nullable=False),
    "status": SortKey("r.status", nullable=False),
    "size": SortKey("r.size"),
    "min_disk": SortKey("r.min_disk", nullable=False),
    "min_ram": SortKey("r.min_ram", nullable=False),
    "visibility": SortKey("r.visibility", nullable=False),
    "protected": SortKey("r.protected", nullable=False),
    "created_at": SortKey("r.created_at", nullable=False),
    "updated_at": SortKey("r.updated_at", nullable=False),
}
_NOT_FILTERS = ("limit", "marker", "sort", "sort_key", "sort_dir", "visibility", "member_status")

_ANY = multi({"type": "string", "maxLength": 1024})
LIST_QUERY: dict[str, Schema] = {
    "limit": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    "marker": {"type": "string"},
    "sort": {"type": "string"},
    "sort_key": _ANY,
    "sort_dir": multi({"enum": ["asc", "desc"]}),
    "visibility": {"enum": [*VISIBILITIES, "all"]},
    "member_status": {"enum": [*MEMBER_STATUSES, "all"]},
    "*": _ANY,
}


async def find_images(ctx: Context) -> list[Image]:
    conditions = Conditions()
    _filter_visible(ctx, conditions)
    for name in limited("filters", [name for name in ctx.query if name not in _NOT_FILTERS]):
        _filter(conditions, name, ctx.query[name])
    if "os_hidden" not in ctx.query:
        conditions.add("NOT r.hidden")
    first = len(conditions.arguments) + 1
    page = Page(_order(ctx), marker=await _marker(ctx), limit=limit(ctx), first_argument=first, ident="r.id")
    sql = f"SELECT r.* FROM images r WHERE {conditions.where()} AND {page.where} {page.order}"
    return Image.decode_all(await ctx.db.fetch(sql, *conditions.arguments, *page.arguments))


def limit(ctx: Context) -> int:
    return min(int(ctx.query_one("limit") or DEFAULT_LIMIT), MAX_LIMIT)


def links(ctx: Context, found: list[Image]) -> dict[str, str]:
    """Links to the first page, and to the next one if there may be more images."""
    pairs = [(name, value) for name, values in ctx.query.items() for value in values if name != "marker"]
    pages = {"first": _link(pairs)}
    if found and len(found) == limit(ctx):
        pages["next"] = _link([*pairs, ("marker", found[-1].id)])
    return pages


def _link(pairs: list[tuple[str, str]]) -> str:
    return "/v2/images" + (f"?{urlencode(pairs)}" if pairs else "")


def _filter_visible(ctx: Context, conditions: Conditions) -> None:
    """Restrict the list to visible images; community images of others only if the query requests them."""
    visibility = ctx.query_one("visibility")
    mine = ctx.token.project_id
    if visibility in VISIBILITIES:
        conditions.add("r.visibility = ?", visibility)
    elif visibility is None:
        conditions.add("(r.visibility <> 'community' OR r.owner = ?)", mine)
    if sees_all(ctx):
        return
    shared = "SELECT 1 FROM image_members m WHERE m.image_id = r.id AND m.member_id = ?"
    values: list[object] = [mine, mine]
    member_status = ctx.query_one("member_status", "accepted")
    if member_status != "all":
        shared += " AND m.status = ?"
        values.append(member_status)
    conditions.add(
        f"(r.owner = ? OR r.visibility IN ('public', 'community') OR (r.visibility = 'shared' AND EXISTS ({shared})))",
        *values,
    )


def _filter(conditions: Conditions, name: str, values: list[str]) -> None:
    value = values[-1]
    if name in _LISTS and value.startswith("in:"):
        conditions.add(f"{_TEXTS[name]} = ANY(?)", limited(name, _split(value[3:])))
    elif name in _TEXTS:
        conditions.add(f"{_TEXTS[name]} = ?", value)
    elif name in _NUMBERS:
        conditions.add(_NUMBERS[name], _number(name, value))
    elif name in _BOOLEANS:
        conditions.add(_BOOLEANS[name] if _boolean(name, value) else f"NOT {_BOOLEANS[name]}")
    elif name in _TIMES:
        for one in limited(name, values):
            _compare_time(conditions, name, one)
    elif name == "tag":
        for tag in limited(name, values):
            conditions.add("EXISTS (SELECT 1 FROM image_tags t WHERE t.image_id = r.id AND t.tag = ?)", tag)
    else:
        conditions.add(
            "EXISTS (SELECT 1 FROM image_properties p WHERE p.image_id = r.id AND p.name = ? AND p.value = ?)",
            name,
            value,
        )


def _split(text: str) -> list[str]:
    """Split at commas, except in double quotes."""
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error:
        raise BadRequest(f"Invalid filter value in:{text[:80]}: the quotes are not closed.") from None


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20) or int(value) >= 2**63:
        raise BadRequest(f"Invalid value {value[:40]!r} for {name}: a non-negative integer is expected.")
    return int(value)


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadRequest(f"Invalid value {value[:40]!r} for {name}: true or false is expected.")
    return value.lower() == "true"


def _compare_time(conditions: Conditions, name: str, value: str) -> None:
    operator, colon, text = value.partition(":")
    if not colon or operator not in _COMPARISONS:
        operator, text = "eq", value
    try:
        moment = clock.parse(text)
    except (ValueError, OverflowError):
        raise BadRequest(f"Invalid time {value[:80]!r} for {name}: ISO 8601, perhaps after gt: or lte:.") from None
    # The API shows whole seconds, so comparisons use whole seconds too.
    conditions.add(f"floor({_TIMES[name]}) {_COMPARISONS[operator]} ?", moment)


def _order(ctx: Context) -> list[SortKey]:
    pairs = _sort_key_order(ctx) if "sort" not in ctx.query else _sort_order(ctx)
    order = []
    for key, direction in pairs:
        if key not in _SORTABLE:
            raise BadRequest(f"Invalid sort key {key[:80]!r}; it must be one of {', '.join(_SORTABLE)}.")
        order.append(_SORTABLE[key]._replace(descending=direction == "desc"))
    return order


def _sort_key_order(ctx: Context) -> list[tuple[str, str]]:
    keys, directions = ctx.query.get("sort_key", []), ctx.query.get("sort_dir", [])
    if len(directions) > 1 and len(directions) != len(keys):
        raise BadRequest("Number of sort dirs does not match the number of sort keys")
    directions = directions or ["desc"]
    if len(directions) == 1:
        directions = directions * max(len(keys), 1)
    pairs = list(zip(keys or ["created_at"], directions, strict=True))
    return pairs if any(key in ("created_at", "id") for key, _ in pairs) else [*pairs, ("created_at", directions[0])]


def _sort_order(ctx: Context) -> list[tuple[str, str]]:
    if "sort_key" in ctx.query or "sort_dir" in ctx.query:
        raise BadRequest("Old and new sorting syntax cannot be combined")
    pairs = []
    for part in limited("sort", (ctx.query_one("sort") or "").split(",")):
        key, _, direction = part.strip().partition(":")
        if direction not in ("", "asc", "desc"):
            raise BadRequest(f"Invalid sort direction: {direction[:40]}. It must be one of: asc, desc.")
        pairs.append((key, direction or "desc"))
    return pairs


async def _marker(ctx: Context) -> Row | None:
    """The marker's row. An image that the caller may not see is not found."""
    marker = ctx.query_one("marker")
    if not marker:
        return None
    conditions = Conditions()
    _filter_visible(ctx, conditions)
    conditions.add("r.id = ?", marker)
    row = await ctx.db.fetch_one(f"SELECT r.* FROM images r WHERE {conditions.where()}", *conditions.arguments)
    if row is None:
        raise BadRequest(f"Image {marker[:80]} of the marker could not be found.")
    return row
