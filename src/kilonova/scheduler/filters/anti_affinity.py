"""A host has no more servers of an anti-affinity group than the group's rule allows, usually one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask


def _full(request: Request) -> list[str]:
    group = request.group
    if group is None or group.policy != "anti-affinity":
        return []
    return [host for host, members in group.members.items() if members >= group.max_per_host]


def _most(request: Request) -> int:
    return request.group.max_per_host if request.group else 1


def _have(request: Request, host: Host) -> str:
    members = request.group.members.get(host.name, 0) if request.group else 0
    return f"{members} of the group"


class _Full(Reason):
    def text(self, request: Request) -> str:
        most = _most(request)
        return f"have {'a server' if most == 1 else f'{most} servers'} of its anti-affinity group"


reason = _Full("", need=lambda request: f"fewer than {_most(request)} of the group", have=_have)

# The claim would refuse it as well.
even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    full = _full(request)
    return ~hosts.named(full) if full else hosts.everywhere
