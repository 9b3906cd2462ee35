"""A host takes at most `max_server_per_host` servers of an anti-affinity group, by default one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Host, Hosts, Mask


def _full_hosts(request: Request) -> list[str]:
    group = request.group
    if group is None or group.policy != "anti-affinity":
        return []
    return [host for host, members in group.members.items() if members >= group.max_per_host]


def _max_per_host(request: Request) -> int:
    return request.group.max_per_host if request.group else 1


def _have(request: Request, host: Host) -> str:
    members = request.group.members.get(host.name, 0) if request.group else 0
    return f"{members} of the group"


class _GroupReason(Reason):
    def text(self, request: Request) -> str:
        limit = _max_per_host(request)
        return f"have {'a server' if limit == 1 else f'{limit} servers'} of its anti-affinity group"


reason = _GroupReason("", need=lambda request: f"fewer than {_max_per_host(request)} of the group", have=_have)

# The claim checks the same.
even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    full_hosts = _full_hosts(request)
    return ~hosts.named(full_hosts) if full_hosts else hosts.everywhere
