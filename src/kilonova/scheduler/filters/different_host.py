"""The hint `different_host` names servers; hosts with one of them are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

reason = Reason(
    "have a server of the hint different_host",
    need=lambda request: f"any but {', '.join(sorted(request.different_hosts))}",
    have=lambda _, host: host.name,
)


def passes(request: Request, hosts: Hosts) -> Mask:
    return ~hosts.named(request.different_hosts) if request.different_hosts else hosts.everywhere
