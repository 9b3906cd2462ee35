"""What a host is told of its networks."""

from __future__ import annotations

from typing import Literal

from kilonova.hosts.messages.base import Message


class Firewall(Message, frozen=True, kw_only=True):
    """What a port lets through. An empty protocol is any; so are empty remotes, which are addresses with a prefix.

    For ICMP the ports are its type and code.
    """

    direction: Literal["ingress", "egress"]
    ethertype: Literal["IPv4", "IPv6"]
    protocol: str = ""
    port_min: int | None = None
    port_max: int | None = None
    remotes: list[str] = []
    # In place of remotes: one of the plan's groups. One without members lets nobody through.
    group: str = ""
    # Whether answers to what it lets through are let through too.
    stateful: bool = True


class WiredPort(Message, frozen=True, kw_only=True):
    """A port of a guest on the host. Unsecured ports are let through whatever they send."""

    id: str
    guest_id: str
    mac: str
    addresses: list[str] = []
    is_up: bool = True
    secured: bool = True
    # Further addresses it may send from, each as (MAC, address with a prefix).
    pairs: list[tuple[str, str]] = []
    rules: list[Firewall] = []
    dhcp_options: dict[str, str] = {}


class WiredSubnet(Message, frozen=True, kw_only=True):
    id: str
    cidr: str
    gateway: str = ""
    dhcp: bool = True
    dns: list[str] = []
    # (destination, next hop)
    routes: list[tuple[str, str]] = []
    # Addresses of it that every host answers for by itself: those of routers, and a gateway that no port has.
    held: list[str] = []
    # How guests get addresses of IPv6: "slaac", "dhcpv6-stateful", "dhcpv6-stateless", or from elsewhere.
    mode: str = ""


class WiredNetwork(Message, frozen=True, kw_only=True):
    """A network with ports on the host, or joined to one that has. `peers`: the addresses of the other such hosts."""

    id: str
    # Its number between hosts; none if it does not leave the host.
    vni: int | None = None
    mtu: int = 1450
    subnets: list[WiredSubnet] = []
    ports: list[WiredPort] = []
    peers: list[str] = []
    # Whether guests may reach the outside by the host's address.
    nat: bool = False
    # (floating address, fixed address) of ports on the host.
    floating: list[tuple[str, str]] = []
    # (cidr, network id) of networks that a router joins to this one.
    routed: list[tuple[str, str]] = []
    # (destination, next hop, id of the network that the hop is in) of routers: this network, or one of the `routed`.
    routes: list[tuple[str, str, str]] = []
    # (MAC, address) of ports on other hosts, where a router of this host leads to them.
    neighbours: list[tuple[str, str]] = []


class NetworkPlan(Message, frozen=True, kw_only=True):
    """Everything of networks that the host shall have. Of two plans the one that was `read_at` later counts."""

    read_at: float
    networks: list[WiredNetwork] = []
    # The addresses, each with a prefix, of the members of groups that rules name: once, for they may be many.
    groups: dict[str, list[str]] = {}
