"""Runs one filter: the hosts that pass, and the reason for a rejected one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kilonova.scheduler import Request
from kilonova.scheduler.filters import load
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, names


class Explanation(NamedTuple):
    text: str
    need: str
    have: str


def passing(name: str, hosts: Hosts, **requested: Any) -> set[str]:
    (check,) = load([name])
    return names(hosts, check.passes(_request(requested), hosts))


def explain(name: str, hosts: Hosts, row: int = 0, **requested: Any) -> Explanation:
    """The reason for the host in that row, which must be rejected."""
    (check,) = load([name])
    request = _request(requested)
    assert not check.passes(request, hosts)[row]
    parts = check.reason.parts(request)
    reason = next((part for part in parts if part.applies and part.applies(request, hosts)[row]), parts[-1])
    return Explanation(reason.text(request), reason.need(request), reason.have(request, hosts.at(row)))


def is_idle(name: str, hosts: Hosts, **requested: Any) -> bool:
    """Whether the filter has nothing to check."""
    (check,) = load([name])
    return check.passes(_request(requested), hosts) is hosts.everywhere


def set_metadata(hosts: Hosts, metadata: Mapping[int, Mapping[str, str]]) -> Hosts:
    """Give aggregates their metadata."""
    hosts.aggregates.set_metadata(1, metadata)
    return hosts


def _request(requested: dict[str, Any]) -> Request:
    return Request(**{"resources": TINY} | requested)
