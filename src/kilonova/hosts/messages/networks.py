"""Network plans: the networks, ports and firewall rules of a host."""

from __future__ import annotations

from typing import Literal

from kilonova.hosts.messages.base import Message


class FirewallRule(Message, frozen=True, kw_only=True):
    """An allow rule of a port. An empty protocol means any protocol, empty remotes any CIDR.

    For ICMP the ports are its type and code.
    """

    direction: Literal["ingress", "egress"]
    ethertype: Literal["IPv4", "IPv6"]
    protocol: str = ""
    port_min: int | None = None
    port_max: int | None = None
    remotes: list[str] = []
    # Instead of remotes: one of the plan's groups. A group without members allows nothing.
    group: str = ""
    # Whether replies to allowed traffic are allowed as well.
    stateful: bool = True


class WiredPort(Message, frozen=True, kw_only=True):
    """A port of a guest on the host. Without `secured` all its traffic is allowed."""

    id: str
    guest_id: str
    mac: str
    addresses: list[str] = []
    is_up: bool = True
    secured: bool = True
    # Allowed address pairs: (MAC, CIDR).
    pairs: list[tuple[str, str]] = []
    rules: list[FirewallRule] = []
    dhcp_options: dict[str, str] = {}
    # A subport of a trunk: the guest sends its packets with this VLAN id through its parent port.
    parent: str = ""
    vlan: int = 0


class WiredSubnet(Message, frozen=True, kw_only=True):
    id: str
    cidr: str
    gateway: str = ""
    dhcp: bool = True
    dns: list[str] = []
    # (destination, next hop)
    routes: list[tuple[str, str]] = []
    # Addresses that every host answers for: those of routers, and a gateway that belongs to no port.
    held: list[str] = []
    # IPv6 address mode: "slaac", "dhcpv6-stateful", "dhcpv6-stateless". Otherwise the host assigns no addresses.
    mode: str = ""


class WiredNetwork(Message, frozen=True, kw_only=True):
    """A network with ports on the host, or routed to one. `peers`: the addresses of the network's other hosts."""

    id: str
    # VXLAN network identifier; None if the network stays on the host.
    vni: int | None = None
    mtu: int = 1450
    subnets: list[WiredSubnet] = []
    ports: list[WiredPort] = []
    peers: list[str] = []
    # Whether guests reach external networks through the host's address.
    nat: bool = False
    # (floating IP, fixed IP) of ports on the host.
    floating: list[tuple[str, str]] = []
    # (CIDR, network id) of networks that a router connects to this one.
    routed: list[tuple[str, str]] = []
    # Extra routes of routers: (destination, next hop, network id of the hop: this network or one of `routed`).
    routes: list[tuple[str, str, str]] = []
    # (MAC, address) of ports on other hosts that this host routes to.
    neighbours: list[tuple[str, str]] = []


class NetworkPlan(Message, frozen=True, kw_only=True):
    """The complete desired state of a host's networks. The plan with the latest `read_at` wins."""

    read_at: float
    networks: list[WiredNetwork] = []
    # CIDRs of the members of security groups that rules refer to. Listed once per plan, since there may be many.
    groups: dict[str, list[str]] = {}
