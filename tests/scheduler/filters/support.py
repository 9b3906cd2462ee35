"""What one filter does to hosts: whom it lets pass, and what it says of one that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kilonova.scheduler import Request
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, names


class Said(NamedTuple):
    text: str
    need: str
    have: str


def passing(name: str, hosts: Hosts, **asked: Any) -> set[str]:
    (check,) = load([name])
    return names(hosts, check.passes(_request(asked), hosts))


def said(name: str, hosts: Hosts, row: int = 0, **asked: Any) -> Said:
    """Of the host in that row, which must be rejected."""
    (check,) = load([name])
    request = _request(asked)
    assert not check.passes(request, hosts)[row]
    parts = check.reason.parts(request)
    reason = next((part for part in parts if part.applies and part.applies(request, hosts)[row]), parts[-1])
    return Said(reason.text(request), reason.need(request), reason.have(request, hosts.at(row)))


def idle(name: str, hosts: Hosts, **asked: Any) -> bool:
    """Whether the filter says at once that it has nothing to check."""
    (check,) = load([name])
    return check.passes(_request(asked), hosts) is hosts.everywhere


def describe(hosts: Hosts, metadata: Mapping[int, Mapping[str, str]]) -> Hosts:
    """Give aggregates their metadata."""
    hosts.aggregates.describe(1, metadata)
    return hosts


def _request(asked: dict[str, Any]) -> Request:
    return Request(**{"resources": TINY} | asked)
