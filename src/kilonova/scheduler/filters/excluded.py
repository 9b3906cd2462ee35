"""Rejects the host that a server leaves, and hosts that have failed this request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

reason = Reason(
    "excluded",
    need=lambda request: f"any but {', '.join(sorted(request.excluded_hosts))}",
    have=lambda _, host: host.name,
)

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    return ~hosts.named(request.excluded_hosts) if request.excluded_hosts else hosts.everywhere
