"""A host takes servers only while its compute service is enabled and up."""

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
    have=lambda _request, _host: "last heartbeat too old",
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
    """An administrator may force a server to a disabled host, to test it, but not to a host that is down."""
    return hosts.up if request.forced else hosts.up & _enabled(hosts)


def _enabled(hosts: Hosts) -> Mask:
    """The trait mirrors the service's state; operators may also set it themselves."""
    return hosts.enabled & ~hosts.has_trait(TRAIT)
