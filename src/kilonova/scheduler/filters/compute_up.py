"""A host takes servers only while its compute service is enabled and heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

TRAIT = "COMPUTE_STATUS_DISABLED"

FORCED_DOWN = Reason(
    "forced down",
    need=lambda _: "a compute service that is up",
    have=lambda _request, _host: "forced down by an administrator",
    applies=lambda _, hosts: hosts.forced_down,
)
DOWN = Reason(
    "down",
    need=lambda _: "a compute service that is up",
    have=lambda _request, _host: "not heard of for too long",
    applies=lambda _, hosts: ~hosts.up,
)
DISABLED = Reason(
    "disabled",
    need=lambda _: "an enabled compute service",
    have=lambda _, host: f"disabled: {host.disabled_reason}" if host.disabled_reason else "disabled",
    applies=lambda _, hosts: ~_enabled(hosts),
)

reason = Reasons(lambda request: (FORCED_DOWN, DOWN) if request.forced else (DISABLED, FORCED_DOWN, DOWN))

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    """An administrator may try out a disabled host by forcing a server there; a host that is down takes nobody."""
    return hosts.up if request.forced else hosts.up & _enabled(hosts)


def _enabled(hosts: Hosts) -> Mask:
    """Placement's trait says the same as the service; an operator may also set it by hand."""
    return hosts.enabled & ~hosts.has_trait(TRAIT)
