"""The hints `build_near_host_ip` and `cidr` name a network; only hosts with an address in it pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

DEFAULT_PREFIX = "/24"

reason = Reason(
    "not in network {need}",
    need=lambda request: f"{request.hints.get('build_near_host_ip')}/{_bits(request)}",
    have=lambda _, host: host.address or "no address",
)


def _bits(request: Request) -> str:
    return str(request.hints.get("cidr") or DEFAULT_PREFIX).lstrip("/")


def passes(request: Request, hosts: Hosts) -> Mask:
    near = request.hints.get("build_near_host_ip")
    if near is None:
        return hosts.everywhere
    from kilonova.scheduler.hypervisor_columns import pack_address

    network, bits = pack_address(str(near)), _bits(request)
    if network is None or not bits.isdecimal():
        return ~hosts.everywhere
    mapped_bits = 0 if ":" in str(near) else 96
    return hosts.hypervisors.within(network, min(128, mapped_bits + int(bits)))
