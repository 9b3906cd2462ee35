"""The hint `query` is a JSON expression over attributes of hosts: `["and", [">=", "$free_ram_mb", 1024], …]`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class MalformedQuery(ValueError):
    """The expression is invalid, so no host matches it."""


reason = Reason(
    "not what the hint query asks for",
    need=lambda request: request.hints.get("query"),
    have=lambda _, host: _attributes(host.hosts, host.row),
)


def passes(request: Request, hosts: Hosts) -> Mask:
    query = request.hints.get("query")
    if not query:
        return hosts.everywhere
    try:
        return _evaluate(orjson.loads(query) if isinstance(query, str) else query, hosts)
    except (MalformedQuery, orjson.JSONDecodeError, RecursionError):  # RecursionError: nested too deeply
        return ~hosts.everywhere


def _evaluate(expression: object, hosts: Hosts) -> Mask:
    if not isinstance(expression, list) or len(expression) < 2:
        raise MalformedQuery
    name, *rest = expression
    if name == "not" and len(rest) == 1:
        return ~_evaluate(rest[0], hosts)
    if name in ("and", "or"):
        masks = [_evaluate(part, hosts) for part in rest]
        result = masks[0]
        for mask in masks[1:]:
            result = result & mask if name == "and" else result | mask
        return result
    return _compare(name, rest, hosts)


def _compare(name: object, rest: list[Any], hosts: Hosts) -> Mask:
    from kilonova.scheduler.host_attributes import hosts_where

    attribute, *values = rest
    if not (isinstance(attribute, str) and attribute.startswith("$")) or not values:
        raise MalformedQuery
    if name == "in":
        choices = values[0] if isinstance(values[0], list) else values
        found = hosts_where(hosts, attribute[1:].split("."), lambda have: have in choices)
    elif isinstance(name, str) and name in _COMPARISONS:
        compare = _COMPARISONS[name]
        found = hosts_where(hosts, attribute[1:].split("."), lambda have: _holds(compare, have, values[0]))
    else:
        raise MalformedQuery
    if found is None:
        raise MalformedQuery
    return found


def _holds(compare: Callable[[Any, Any], bool], have: object, want: object) -> bool:
    try:
        return compare(have, want)
    except TypeError:
        return False


def _attributes(hosts: Hosts, row: int) -> str:
    from kilonova.scheduler import host_attributes

    names = sorted(host_attributes.NAMES - {"cpu_info"})
    return ", ".join(f"{name}={host_attributes.describe(hosts, row, (name,))}" for name in names)
