"""Computes the network plans of all networked hosts from the tables.

A host needs the networks of its ports, and the networks that routers connect to these: traffic between networks is
routed on the host where it originates. See docs/decisions/0018-networks-on-hosts.md.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple

from msgspec.json import Decoder

from kilonova import clock
from kilonova.hosts.messages import FirewallRule, NetworkPlan, WiredNetwork, WiredPort, WiredSubnet
from kilonova.hosts.networked import NetworkedHost
from kilonova.network.ports.model import DhcpOption
from kilonova.network.security_groups.rules import PROTOCOLS, SecurityGroupRule, normalized_cidr
from kilonova.network.subnets.model import Route, Subnet
from kilonova.store import Reader
from kilonova.store.records import Record

MAX_VNI = 2**24 - 1


async def compute_plans(reader: Reader, hosts: Sequence[NetworkedHost]) -> dict[str, NetworkPlan]:
    """The plan of each host; empty for a host without ports."""
    read_at = clock.now()
    state = await _read_state(reader, [host.name for host in hosts])
    networks_by_host = {host.name: state.networks_on(host.name) for host in hosts}
    addresses = {host.name: host.address for host in hosts}
    hosts_by_network: dict[str, set[str]] = defaultdict(set)
    for host, networks in networks_by_host.items():
        for network_id in networks:
            hosts_by_network[network_id].add(addresses[host])
    return {
        host: state.plan(host, {one: hosts_by_network[one] - {addresses[host]} for one in networks}, read_at)
        for host, networks in networks_by_host.items()
    }


class PlannedNetwork(Record, frozen=True):
    table: ClassVar[str] = "networks"

    id: str
    mtu: int
    network_type: str
    segmentation_id: int | None
    admin_state_up: bool


class PlannedPort(Record, frozen=True):
    table: ClassVar[str] = "ports"

    id: str
    network_id: str
    mac_address: str
    admin_state_up: bool
    port_security_enabled: bool
    device_id: str
    host_id: str
    allowed_address_pairs: list[dict[str, str]]
    extra_dhcp_opts: list[DhcpOption]


class PlannedSubport(NamedTuple):
    """The trunk attributes of a subport. `device_id` is that of the parent port."""

    parent_id: str
    vlan: int
    device_id: str


class NetworkState:
    """The ports of these hosts, and the records that their networks depend on."""

    def __init__(self) -> None:
        self.networks: dict[str, PlannedNetwork] = {}
        self.subnets: dict[str, list[Subnet]] = defaultdict(list)
        self.ports: dict[str, PlannedPort] = {}
        self.hosts_of: dict[str, set[str]] = defaultdict(set)
        self.ports_on: dict[str, set[str]] = defaultdict(set)
        self.ports_of_network: dict[str, list[str]] = defaultdict(list)
        self.addresses: dict[str, list[str]] = defaultdict(list)
        self.networks_of_router: dict[str, set[str]] = defaultdict(set)
        self.routers_of_network: dict[str, set[str]] = defaultdict(set)
        # By subnet: the id of each router with an interface there, and its address.
        self.interfaces: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.snat_routers: set[str] = set()
        self.static_routes: dict[str, list[tuple[str, str]]] = {}
        # Subnets whose gateway is a guest.
        self.guest_gateways: set[str] = set()
        self.groups_of_port: dict[str, list[str]] = defaultdict(list)
        self.stateless_groups: set[str] = set()
        self.rules: dict[str, list[SecurityGroupRule]] = defaultdict(list)
        self.members: dict[str, set[str]] = defaultdict(set)
        self.subports: dict[str, PlannedSubport] = {}
        self.floating_ips: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._firewalls: dict[tuple[str, ...], list[FirewallRule]] = {}

    def plan(self, host: str, peers: dict[str, set[str]], read_at: float) -> NetworkPlan:
        """`peers` are the addresses of the other hosts of each network on this host."""
        networks = [self.network(one, host, peers[one]) for one in sorted(peers)]
        named = {rule.group for network in networks for port in network.ports for rule in port.rules} - {""}
        groups = {one: sorted(self.members[one]) for one in sorted(named)}
        return NetworkPlan(read_at=read_at, networks=networks, groups=groups)

    def networks_on(self, host: str) -> set[str]:
        direct = {self.ports[port_id].network_id for port_id in self.ports_on[host]}
        routers = {router for network_id in direct for router in self.routers_of_network[network_id]}
        routed = {network_id for router in routers for network_id in self.networks_of_router[router]}
        return {network_id for network_id in direct | routed if network_id in self.networks}

    def network(self, network_id: str, host: str, peers: set[str]) -> WiredNetwork:
        network = self.networks[network_id]
        here = [self.ports[port_id] for port_id in self.ports_of_network[network_id] if host in self.hosts_of[port_id]]
        routed = self._routed(network_id)
        routes = self._routes(network_id, {cidr for cidr, _ in routed})
        return WiredNetwork(
            id=network_id,
            vni=_vxlan_id(network),
            mtu=network.mtu,
            subnets=[self._subnet(subnet) for subnet in self.subnets[network_id]],
            ports=[self._port(port, network.admin_state_up) for port in here],
            peers=sorted(peers) if _vxlan_id(network) is not None else [],
            nat=bool(self.routers_of_network[network_id] & self.snat_routers),
            floating=sorted(pair for port in here if port.host_id == host for pair in self.floating_ips[port.id]),
            routed=routed,
            routes=routes,
            neighbours=self._neighbours(network_id, host) if routed or routes else [],
        )

    def _routed(self, network_id: str) -> list[tuple[str, str]]:
        routers = self.routers_of_network[network_id]
        others = {other for router in routers for other in self.networks_of_router[router]} - {network_id}
        return sorted((subnet.cidr, other) for other in others for subnet in self._connected(network_id, other))

    def _connected(self, network_id: str, other: str) -> list[Subnet]:
        """The subnets of the other network in which a router of this network has an interface."""
        routers = self.routers_of_network[network_id]
        return [
            subnet
            for subnet in self.subnets[other]
            if any(router in routers for router, _ in self.interfaces[subnet.id])
        ]

    def _routes(self, network_id: str, routed: set[str]) -> list[tuple[str, str, str]]:
        """The static routes of the network's routers, without those to directly connected subnets."""
        connected = {*routed, *(subnet.cidr for subnet in self.subnets[network_id])}
        return sorted(
            (destination, hop, other)
            for router in self.routers_of_network[network_id]
            for destination, hop in self.static_routes[router]
            if destination not in connected and (other := self._network_of(router, hop))
        )

    def _network_of(self, router: str, hop: str) -> str:
        """The router's network that contains the next hop, or "" for hops in external networks."""
        address = ipaddress.ip_address(hop)
        for network_id in sorted(self.networks_of_router[router]):
            for subnet in self.subnets[network_id]:
                own = [held for one, held in self.interfaces[subnet.id] if one == router]
                if own and hop not in own and address in ipaddress.ip_network(subnet.cidr):
                    return network_id
        return ""

    def _neighbours(self, network_id: str, host: str) -> list[tuple[str, str]]:
        elsewhere = [one for one in self.ports_of_network[network_id] if host not in self.hosts_of[one]]
        ports = [self.ports[port_id] for port_id in elsewhere]
        return sorted((port.mac_address, address) for port in ports for address in self.addresses[port.id])

    def _subnet(self, subnet: Subnet) -> WiredSubnet:
        gateway = subnet.gateway_ip or ""
        held = {address for _, address in self.interfaces[subnet.id]}
        if gateway and subnet.id not in self.guest_gateways:
            held.add(gateway)
        return WiredSubnet(
            id=subnet.id,
            cidr=subnet.cidr,
            gateway=gateway,
            dhcp=subnet.enable_dhcp,
            dns=subnet.dns_nameservers,
            routes=[(_prefix(route.destination), route.nexthop) for route in subnet.host_routes],
            held=sorted(held),
            mode=(subnet.ipv6_ra_mode or subnet.ipv6_address_mode or "") if subnet.ip_version == 6 else "",
        )

    def _port(self, port: PlannedPort, network_is_up: bool) -> WiredPort:
        secured, subport = port.port_security_enabled, self.subports.get(port.id)
        return WiredPort(
            id=port.id,
            guest_id=port.device_id if subport is None else subport.device_id,
            parent="" if subport is None else subport.parent_id,
            vlan=0 if subport is None else subport.vlan,
            mac=port.mac_address,
            addresses=self.addresses[port.id],
            is_up=port.admin_state_up and network_is_up,
            secured=secured,
            pairs=_pairs(port) if secured else [],
            rules=self._firewall(port.id) if secured else [],
            dhcp_options=_dhcp_options(port),
        )

    def _firewall(self, port_id: str) -> list[FirewallRule]:
        """Sorted, so that equal rules make equal plans. Cached, because most ports share their groups with others."""
        groups = tuple(sorted(self.groups_of_port[port_id]))
        if groups not in self._firewalls:
            rules = dict(self._rule(rule) for group_id in groups for rule in self.rules[group_id])
            self._firewalls[groups] = [rules[content] for content in sorted(rules)]
        return self._firewalls[groups]

    def _rule(self, rule: SecurityGroupRule) -> tuple[str, FirewallRule]:
        """The firewall rule, and its content as text."""
        protocol = _protocol(rule.protocol, rule.ethertype)
        ports = rule.port_range_min, rule.port_range_max
        prefix, group = normalized_cidr(rule.remote_ip_prefix) or "", rule.remote_group_id or ""
        stateful = rule.security_group_id not in self.stateless_groups
        return repr((rule.direction, rule.ethertype, protocol, *ports, prefix, group, stateful)), FirewallRule(
            direction="egress" if rule.direction == "egress" else "ingress",
            ethertype="IPv6" if rule.ethertype == "IPv6" else "IPv4",
            protocol=protocol,
            port_min=rule.port_range_min,
            port_max=rule.port_range_max,
            remotes=[prefix] if prefix else [],
            group=group,
            stateful=stateful,
        )


async def _read_state(reader: Reader, hosts: list[str]) -> NetworkState:
    state = NetworkState()
    await _read_ports(reader, state, hosts)
    if not state.ports:
        return state
    await _read_routers(reader, state)
    await _read_networks(reader, state)
    await _read_groups(reader, state)
    for row in await reader.fetch(
        "SELECT port_id, floating_ip_address, fixed_ip_address FROM floating_ips WHERE port_id = ANY($1)",
        list(state.ports),
    ):
        state.floating_ips[row["port_id"]].append((row["floating_ip_address"], row["fixed_ip_address"]))
    return state


_PORTS = """
SELECT id, network_id, mac_address, admin_state_up, port_security_enabled, device_id, host_id,
       allowed_address_pairs, extra_dhcp_opts
FROM ports
WHERE (host_id = ANY($1)
    OR id IN (SELECT port_id FROM standby_bindings WHERE host = ANY($1))
    OR id IN (
        SELECT s.port_id FROM trunk_subports s JOIN trunks t ON t.id = s.trunk_id
        JOIN standby_bindings b ON b.port_id = t.port_id WHERE b.host = ANY($1)))
  AND vnic_type = 'normal' AND device_owner NOT LIKE 'network:%'
ORDER BY id
"""
_SUBPORTS = """
SELECT s.port_id, s.segmentation_id, t.port_id AS parent_id, p.device_id
FROM trunk_subports s JOIN trunks t ON t.id = s.trunk_id JOIN ports p ON p.id = t.port_id
WHERE s.port_id = ANY($1)
"""


async def _read_ports(reader: Reader, state: NetworkState, hosts: list[str]) -> None:
    known = set(hosts)
    for port in PlannedPort.decode_all(await reader.fetch(_PORTS, hosts)):
        state.ports[port.id] = port
        state.ports_of_network[port.network_id].append(port.id)
        if port.host_id in known:
            state.hosts_of[port.id].add(port.host_id)
    for row in await reader.fetch("SELECT port_id, host FROM standby_bindings WHERE host = ANY($1)", hosts):
        if row["port_id"] in state.ports:
            state.hosts_of[row["port_id"]].add(row["host"])
    for row in await reader.fetch(_SUBPORTS, list(state.ports)):
        state.subports[row["port_id"]] = PlannedSubport(row["parent_id"], row["segmentation_id"], row["device_id"])
        # Subports need no bindings of their own for a live migration.
        state.hosts_of[row["port_id"]] |= state.hosts_of[row["parent_id"]]
    for port_id, names in state.hosts_of.items():
        for host in names:
            state.ports_on[host].add(port_id)
    for row in await reader.fetch(
        "SELECT port_id, ip_address FROM port_addresses WHERE port_id = ANY($1) ORDER BY port_id, position",
        list(state.ports),
    ):
        state.addresses[row["port_id"]].append(row["ip_address"])


# The routers that are connected to one of the networks, with all their interfaces. In a shared network only routers of
# its own project and the router with the gateway's address route: other projects must not divert its packets.
_INTERFACES = """
SELECT r.id, r.gateway_port_id, r.enable_snat, r.routes, p.network_id, a.subnet_id, a.ip_address,
       (NOT n.shared OR n.project_id = r.project_id OR a.ip_address = s.gateway_ip) AS routes_here
FROM routers r
JOIN ports p ON p.device_id = r.id AND p.device_owner = 'network:router_interface'
JOIN port_addresses a ON a.port_id = p.id
JOIN networks n ON n.id = p.network_id
JOIN subnets s ON s.id = a.subnet_id
WHERE r.admin_state_up AND r.id IN (
    SELECT device_id FROM ports WHERE network_id = ANY($1) AND device_owner = 'network:router_interface')
ORDER BY r.id, a.subnet_id, a.ip_address
"""


async def _read_routers(reader: Reader, state: NetworkState) -> None:
    for row in await reader.fetch(_INTERFACES, sorted(state.ports_of_network)):
        state.interfaces[row["subnet_id"]].append((row["id"], row["ip_address"]))
        if not row["routes_here"]:
            continue
        state.networks_of_router[row["id"]].add(row["network_id"])
        state.routers_of_network[row["network_id"]].add(row["id"])
        if row["id"] not in state.static_routes:
            state.static_routes[row["id"]] = _static_routes(_decode_routes(row["routes"]))
        if row["gateway_port_id"] and row["enable_snat"]:
            state.snat_routers.add(row["id"])


async def _read_networks(reader: Reader, state: NetworkState) -> None:
    routed = (network_id for networks in state.networks_of_router.values() for network_id in networks)
    wanted = sorted({*state.ports_of_network, *routed})
    sql = "SELECT id, mtu, network_type, segmentation_id, admin_state_up FROM networks WHERE id = ANY($1)"
    state.networks = {each.id: each for each in PlannedNetwork.decode_all(await reader.fetch(sql, wanted))}
    sql = "SELECT * FROM subnets WHERE network_id = ANY($1) ORDER BY ip_version, id"
    for subnet in Subnet.decode_all(await reader.fetch(sql, wanted)):
        state.subnets[subnet.network_id].append(subnet)
    # Where a guest is a subnet's gateway, hosts must not answer for the gateway's address. The guest may have its
    # address of another subnet of the network. If it got that address by chance, in another project, it is no gateway.
    for row in await reader.fetch(
        "SELECT s.id FROM subnets s JOIN ports p ON p.network_id = s.network_id "
        "JOIN port_addresses a ON a.port_id = p.id AND a.ip_address = s.gateway_ip "
        "WHERE s.network_id = ANY($1) AND p.device_owner <> 'network:router_interface' "
        "AND (a.subnet_id = s.id OR p.project_id = s.project_id)",
        wanted,
    ):
        state.guest_gateways.add(row["id"])


_MEMBERS = """
SELECT g.security_group_id, p.allowed_address_pairs, a.ip_address
FROM port_security_groups g JOIN ports p ON p.id = g.port_id LEFT JOIN port_addresses a ON a.port_id = p.id
WHERE g.security_group_id = ANY($1)
"""


async def _read_groups(reader: Reader, state: NetworkState) -> None:
    for row in await reader.fetch(
        "SELECT port_id, security_group_id FROM port_security_groups WHERE port_id = ANY($1)", list(state.ports)
    ):
        state.groups_of_port[row["port_id"]].append(row["security_group_id"])
    groups = sorted({group_id for found in state.groups_of_port.values() for group_id in found})
    stateless = await reader.fetch("SELECT id FROM security_groups WHERE id = ANY($1) AND NOT stateful", groups)
    state.stateless_groups = {row["id"] for row in stateless}
    sql = "SELECT * FROM security_group_rules WHERE security_group_id = ANY($1)"
    for rule in SecurityGroupRule.decode_all(await reader.fetch(sql, groups)):
        state.rules[rule.security_group_id].append(rule)
    remote = {rule.remote_group_id for rules in state.rules.values() for rule in rules if rule.remote_group_id}
    for row in await reader.fetch(_MEMBERS, sorted(remote)) if remote else ():
        found = state.members[row["security_group_id"]]
        if row["ip_address"]:
            found.add(_prefix(row["ip_address"]))
        found.update(_prefix(pair["ip_address"]) for pair in _decode_pairs(row["allowed_address_pairs"]))


_decode_pairs = Decoder(list[dict[str, str]]).decode
_decode_routes = Decoder(list[Route]).decode


def _static_routes(routes: list[Route]) -> list[tuple[str, str]]:
    """Normalized routes, without link-local, loopback and multicast destinations."""
    parsed = ((ipaddress.ip_network(_prefix(route.destination)), route.nexthop) for route in routes)
    return [
        (str(destination), str(ipaddress.ip_address(hop)))
        for destination, hop in parsed
        if not (destination.is_link_local or destination.is_loopback or destination.is_multicast)
        and (":" in hop) == (destination.version == 6)
    ]


def _vxlan_id(network: PlannedNetwork) -> int | None:
    """None for networks that stay on one host: flat and local ones, and VLANs, whose physical network is unknown."""
    number = network.segmentation_id
    return number if network.network_type not in ("flat", "local", "vlan") and number and number <= MAX_VNI else None


def _pairs(port: PlannedPort) -> list[tuple[str, str]]:
    return sorted(
        ((pair.get("mac_address") or port.mac_address).lower().replace("-", ":"), _prefix(pair["ip_address"]))
        for pair in port.allowed_address_pairs
    )


@lru_cache(maxsize=65536)
def _prefix(address: str) -> str:
    return str(ipaddress.ip_network(address, strict=False))


def _dhcp_options(port: PlannedPort) -> dict[str, str]:
    """The options for IPv4."""
    return {
        str(option["opt_name"]): str(option["opt_value"])
        for option in port.extra_dhcp_opts
        if option.get("opt_value") is not None and str(option.get("ip_version", 4)) == "4"
    }


def _protocol(name: str | None, ethertype: str) -> str:
    """The protocol number. For IPv6 "icmp" means ICMPv6."""
    if not name:
        return ""
    if name in ("icmp", "1") and ethertype == "IPv6":
        return str(PROTOCOLS["ipv6-icmp"])
    return str(PROTOCOLS.get(name, name)) if name not in ("ip", "hopopt", "0") else ""
