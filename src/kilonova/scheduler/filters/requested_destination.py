"""Only the requested host or hypervisor passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask


def _destination(request: Request) -> str:
    named = (request.host, request.hypervisor_hostname, request.hypervisor_uuid)
    return "/".join(name for name in named if name is not None)


# The text is visible to users; the name of the host is only for administrators, so it is not part of it.
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
        mask = mask & hosts.with_hypervisor_hostname(request.hypervisor_hostname)
    if request.hypervisor_uuid is not None:
        mask = mask & hosts.with_hypervisor_uuid(request.hypervisor_uuid)
    return mask
