"""Per network: a bridge, a VXLAN interface to other hosts, and the addresses and routes of the network's namespace."""

from __future__ import annotations

import ipaddress
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.commands import run, run_batch, run_json
from kilonova.hosts.drivers.libvirt.networks.names import GATEWAY, METADATA_ADDRESS, Names, gateway_mac, router_link
from kilonova.hosts.messages import WiredNetwork, WiredPort

log = logging.getLogger(__name__)

Links = dict[str, dict[str, Any]]

# By IP version of the underlay.
_VXLAN_OVERHEAD_BYTES = {4: 50, 6: 70}
_ANY_MAC = "00:00:00:00:00:00"
# IPv4 addresses of the two ends of a link between namespaces. The network with the lower id has the first.
_ROUTER_LINK_ADDRESSES = ("169.254.0.1", "169.254.0.2")


async def list_links() -> Links:
    """The host's interfaces, by name."""
    return {link["ifname"]: link for link in await run_json("ip", "-d", "-j", "link", "show")}


async def max_overlay_mtu(address: str) -> int:
    """The largest MTU of VXLAN networks without fragmentation; 0 if the host's interface is not found."""
    for link in await run_json("ip", "-j", "addr", "show"):
        if any(held.get("local") == address for held in link.get("addr_info", ())):
            return int(link["mtu"]) - _VXLAN_OVERHEAD_BYTES[ipaddress.ip_address(address).version]
    return 0


def disable_ipv6(interface: str) -> None:
    """Keep the host from sending IPv6 traffic, such as neighbour discovery, on the interface."""
    if Path(f"/proc/sys/net/ipv6/conf/{interface}").exists():
        namespaces.write_setting(f"ipv6/conf/{interface}/disable_ipv6", "1")


class Bridges:
    def __init__(self, names: Names, address: str, vxlan_port: int) -> None:
        self._names = names
        self._address = address
        self._vxlan_port = vxlan_port
        # Subports whose VLAN interface could not be created.
        self._without_vlan: set[str] = set()

    async def ensure(self, network: WiredNetwork, mtu: int, links: Links, *, br_netfilter: bool) -> None:
        """`br_netfilter`: pass packets to the host's netfilter hooks for connection tracking."""
        bridge = self._names.bridge(network.id)
        if bridge not in links:
            calls = "nf_call_iptables 1 nf_call_ip6tables 1" if br_netfilter else ""
            await run_batch("ip", [f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0 {calls}"])
            disable_ipv6(bridge)
        await run_batch("ip", [f"link set {bridge} mtu {mtu} up"] if _differs(links.get(bridge), mtu) else [])
        await self._ensure_vxlan(network, bridge, mtu, links)
        await self._ensure_gateway(network, bridge, mtu, links)
        for port in network.ports:
            if not self._has_vlan(port, links):
                await self._try_to_wire(port, bridge, links)
        await self._connect_taps(network, bridge, links)

    async def _ensure_vxlan(self, network: WiredNetwork, bridge: str, mtu: int, links: Links) -> None:
        name = self._names.vxlan(network.id)
        wanted = network.vni is not None and bool(network.peers)
        found = links.get(name)
        if found is not None and not (wanted and self._fits(found, network.vni)):
            await run("ip", "link", "del", name)
            found = None
        if not wanted:
            return
        if found is None:
            options = f"id {network.vni} local {self._address} dstport {self._vxlan_port}"
            await run_batch("ip", [f"link add {name} type vxlan {options}"])
            disable_ipv6(name)
        if _differs(found, mtu, bridge):
            await run_batch("ip", [f"link set {name} mtu {mtu} master {bridge} up"])
        await self._set_peers(name, network.peers)

    def _fits(self, link: dict[str, Any], vni: int | None) -> bool:
        data = link.get("linkinfo", {}).get("info_data", {})
        local = data.get("local") or data.get("local6")
        return bool(data.get("id") == vni and local == self._address and data.get("port") == self._vxlan_port)

    async def _set_peers(self, name: str, peers: list[str]) -> None:
        """Send broadcast and unknown unicast frames to every peer."""
        entries = await run_json("bridge", "-j", "fdb", "show", "dev", name)
        known = {entry["dst"] for entry in entries if entry.get("mac") == _ANY_MAC and "dst" in entry}
        await run_batch(
            "bridge",
            [
                *(f"fdb append {_ANY_MAC} dev {name} dst {peer}" for peer in sorted(set(peers) - known)),
                *(f"fdb del {_ANY_MAC} dev {name} dst {peer}" for peer in sorted(known - set(peers))),
            ],
        )

    async def _ensure_gateway(self, network: WiredNetwork, bridge: str, mtu: int, links: Links) -> None:
        name, namespace = self._names.gateway_veth(network.id), self._names.namespace(network.id)
        mac = gateway_mac(network.id)
        found = links.get(name)
        if found is None:
            await run_batch("ip", [f"link add {name} type veth peer name {GATEWAY} address {mac} netns {namespace}"])
            disable_ipv6(name)
        if _differs(found, mtu, bridge):
            await run_batch("ip", [f"link set {name} mtu {mtu} master {bridge} up"])
            await run_batch("ip", [f"link set {GATEWAY} mtu {mtu} up"], namespace)
            # Gateways of other hosts have the same MAC, so the entry must not move to the VXLAN port.
            await run_batch("bridge", [f"fdb replace {mac} dev {name} master static sticky"])

    def is_wired(self, port: WiredPort, links: Links) -> bool:
        """False if the port is a subport whose VLAN interface must be created."""
        return port.id in self._without_vlan or self._has_vlan(port, links)

    def _has_vlan(self, port: WiredPort, links: Links) -> bool:
        """False if the port is a subport whose VLAN interface on the parent's tap is missing or wrong."""
        parent = self._names.tap(port.parent) if port.parent else ""
        if parent not in links:
            return True  # the tap appears with the guest, and other ports have taps of their own
        found = links.get(self._names.tap(port.id), {})
        vlan = found.get("linkinfo", {}).get("info_data", {}).get("id")
        return bool(found.get("link") == parent and vlan == port.vlan and found.get("master"))

    async def _try_to_wire(self, port: WiredPort, bridge: str, links: Links) -> None:
        """A failure must not affect other ports. It is repeated with the next complete check."""
        try:
            await self._wire_subport(port, bridge, links)
        except DriverError as error:
            if port.id not in self._without_vlan:
                log.warning("subport %s has no VLAN interface: %s", port.id, error.message)
            self._without_vlan.add(port.id)
        else:
            self._without_vlan.discard(port.id)

    async def _wire_subport(self, port: WiredPort, bridge: str, links: Links) -> None:
        """Create the subport's VLAN interface. It is removed with the tap that it is on."""
        name = self._names.tap(port.id)
        if links.pop(name, None) is not None:
            await run("ip", "link", "del", name)
        await run_batch("ip", [f"link add link {self._names.tap(port.parent)} name {name} type vlan id {port.vlan}"])
        disable_ipv6(name)
        await run_batch("ip", [f"link set {name} master {bridge} up"])

    async def _connect_taps(self, network: WiredNetwork, bridge: str, links: Links) -> None:
        """Connect taps to a bridge that was recreated."""
        taps = [tap for tap in (self._names.tap(port.id) for port in network.ports) if tap in links]
        await run_batch("ip", [f"link set {tap} master {bridge}" for tap in taps if links[tap].get("master") != bridge])

    # Inside the namespace

    async def configure_addresses(self, network: WiredNetwork) -> None:
        """Set the gateways' addresses, and a route to subnets that have none."""
        namespace = self._names.namespace(network.id)
        wanted = _addresses(network)
        shown = await run_json("ip", "-n", namespace, "-j", "addr", "show", "dev", GATEWAY)
        known = {
            f"{held['local']}/{held['prefixlen']}"
            for link in shown
            for held in link.get("addr_info", ())
            # The kernel adds a link-local IPv6 address of its own. A gateway may have one, too.
            if held.get("scope") != "link"
            or ":" not in held["local"]
            or f"{held['local']}/{held['prefixlen']}" in wanted
        }
        await run_batch(
            "ip",
            [
                *(f"addr del {ip} dev {GATEWAY}" for ip in sorted(known - wanted)),
                *(f"addr add {ip} dev {GATEWAY}{' nodad' if ':' in ip else ''}" for ip in sorted(wanted - known)),
                *(f"route replace {cidr} dev {GATEWAY}" for cidr in _cidrs_without_address(network)),
            ],
            namespace,
        )
        await self._set_neighbours(network, namespace)

    async def _set_neighbours(self, network: WiredNetwork, namespace: str) -> None:
        """Set permanent entries for guests on other hosts: their ARP replies would go to their own host's gateway."""
        shown = await run_json("ip", "-n", namespace, "-j", "neigh", "show", "dev", GATEWAY, "nud", "permanent")
        known = {(entry["lladdr"], entry["dst"]) for entry in shown if "lladdr" in entry}
        wanted = set(network.neighbours)
        stale = {address for _, address in known} - {address for _, address in wanted}
        await run_batch(
            "ip",
            [
                *(f"neigh del {address} dev {GATEWAY}" for address in sorted(stale)),
                *(
                    f"neigh replace {address} lladdr {mac} dev {GATEWAY} nud permanent"
                    for mac, address in sorted(wanted - known)
                ),
            ],
            namespace,
        )

    async def join(self, network: WiredNetwork, present: set[str]) -> None:
        """Link the network's namespace to those of networks on the same router, and set the routes."""
        namespace = self._names.namespace(network.id)
        routed = [(cidr, other) for cidr, other in network.routed if other in present]
        shown = {link["ifname"] for link in await run_json("ip", "-n", namespace, "-j", "link", "show")}
        wanted = {router_link(other): other for _, other in routed}
        for name in sorted(name for name in shown if name.startswith("j") and name not in wanted):
            await run_batch("ip", [f"link del {name}"], namespace)
        for name, other in sorted(wanted.items()):
            if name not in shown:
                await self._link(network.id, other)
        await run_batch(
            "ip", [f"route replace {cidr} {_next_hop(network.id, other, cidr)}" for cidr, other in routed], namespace
        )
        await self._set_static_routes(network, {network.id, *(other for _, other in routed)})

    async def _set_static_routes(self, network: WiredNetwork, reached: set[str]) -> None:
        """Set the routers' static routes. Users write them, so a route that the kernel refuses is skipped."""
        namespace = self._names.namespace(network.id)
        wanted: dict[str, list[str]] = defaultdict(list)
        for destination, hop, other in network.routes:
            if other in reached:
                direct = f"via {hop} dev {GATEWAY} onlink"
                wanted[destination].append(direct if other == network.id else _next_hop(network.id, other, hop))
        lines = []
        for family, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
            shown = await run_json("ip", family, "-n", namespace, "-j", "route", "show", "proto", "static")
            known = {everything if route["dst"] == "default" else _prefix(route["dst"]) for route in shown}
            lines += [f"route del {prefix} proto static" for prefix in sorted(known - wanted.keys())]
        for destination, hops in sorted(wanted.items()):
            unique = sorted(set(hops))
            next_hops = " ".join(f"nexthop {hop}" for hop in unique) if len(unique) > 1 else unique[0]
            lines.append(f"route replace {destination} proto static {next_hops}")
        if lines:
            try:
                await run("ip", "-force", "-n", namespace, "-batch", "-", given="\n".join([*lines, ""]))
            except DriverError as error:
                log.warning("not all static routes of network %s could be set: %s", network.id, error.message)

    async def _link(self, network_id: str, other: str) -> None:
        first, second = sorted((network_id, other))
        first_namespace, second_namespace = self._names.namespace(first), self._names.namespace(second)
        pair = f"{router_link(second)} type veth peer name {router_link(first)} netns {second_namespace}"
        await run_batch("ip", [f"link add {pair}"], first_namespace)
        for namespace, name, end, own in (
            (first_namespace, router_link(second), _ROUTER_LINK_ADDRESSES[0], first),
            (second_namespace, router_link(first), _ROUTER_LINK_ADDRESSES[1], second),
        ):
            lines = [f"addr add {end}/32 dev {name}", f"addr add {_router_link_address(own)}/64 dev {name} nodad"]
            await run_batch("ip", [f"link set {name} up", *lines], namespace)


def _next_hop(network_id: str, other: str, address: str) -> str:
    """The next hop from one network to the other, in the IP version of the address."""
    via = _router_link_address(other) if ":" in address else _ROUTER_LINK_ADDRESSES[1 if network_id < other else 0]
    return f"via {via} dev {router_link(other)} onlink"


def _prefix(text: str) -> str:
    return str(ipaddress.ip_network(text))


def _router_link_address(network_id: str) -> str:
    return str(ipaddress.ip_address(f"fe80::{network_id[:4]}:{network_id[4:8]}:{network_id[9:13]}"))


def _addresses(network: WiredNetwork) -> set[str]:
    """The addresses of the namespace, with the prefix length of the subnet that has them.

    A gateway outside its subnet may be an address of another subnet, or of none. In an IPv6 subnet without an address
    the namespace gets the first one, which no port can have: dnsmasq advertises only the interface's own prefixes.
    """
    cidrs = [ipaddress.ip_network(subnet.cidr) for subnet in network.subnets]
    held = {ipaddress.ip_address(address) for subnet in network.subnets for address in subnet.held}
    for cidr in cidrs:
        if cidr.version == 6 and cidr.prefixlen < 127 and not any(address in cidr for address in held):
            held.add(cidr.network_address)
    lengths = {each: next((cidr.prefixlen for cidr in cidrs if each in cidr), each.max_prefixlen) for each in held}
    return {f"{METADATA_ADDRESS}/32", *(f"{address}/{length}" for address, length in lengths.items())}


def _cidrs_without_address(network: WiredNetwork) -> list[str]:
    """The subnets that no address of the namespace routes to."""
    routed = {str(ipaddress.ip_interface(address).network) for address in _addresses(network)}
    return [subnet.cidr for subnet in network.subnets if subnet.cidr not in routed]


def _differs(link: dict[str, Any] | None, mtu: int, master: str | None = None) -> bool:
    return link is None or link["mtu"] != mtu or "UP" not in link["flags"] or link.get("master") != master
