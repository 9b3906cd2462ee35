"""A bridge per network, its VXLAN to the other hosts, and the link to the network's namespace."""

from __future__ import annotations

import ipaddress
import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.commands import batch, look, run
from kilonova.hosts.drivers.libvirt.networks.names import GATE, METADATA, Names, gateway_mac, joint
from kilonova.hosts.messages import WiredNetwork

log = logging.getLogger(__name__)

Links = dict[str, dict[str, Any]]

# What VXLAN puts around a frame, over IPv4 and IPv6.
_ROOM = {4: 50, 6: 70}
_EVERYBODY = "00:00:00:00:00:00"
# How the two namespaces of a joint call each other: the lower network id is the first.
_JOINT_ENDS = ("169.254.0.1", "169.254.0.2")


async def links() -> Links:
    """The host's interfaces, by name."""
    return {link["ifname"]: link for link in await look("ip", "-d", "-j", "link", "show")}


async def underlay_mtu(address: str) -> int:
    """How large a network's packets may be to go to other hosts in one piece; 0 where nobody knows."""
    for link in await look("ip", "-j", "addr", "show"):
        if any(held.get("local") == address for held in link.get("addr_info", ())):
            return int(link["mtu"]) - _ROOM[ipaddress.ip_address(address).version]
    return 0


def quiet(interface: str) -> None:
    """The host itself says nothing on this interface."""
    if Path(f"/proc/sys/net/ipv6/conf/{interface}").exists():
        namespaces.write_setting(f"ipv6/conf/{interface}/disable_ipv6", "1")


class Bridges:
    def __init__(self, names: Names, address: str, vxlan_port: int) -> None:
        self._names = names
        self._address = address
        self._vxlan_port = vxlan_port

    async def ensure(self, network: WiredNetwork, mtu: int, there: Links, *, handed: bool) -> None:
        """`handed`: whether packets have to go through the host's own hooks for their connections to be known."""
        bridge = self._names.bridge(network.id)
        if bridge not in there:
            calls = "nf_call_iptables 1 nf_call_ip6tables 1" if handed else ""
            await batch("ip", [f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0 {calls}"])
            quiet(bridge)
        await batch("ip", [f"link set {bridge} mtu {mtu} up"] if _differs(there.get(bridge), mtu) else [])
        await self._vxlan(network, bridge, mtu, there)
        await self._gate(network, bridge, mtu, there)
        await self._taps(network, bridge, there)

    async def _vxlan(self, network: WiredNetwork, bridge: str, mtu: int, there: Links) -> None:
        name = self._names.vxlan(network.id)
        wanted = network.vni is not None and bool(network.peers)
        found = there.get(name)
        if found is not None and not (wanted and self._fits(found, network.vni)):
            await run("ip", "link", "del", name)
            found = None
        if not wanted:
            return
        if found is None:
            about = f"id {network.vni} local {self._address} dstport {self._vxlan_port}"
            await batch("ip", [f"link add {name} type vxlan {about}"])
            quiet(name)
        if _differs(found, mtu, bridge):
            await batch("ip", [f"link set {name} mtu {mtu} master {bridge} up"])
        await self._flood(name, network.peers)

    def _fits(self, link: dict[str, Any], vni: int | None) -> bool:
        data = link.get("linkinfo", {}).get("info_data", {})
        local = data.get("local") or data.get("local6")
        return bool(data.get("id") == vni and local == self._address and data.get("port") == self._vxlan_port)

    async def _flood(self, name: str, peers: list[str]) -> None:
        """What is for everybody or for nobody known goes to every peer."""
        entries = await look("bridge", "-j", "fdb", "show", "dev", name)
        known = {entry["dst"] for entry in entries if entry.get("mac") == _EVERYBODY and "dst" in entry}
        await batch(
            "bridge",
            [
                *(f"fdb append {_EVERYBODY} dev {name} dst {peer}" for peer in sorted(set(peers) - known)),
                *(f"fdb del {_EVERYBODY} dev {name} dst {peer}" for peer in sorted(known - set(peers))),
            ],
        )

    async def _gate(self, network: WiredNetwork, bridge: str, mtu: int, there: Links) -> None:
        name, space, mac = self._names.gate(network.id), self._names.space(network.id), gateway_mac(network.id)
        found = there.get(name)
        if found is None:
            await batch("ip", [f"link add {name} type veth peer name {GATE} address {mac} netns {space}"])
            quiet(name)
        if _differs(found, mtu, bridge):
            await batch("ip", [f"link set {name} mtu {mtu} master {bridge} up"])
            await batch("ip", [f"link set {GATE} mtu {mtu} up"], space)
            # Other hosts' gateways have the same MAC: that this one is here must not be forgotten.
            await batch("bridge", [f"fdb replace {mac} dev {name} master static sticky"])

    async def _taps(self, network: WiredNetwork, bridge: str, there: Links) -> None:
        """A guest whose bridge was made anew is plugged in again."""
        taps = [tap for tap in (self._names.tap(port.id) for port in network.ports) if tap in there]
        await batch("ip", [f"link set {tap} master {bridge}" for tap in taps if there[tap].get("master") != bridge])

    # Inside the namespace

    async def address(self, network: WiredNetwork) -> None:
        """The gateways' addresses, and what leads to guests where there are none."""
        space = self._names.space(network.id)
        wanted = _addresses(network)
        shown = await look("ip", "-n", space, "-j", "addr", "show", "dev", GATE)
        known = {
            f"{held['local']}/{held['prefixlen']}"
            for link in shown
            for held in link.get("addr_info", ())
            if held.get("scope") != "link" or held["local"].startswith("169.254.")
        }
        await batch(
            "ip",
            [
                *(f"addr del {one} dev {GATE}" for one in sorted(known - wanted)),
                *(f"addr add {one} dev {GATE}{' nodad' if ':' in one else ''}" for one in sorted(wanted - known)),
                *(f"route replace {one.cidr} dev {GATE}" for one in network.subnets if not one.held),
            ],
            space,
        )
        await self._neighbours(network, space)

    async def _neighbours(self, network: WiredNetwork, space: str) -> None:
        """Who is on other hosts cannot be asked for, because answers go to their own gateway."""
        shown = await look("ip", "-n", space, "-j", "neigh", "show", "dev", GATE, "nud", "permanent")
        known = {(entry["lladdr"], entry["dst"]) for entry in shown if "lladdr" in entry}
        wanted = set(network.neighbours)
        gone = {address for _, address in known} - {address for _, address in wanted}
        await batch(
            "ip",
            [
                *(f"neigh del {address} dev {GATE}" for address in sorted(gone)),
                *(
                    f"neigh replace {address} lladdr {mac} dev {GATE} nud permanent"
                    for mac, address in sorted(wanted - known)
                ),
            ],
            space,
        )

    async def join(self, network: WiredNetwork, present: set[str]) -> None:
        """Links to the namespaces of networks that a router joins to this one; whoever comes first makes both ends."""
        space = self._names.space(network.id)
        routed = [(cidr, other) for cidr, other in network.routed if other in present]
        shown = {link["ifname"] for link in await look("ip", "-n", space, "-j", "link", "show")}
        wanted = {joint(other): other for _, other in routed}
        for name in sorted(name for name in shown if name.startswith("j") and name not in wanted):
            await batch("ip", [f"link del {name}"], space)
        for name, other in sorted(wanted.items()):
            if name not in shown:
                await self._link(network.id, other)
        await batch(
            "ip", [f"route replace {cidr} {_towards(network.id, other, cidr)}" for cidr, other in routed], space
        )
        await self._routes(network, {network.id, *(other for _, other in routed)})

    async def _routes(self, network: WiredNetwork, reached: set[str]) -> None:
        """The static ones of routers. People write them: one that the kernel refuses hinders nothing else."""
        space = self._names.space(network.id)
        wanted: dict[str, list[str]] = defaultdict(list)
        for destination, hop, other in network.routes:
            if other in reached:
                near = f"via {hop} dev {GATE} onlink"
                wanted[destination].append(near if other == network.id else _towards(network.id, other, hop))
        lines = []
        for family, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
            shown = await look("ip", family, "-n", space, "-j", "route", "show", "proto", "static")
            known = {everything if route["dst"] == "default" else _prefix(route["dst"]) for route in shown}
            lines += [f"route del {one} proto static" for one in sorted(known - wanted.keys())]
        for destination, hops in sorted(wanted.items()):
            # Two networks may be the way to one hop, but one way is enough.
            ways = sorted(set(hops))
            several = " ".join(f"nexthop {way}" for way in ways) if len(ways) > 1 else ways[0]
            lines.append(f"route replace {destination} proto static {several}")
        if lines:
            try:
                await run("ip", "-force", "-n", space, "-batch", "-", given="\n".join([*lines, ""]))
            except DriverError as error:
                log.warning("not all routes of network %s are made: %s", network.id, error.message)

    async def _link(self, one: str, other: str) -> None:
        first, second = sorted((one, other))
        here, there = self._names.space(first), self._names.space(second)
        await batch("ip", [f"link add {joint(second)} type veth peer name {joint(first)} netns {there}"], here)
        for space, name, end, own in (
            (here, joint(second), _JOINT_ENDS[0], first),
            (there, joint(first), _JOINT_ENDS[1], second),
        ):
            lines = [f"addr add {end}/32 dev {name}", f"addr add {_joint_address(own)}/64 dev {name} nodad"]
            await batch("ip", [f"link set {name} up", *lines], space)


def _towards(one: str, other: str, address: str) -> str:
    """The way by the joint of two networks, in the family of the address."""
    via = _joint_address(other) if ":" in address else _JOINT_ENDS[1 if one < other else 0]
    return f"via {via} dev {joint(other)} onlink"


def _prefix(text: str) -> str:
    return str(ipaddress.ip_network(text))


def _joint_address(network_id: str) -> str:
    return str(ipaddress.ip_address(f"fe80::{network_id[:4]}:{network_id[4:8]}:{network_id[9:13]}"))


def _addresses(network: WiredNetwork) -> set[str]:
    held = {f"{METADATA}/32"}
    for subnet in network.subnets:
        cidr = ipaddress.ip_network(subnet.cidr)
        for one in map(ipaddress.ip_address, subnet.held):
            held.add(f"{one}/{cidr.prefixlen if one in cidr else cidr.max_prefixlen}")
    return held


def _differs(link: dict[str, Any] | None, mtu: int, master: str | None = None) -> bool:
    return link is None or link["mtu"] != mtu or "UP" not in link["flags"] or link.get("master") != master
