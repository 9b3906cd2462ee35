"""A server for which a host or hypervisor was named goes there or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _destination(request: Request) -> str:
    named = (request.host, request.hypervisor_hostname, request.hypervisor_uuid)
    return "/".join(name for name in named if name is not None)


# Reasons are for everybody, the name of a host that an administrator gave is not.
reason = Reason(
    "not the requested destination",
    need=_destination,
    have=lambda _, host: f"{host.name}/{host.hypervisor_hostname}/{host.uuid}",
)

even_if_forced = True


def passes(request: Request, hosts: Hosts) -> Mask:
    mask = hosts.everywhere
    if request.host is not None:
        mask = mask & hosts.named((request.host,))
    if request.hypervisor_hostname is not None:
        mask = mask & hosts.called(request.hypervisor_hostname)
    if request.hypervisor_uuid is not None:
        mask = mask & hosts.hypervisor(request.hypervisor_uuid)
    return mask
