"""A host takes servers only while its compute service is enabled and heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason, Reasons
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

DISABLED = Reason(
    "disabled",
    need=lambda _: "an enabled compute service",
    have=lambda _, host: f"disabled: {host.disabled_reason}" if host.disabled_reason else "disabled",
    applies=lambda _, hosts: ~hosts.enabled,
)
DOWN = Reason("down", need=lambda _: "a compute service that is up", have=lambda _request, _host: "down")

reason = Reasons(lambda _: (DISABLED, DOWN))


def passes(request: Request, hosts: Hosts) -> Mask:
    return hosts.enabled & hosts.up
