"""A server with a pinned availability zone goes only to hosts of that zone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

reason = Reason("not in zone {need}", need=lambda request: request.zone, have=lambda _, host: host.zone)

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    return hosts.everywhere if request.zone is None else hosts.zone == hosts.zone_id(request.zone)
