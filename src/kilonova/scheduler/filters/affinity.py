"""A server of an affinity group goes to the host of the group's other servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _group_hosts(request: Request) -> list[str]:
    """The hosts of the group's servers; empty if there are none."""
    group = request.group
    if group is None or group.policy != "affinity":
        return []
    return sorted(host for host, members in group.members.items() if members)


reason = Reason(
    "without the servers of its affinity group",
    need=lambda request: ", ".join(_group_hosts(request)),
    have=lambda _, host: host.name,
)

# The claim checks the same.
even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    group_hosts = _group_hosts(request)
    return hosts.named(group_hosts) if group_hosts else hosts.everywhere
