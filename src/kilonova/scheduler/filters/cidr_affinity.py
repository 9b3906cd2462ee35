"""The hints `build_near_host_ip` and `cidr` name a network; only hosts with their address in it are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.scheduler.filters import Reason
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts, Mask

USUAL = "/24"

reason = Reason(
    "not in network {need}",
    need=lambda request: f"{request.hints.get('build_near_host_ip')}/{_bits(request)}",
    have=lambda _, host: host.address or "no address",
)


def _bits(request: Request) -> str:
    return str(request.hints.get("cidr") or USUAL).lstrip("/")


def passes(request: Request, hosts: Hosts) -> Mask:
    near = request.hints.get("build_near_host_ip")
    if near is None:
        return hosts.everywhere
    from kilonova.scheduler.machines import pack

    network, bits = pack(str(near)), _bits(request)
    if network is None or not bits.isdecimal():
        return ~hosts.everywhere
    ahead = 0 if ":" in str(near) else 96
    return hosts.machines.within(network, min(128, ahead + int(bits)))
