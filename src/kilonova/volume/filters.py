"""Filters and sort order of lists, as query strings of the Block Storage API state them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.http.parameter_types import is_true
from kilonova.store.conditions import Conditions
from kilonova.store.paging import SortKey
from kilonova.volume.api import api

Filter = Callable[[Conditions, str, str], None]
"""Adds the condition for a key and its value."""

STRICT = api.behaviour("unknown filters are refused")
LIKE = api.behaviour("filters by a part of the value")
TIMES = api.behaviour("filters by time")
BY_IMAGE_METADATA = api.behaviour("filters by image metadata")
BY_GROUP = api.behaviour("filters by group")
BY_QUOTA = api.behaviour("filters by consumes_quota")
COUNTED = api.behaviour("lists have a count")
# Filters for all users. Administrators may use more.
OFFERED = {
    "volume": (
        *("name", "display_name", "description", "display_description", "status", "metadata", "bootable", "id"),
        *("migration_status", "availability_zone", "group_id", "size", "created_at", "updated_at"),
        *("glance_metadata", "volume_type_id", "consumes_quota", "multiattach"),
    ),
    "snapshot": (
        *("name", "display_name", "description", "display_description", "status", "volume_id", "metadata", "id"),
        *("availability_zone", "consumes_quota", "created_at", "updated_at"),
    ),
    "attachment": ("volume_id", "status", "instance_id", "attach_status"),
    "message": ("resource_uuid", "resource_type", "event_id", "request_id", "message_level"),
}
# Filters added by a microversion. Before it the key is ignored.
_SINCE = {
    "glance_metadata": BY_IMAGE_METADATA,
    "group_id": BY_GROUP,
    "consumes_quota": BY_QUOTA,
}
NOT_FILTERS = frozenset({"limit", "marker", "offset", "sort", "sort_key", "sort_dir", "all_tenants", "with_count"})
# Python needs 0.2 seconds to parse a dictionary of 60 KB.
MAX_PYTHON_LENGTH = 4096
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_COMPARISONS = {"gt": ">", "gte": ">=", "eq": "=", "neq": "<>", "lt": "<", "lte": "<="}
_SORT_BOTH = 'The "sort_key" and "sort_dir" parameters are deprecated and cannot be used with the "sort" parameter.'


def all_projects(ctx: Context, rule: str) -> bool:
    """Whether `all_tenants` is set and the caller may see all projects. Other callers see their own project."""
    requested = ctx.query_one("all_tenants", "0") or "1"
    if requested.lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off", "t", "f", "y", "n"):
        raise BadRequest(f"Invalid input received: all_tenants param with value {requested[:80]!r} is invalid.")
    return is_true(requested) and sees_all(ctx, rule)


def sees_all(ctx: Context, rule: str) -> bool:
    """Whether the rule lets the caller see all projects."""
    return ctx.may(rule, {"project_id": None, "user_id": None})


def add(ctx: Context, conditions: Conditions, filters: Mapping[str, Filter], opened: Collection[str]) -> None:
    """Add the conditions of the query. Users may filter by the keys in `opened`, administrators by any."""
    requested = {key: values[-1] for key, values in ctx.query.items() if key not in NOT_FILTERS}
    if "admin" not in ctx.token.roles:
        requested = _allowed(ctx, requested, opened)
    for key, value in requested.items():
        name = key.removesuffix("~")
        if name in filters and _known(ctx, key):
            (filters[name] if name == key else contains(name, filters))(conditions, name, value)


def _known(ctx: Context, key: str) -> bool:
    since = LIKE if key.endswith("~") else _SINCE.get(key)
    return since is None or ctx.has_behaviour(since)


def counted(ctx: Context) -> bool:
    """Whether the response has the number of entries on all pages."""
    return ctx.has_behaviour(COUNTED) and is_true(ctx.query_one("with_count"))


def _allowed(ctx: Context, requested: dict[str, str], opened: Collection[str]) -> dict[str, str]:
    """The filters that users may use. From 3.31 on the others are refused."""
    closed = [key for key in requested if key.removesuffix("~") not in opened]
    if closed and ctx.has_behaviour(STRICT):
        raise BadRequest(f"Invalid filters {', '.join(sorted(closed))[:200]} are found in query options.")
    return {key: value for key, value in requested.items() if key not in closed}


def columns(*names: str, **renamed: str) -> dict[str, str]:
    """The columns by key. `renamed` has the columns of keys with another name."""
    return {name: name for name in names} | renamed


# Filters


def equals(column: str) -> Filter:
    def condition(conditions: Conditions, key: str, value: str) -> None:
        conditions.add(f"{column} = ?", value)

    condition.column = column  # type: ignore[attr-defined]
    return condition


def equal_columns(*names: str, **renamed: str) -> dict[str, Filter]:
    """Filters that compare columns, by key. `renamed` has the columns of keys with another name."""
    return {key: equals(column) for key, column in columns(*names, **renamed).items()}


def contains(key: str, filters: Mapping[str, Filter]) -> Filter:
    """The filter for a key that ends in `~`: a part of the text matches."""
    column = getattr(filters[key], "column", None)
    if column is None:
        raise BadRequest(f"Invalid filters {key}~ are found in query options.")

    def condition(conditions: Conditions, key: str, value: str) -> None:
        escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        conditions.add(f"{column} LIKE ? ESCAPE '\\'", f"%{escaped}%")

    return condition


def number(column: str) -> Filter:
    def condition(conditions: Conditions, key: str, value: str) -> None:
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise BadRequest(f"Invalid input received: {key} must be an integer, not {value[:80]!r}.")
        conditions.add(f"{column} = ?", int(value))

    return condition


def flag(expression: str) -> Filter:
    def condition(conditions: Conditions, key: str, value: str) -> None:
        conditions.add(expression if is_true(value) else f"NOT {expression}")

    return condition


def pairs(condition_of_pair: str) -> Filter:
    """A filter by a dictionary. The `?` in the condition are a key and its value."""

    def condition(conditions: Conditions, key: str, value: str) -> None:
        for name, wanted in limited(key, dictionary(key, value)).items():
            conditions.add(condition_of_pair, name, wanted)

    return condition


def dictionary(key: str, text: str) -> dict[str, str]:
    """Parse a dictionary in JSON or Python syntax. Refuses characters that the database cannot store."""
    try:
        found = {str(name): str(wanted) for name, wanted in _read(text).items()}
    except (ValueError, SyntaxError, MemoryError, RecursionError, AttributeError):
        found = None
    if found is None or any(_UNSTORABLE.search(part) for pair in found.items() for part in pair):
        raise BadRequest(f"Invalid input received: {key} must be a dictionary, not {text[:80]!r}.")
    return found


def _read(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        if len(text) > MAX_PYTHON_LENGTH:
            raise
        return ast.literal_eval(text)


def time(column: str, ctx: Context) -> Filter:
    """A filter such as `gt:2026-01-02T03:04:05,lt:…`. Before 3.60 it is ignored."""

    def condition(conditions: Conditions, key: str, value: str) -> None:
        if not ctx.has_behaviour(TIMES):
            return
        for part in limited(key, value.split(",")):
            operator, time = _comparison(key, part.strip())
            conditions.add(f"{column} {_COMPARISONS[operator]} ?", time)

    return condition


def _comparison(key: str, part: str) -> tuple[str, float]:
    operator, separator, value = part.partition(":")
    if operator not in _COMPARISONS:
        if separator and operator.isalpha():
            raise BadRequest(f"Invalid filter: {operator[:20]} in {key} is none of {', '.join(_COMPARISONS)}.")
        operator, value = "eq", part
    try:
        return operator, clock.parse(value)
    except (ValueError, OverflowError):
        raise BadRequest(f"Invalid filter: {key} has an invalid time value {value[:80]!r}.") from None


# Order


def order(ctx: Context, columns: Mapping[str, str], nullable: Collection[str]) -> list[SortKey]:
    """The order from `sort=name:asc,id` or the older `sort_key` and `sort_dir`. The default is newest first."""
    requested = ctx.query_one("sort")
    if requested is None:
        requested = ",".join(_sort_keys(ctx)) or "created_at:desc"
    elif "sort_key" in ctx.query or "sort_dir" in ctx.query:
        raise BadRequest(f"Invalid input received: {_SORT_BOTH}")
    keys = []
    for part in limited("sort", requested.split(",")):
        name, _, direction = part.strip().partition(":")
        if name not in columns:
            raise BadRequest(f"Invalid input received: Sort key supplied is not valid: {name[:80]}.")
        if direction not in ("", "asc", "desc"):
            raise BadRequest("Invalid input received: Unknown sort direction, must be one of: asc, desc")
        keys.append(SortKey(columns[name], direction != "asc", nullable=columns[name] in nullable))
    return keys


def _sort_keys(ctx: Context) -> list[str]:
    keys = (ctx.query_one("sort_key") or "created_at").split(",")
    directions = (ctx.query_one("sort_dir") or "desc").split(",")
    if len(directions) > len(keys):
        raise BadRequest("Invalid input received: sort_dir has more entries than sort_key.")
    directions += [directions[-1]] * (len(keys) - len(directions))
    return [f"{key}:{direction}" for key, direction in zip(keys, directions, strict=True)]
