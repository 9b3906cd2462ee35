"""What hosts shall have of networks, computed from the tables for all of them at once.

A network is on a host that has ports of it, or of another network that a router joins to it: traffic between networks
is routed on the host that it comes from. See docs/decisions/0018-networks-on-hosts.md.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from kilonova import clock
from kilonova.hosts.messages import Firewall, NetworkPlan, WiredNetwork, WiredPort, WiredSubnet
from kilonova.network.groups.rules import PROTOCOLS, normalized
from kilonova.store import Reader, Row

MAX_VNI = 2**24 - 1


class Host(NamedTuple):
    """A host that makes networks, and where its peers reach it."""

    name: str
    address: str


async def networked_hosts(reader: Reader) -> list[Host]:
    rows = await reader.fetch("SELECT host, host_ip FROM hypervisors WHERE networked ORDER BY host")
    return [Host(row["host"], row["host_ip"]) for row in rows]


async def compute(reader: Reader, hosts: Sequence[Host]) -> dict[str, NetworkPlan]:
    """The plan of each host; that of a host without ports is empty."""
    read_at = clock.now()
    world = await _read(reader, [host.name for host in hosts])
    present = {host.name: world.networks_on(host.name) for host in hosts}
    addresses = {host.name: host.address for host in hosts}
    where: dict[str, set[str]] = defaultdict(set)
    for host, networks in present.items():
        for network_id in networks:
            where[network_id].add(addresses[host])
    return {
        host: world.plan(host, {one: where[one] - {addresses[host]} for one in networks}, read_at)
        for host, networks in present.items()
    }


class World:
    """What was read of ports on these hosts, and of everything that they depend on."""

    def __init__(self) -> None:
        self.networks: dict[str, Row] = {}
        self.subnets: dict[str, list[Row]] = defaultdict(list)
        self.ports: dict[str, Row] = {}
        self.hosts_of: dict[str, set[str]] = defaultdict(set)
        self.ports_on: dict[str, set[str]] = defaultdict(set)
        self.ports_of: dict[str, list[str]] = defaultdict(list)
        self.addresses: dict[str, list[str]] = defaultdict(list)
        # Of routers: their networks, the networks' routers, and the addresses they have in a subnet.
        self.joined: dict[str, set[str]] = defaultdict(set)
        self.routers: dict[str, set[str]] = defaultdict(set)
        self.interfaces: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.outward: set[str] = set()
        self.static: dict[str, list[tuple[str, str]]] = {}
        self.foreign_gateways: set[str] = set()
        self.groups: dict[str, list[str]] = defaultdict(list)
        self.stateless: set[str] = set()
        self.rules: dict[str, list[Row]] = defaultdict(list)
        self.members: dict[str, set[str]] = defaultdict(set)
        self.floating: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._firewalls: dict[tuple[str, ...], list[Firewall]] = {}

    def plan(self, host: str, peers: dict[str, set[str]], read_at: float) -> NetworkPlan:
        """`peers`: of each network on the host."""
        networks = [self.network(one, host, peers[one]) for one in sorted(peers)]
        named = {rule.group for network in networks for port in network.ports for rule in port.rules} - {""}
        groups = {one: sorted(self.members[one]) for one in sorted(named)}
        return NetworkPlan(read_at=read_at, networks=networks, groups=groups)

    def networks_on(self, host: str) -> set[str]:
        direct = {self.ports[port_id]["network_id"] for port_id in self.ports_on[host]}
        routers = {router for network_id in direct for router in self.routers[network_id]}
        joined = {network_id for router in routers for network_id in self.joined[router]}
        return {network_id for network_id in direct | joined if network_id in self.networks}

    def network(self, network_id: str, host: str, peers: set[str]) -> WiredNetwork:
        row = self.networks[network_id]
        here = [self.ports[port_id] for port_id in self.ports_of[network_id] if host in self.hosts_of[port_id]]
        routed = self._routed(network_id)
        routes = self._routes(network_id, {cidr for cidr, _ in routed})
        return WiredNetwork(
            id=network_id,
            vni=_vni(row),
            mtu=row["mtu"],
            subnets=[self._subnet(subnet) for subnet in self.subnets[network_id]],
            ports=[self._port(port, row["admin_state_up"]) for port in here],
            peers=sorted(peers) if _vni(row) is not None else [],
            nat=bool(self.routers[network_id] & self.outward),
            floating=sorted(pair for port in here if port["host_id"] == host for pair in self.floating[port["id"]]),
            routed=routed,
            routes=routes,
            neighbours=self._neighbours(network_id, host) if routed or routes else [],
        )

    def _routed(self, network_id: str) -> list[tuple[str, str]]:
        others = {other for router in self.routers[network_id] for other in self.joined[router]} - {network_id}
        return sorted((subnet["cidr"], other) for other in others for subnet in self._connected(network_id, other))

    def _connected(self, network_id: str, other: str) -> list[Row]:
        """The subnets of the other network that a router of this one has an interface in."""
        routers = self.routers[network_id]
        return [
            subnet
            for subnet in self.subnets[other]
            if any(router in routers for router, _ in self.interfaces[subnet["id"]])
        ]

    def _routes(self, network_id: str, routed: set[str]) -> list[tuple[str, str, str]]:
        """The static routes of the network's routers, but for those to where they are connected anyway."""
        connected = {*routed, *(subnet["cidr"] for subnet in self.subnets[network_id])}
        return sorted(
            (destination, hop, other)
            for router in self.routers[network_id]
            for destination, hop in self.static[router]
            if destination not in connected and (other := self._network_of(router, hop))
        )

    def _network_of(self, router: str, hop: str) -> str:
        """That network of the router which the hop is in. Hops in external networks are their hosts' to know."""
        address = ipaddress.ip_address(hop)
        for network_id in sorted(self.joined[router]):
            for subnet in self.subnets[network_id]:
                own = [held for one, held in self.interfaces[subnet["id"]] if one == router]
                if own and hop not in own and address in ipaddress.ip_network(subnet["cidr"]):
                    return network_id
        return ""

    def _neighbours(self, network_id: str, host: str) -> list[tuple[str, str]]:
        ports = [self.ports[port_id] for port_id in self.ports_of[network_id] if host not in self.hosts_of[port_id]]
        return sorted((port["mac_address"], address) for port in ports for address in self.addresses[port["id"]])

    def _subnet(self, row: Row) -> WiredSubnet:
        gateway = row["gateway_ip"] or ""
        held = {address for _, address in self.interfaces[row["id"]]}
        if gateway and row["id"] not in self.foreign_gateways:
            held.add(gateway)
        return WiredSubnet(
            id=row["id"],
            cidr=row["cidr"],
            gateway=gateway,
            dhcp=row["enable_dhcp"],
            dns=orjson.loads(row["dns_nameservers"]),
            routes=[(_prefix(route["destination"]), route["nexthop"]) for route in orjson.loads(row["host_routes"])],
            held=sorted(held),
            mode=(row["ipv6_ra_mode"] or row["ipv6_address_mode"] or "") if row["ip_version"] == 6 else "",
        )

    def _port(self, row: Row, network_is_up: bool) -> WiredPort:
        secured = row["port_security_enabled"]
        return WiredPort(
            id=row["id"],
            guest_id=row["device_id"],
            mac=row["mac_address"],
            addresses=self.addresses[row["id"]],
            is_up=row["admin_state_up"] and network_is_up,
            secured=secured,
            pairs=_pairs(row) if secured else [],
            rules=self._firewall(row["id"]) if secured else [],
            dhcp_options=_dhcp_options(row),
        )

    def _firewall(self, port_id: str) -> list[Firewall]:
        """In an order of its own, so that equal rules make equal plans. Most ports share their groups with others."""
        groups = tuple(sorted(self.groups[port_id]))
        if groups not in self._firewalls:
            said = {self._said(rule) for group_id in groups for rule in self.rules[group_id]}
            self._firewalls[groups] = [_firewall(*rule) for rule in sorted(said, key=repr)]
        return self._firewalls[groups]

    def _said(self, rule: Row) -> tuple[Any, ...]:
        protocol = _protocol(rule["protocol"], rule["ethertype"])
        ports = rule["port_range_min"], rule["port_range_max"]
        remote = normalized(rule["remote_ip_prefix"]) or "", rule["remote_group_id"] or ""
        stateful = rule["security_group_id"] not in self.stateless
        return rule["direction"], rule["ethertype"], protocol, *ports, *remote, stateful


async def _read(reader: Reader, hosts: list[str]) -> World:
    world = World()
    await _read_ports(reader, world, hosts)
    if not world.ports:
        return world
    await _read_routers(reader, world)
    await _read_networks(reader, world)
    await _read_groups(reader, world)
    for row in await reader.fetch(
        "SELECT port_id, floating_ip_address, fixed_ip_address FROM floating_ips WHERE port_id = ANY($1)",
        list(world.ports),
    ):
        world.floating[row["port_id"]].append((row["floating_ip_address"], row["fixed_ip_address"]))
    return world


_PORTS = """
SELECT id, network_id, mac_address, admin_state_up, port_security_enabled, device_id, host_id,
       allowed_address_pairs, extra_dhcp_opts
FROM ports
WHERE (host_id = ANY($1) OR id IN (SELECT port_id FROM standby_bindings WHERE host = ANY($1)))
  AND vnic_type = 'normal' AND device_owner NOT LIKE 'network:%'
ORDER BY id
"""


async def _read_ports(reader: Reader, world: World, hosts: list[str]) -> None:
    known = set(hosts)
    for row in await reader.fetch(_PORTS, hosts):
        world.ports[row["id"]] = row
        world.ports_of[row["network_id"]].append(row["id"])
        if row["host_id"] in known:
            world.hosts_of[row["id"]].add(row["host_id"])
    for row in await reader.fetch("SELECT port_id, host FROM standby_bindings WHERE host = ANY($1)", hosts):
        if row["port_id"] in world.ports:
            world.hosts_of[row["port_id"]].add(row["host"])
    for port_id, names in world.hosts_of.items():
        for host in names:
            world.ports_on[host].add(port_id)
    for row in await reader.fetch(
        "SELECT port_id, ip_address FROM port_addresses WHERE port_id = ANY($1) ORDER BY port_id, position",
        list(world.ports),
    ):
        world.addresses[row["port_id"]].append(row["ip_address"])


# The routers that are at one of the networks, with all their interfaces. Networks that every project may use are led
# by routers of their own project and by the one that has the gateway's address: no other has a say in where their
# guests' packets go.
_INTERFACES = """
SELECT r.id, r.gateway_port_id, r.enable_snat, r.routes, p.network_id, a.subnet_id, a.ip_address,
       (NOT n.shared OR n.project_id = r.project_id OR a.ip_address = s.gateway_ip) AS leads
FROM routers r
JOIN ports p ON p.device_id = r.id AND p.device_owner = 'network:router_interface'
JOIN port_addresses a ON a.port_id = p.id
JOIN networks n ON n.id = p.network_id
JOIN subnets s ON s.id = a.subnet_id
WHERE r.admin_state_up AND r.id IN (
    SELECT device_id FROM ports WHERE network_id = ANY($1) AND device_owner = 'network:router_interface')
ORDER BY r.id, a.subnet_id, a.ip_address
"""


async def _read_routers(reader: Reader, world: World) -> None:
    for row in await reader.fetch(_INTERFACES, sorted(world.ports_of)):
        world.interfaces[row["subnet_id"]].append((row["id"], row["ip_address"]))
        if not row["leads"]:
            continue
        world.joined[row["id"]].add(row["network_id"])
        world.routers[row["network_id"]].add(row["id"])
        if row["id"] not in world.static:
            world.static[row["id"]] = _static(row["routes"])
        if row["gateway_port_id"] and row["enable_snat"]:
            world.outward.add(row["id"])


async def _read_networks(reader: Reader, world: World) -> None:
    wanted = sorted({*world.ports_of, *(network for networks in world.joined.values() for network in networks)})
    sql = "SELECT id, mtu, network_type, segmentation_id, admin_state_up FROM networks WHERE id = ANY($1)"
    world.networks = {row["id"]: row for row in await reader.fetch(sql, wanted)}
    for row in await reader.fetch("SELECT * FROM subnets WHERE network_id = ANY($1) ORDER BY ip_version, id", wanted):
        world.subnets[row["network_id"]].append(row)
    # A guest may be the gateway of its subnet: then no host is.
    for row in await reader.fetch(
        "SELECT s.id FROM subnets s JOIN port_addresses a ON a.subnet_id = s.id AND a.ip_address = s.gateway_ip "
        "JOIN ports p ON p.id = a.port_id "
        "WHERE s.network_id = ANY($1) AND p.device_owner <> 'network:router_interface'",
        wanted,
    ):
        world.foreign_gateways.add(row["id"])


_MEMBERS = """
SELECT g.security_group_id, p.allowed_address_pairs, a.ip_address
FROM port_security_groups g JOIN ports p ON p.id = g.port_id LEFT JOIN port_addresses a ON a.port_id = p.id
WHERE g.security_group_id = ANY($1)
"""


async def _read_groups(reader: Reader, world: World) -> None:
    for row in await reader.fetch(
        "SELECT port_id, security_group_id FROM port_security_groups WHERE port_id = ANY($1)", list(world.ports)
    ):
        world.groups[row["port_id"]].append(row["security_group_id"])
    groups = sorted({group_id for found in world.groups.values() for group_id in found})
    stateless = await reader.fetch("SELECT id FROM security_groups WHERE id = ANY($1) AND NOT stateful", groups)
    world.stateless = {row["id"] for row in stateless}
    for row in await reader.fetch("SELECT * FROM security_group_rules WHERE security_group_id = ANY($1)", groups):
        world.rules[row["security_group_id"]].append(row)
    remote = {rule["remote_group_id"] for rules in world.rules.values() for rule in rules} - {None}
    for row in await reader.fetch(_MEMBERS, sorted(remote)) if remote else ():
        found = world.members[row["security_group_id"]]
        if row["ip_address"]:
            found.add(_prefix(row["ip_address"]))
        found.update(_prefix(pair["ip_address"]) for pair in orjson.loads(row["allowed_address_pairs"]))


def _firewall(
    direction: Any, ethertype: Any, protocol: str, low: Any, high: Any, prefix: str, group: str, stateful: bool
) -> Firewall:
    return Firewall(
        direction=direction,
        ethertype=ethertype,
        protocol=protocol,
        port_min=low,
        port_max=high,
        remotes=[prefix] if prefix else [],
        group=group,
        stateful=stateful,
    )


def _static(routes: str) -> list[tuple[str, str]]:
    """Routes as people wrote them, but for those to what every link has for itself."""
    written = ((ipaddress.ip_network(_prefix(one["destination"])), one["nexthop"]) for one in orjson.loads(routes))
    return [
        (str(destination), str(ipaddress.ip_address(hop)))
        for destination, hop in written
        if not (destination.is_link_local or destination.is_loopback or destination.is_multicast)
        and (":" in hop) == (destination.version == 6)
    ]


def _vni(row: Row) -> int | None:
    """Flat and local networks stay on their host; so do VLANs, whose wires nobody told us of."""
    number = row["segmentation_id"]
    return number if row["network_type"] not in ("flat", "local", "vlan") and number and number <= MAX_VNI else None


def _pairs(row: Row) -> list[tuple[str, str]]:
    return sorted(
        ((pair.get("mac_address") or row["mac_address"]).lower().replace("-", ":"), _prefix(pair["ip_address"]))
        for pair in orjson.loads(row["allowed_address_pairs"])
    )


@lru_cache(maxsize=65536)
def _prefix(address: str) -> str:
    return str(ipaddress.ip_network(address, strict=False))


def _dhcp_options(row: Row) -> dict[str, str]:
    """Those for IPv4."""
    return {
        option["opt_name"]: option["opt_value"]
        for option in orjson.loads(row["extra_dhcp_opts"])
        if option.get("opt_value") is not None and str(option.get("ip_version", 4)) == "4"
    }


def _protocol(name: str | None, ethertype: str) -> str:
    """Its number. Of IPv6 "icmp" is ICMPv6, as clients mean it."""
    if not name:
        return ""
    if name in ("icmp", "1") and ethertype == "IPv6":
        return str(PROTOCOLS["ipv6-icmp"])
    return str(PROTOCOLS.get(name, name)) if name not in ("ip", "hopopt", "0") else ""
