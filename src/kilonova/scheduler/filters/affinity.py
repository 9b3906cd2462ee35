"""A server of an affinity group goes where the others of the group are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _together(request: Request) -> list[str]:
    """Where it must go; nothing where it may be the first."""
    group = request.group
    if group is None or group.policy != "affinity":
        return []
    return sorted(host for host, members in group.members.items() if members)


reason = Reason(
    "without the servers of its affinity group",
    need=lambda request: ", ".join(_together(request)),
    have=lambda _, host: host.name,
)

# The claim would refuse it as well.
even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    together = _together(request)
    return hosts.named(together) if together else hosts.everywhere
