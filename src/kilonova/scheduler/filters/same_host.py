"""The hint `same_host` names servers; only hosts with one of them pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

reason = Reason(
    "without a server of the hint same_host",
    need=lambda request: f"one of {', '.join(sorted(request.same_hosts or ())) or 'no hosts'}",
    have=lambda _, host: host.name,
)


def passes(request: Request, hosts: Hosts) -> Mask:
    return hosts.everywhere if request.same_hosts is None else hosts.named(request.same_hosts)
