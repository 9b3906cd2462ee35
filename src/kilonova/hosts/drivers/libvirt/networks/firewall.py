"""Security groups and anti-spoofing with nftables on the bridges.

One script replaces all rules in one transaction. A bridge forwards packets between guests, and between guests and their
network's namespace. They pass the sender's egress chains, then the receiver's ingress chain. A port's chain returns for
permitted packets and ends with a drop.

With nf_conntrack_bridge the bridge family tracks connections itself. Without it bridges pass packets to the host's
hooks (br_netfilter), which track connections and mark packets of established ones.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks.commands import run
from kilonova.hosts.drivers.libvirt.networks.names import METADATA_ADDRESS, Names, gateway_mac
from kilonova.hosts.messages import FirewallRule, NetworkPlan, WiredNetwork, WiredPort

log = logging.getLogger(__name__)

_ESTABLISHED_MARK = "0x6b6e0001"
# Before br_netfilter: rules with its own priority, 0, may be skipped.
_PRIORITY = "priority -200"
_IP = {"IPv4": "ip", "IPv6": "ip6"}
_ETHERTYPES = {4: "IPv4", 6: "IPv6"}
_WITH_PORTS = {"6": "tcp", "17": "udp", "33": "dccp", "132": "sctp", "136": "udplite"}
_ICMP = {"1": "icmp", "58": "icmpv6"}
# ICMPv6 types of neighbour discovery except redirects, and of multicast listener discovery.
_NEIGHBOUR_DISCOVERY = "{ 130, 131, 132, 133, 135, 136, 143 }"
# ICMP types that report undelivered packets.
_ICMP_ERRORS, _ICMPV6_ERRORS = "{ 3, 11, 12 }", "{ 1, 2, 3, 4 }"
_UNICAST = "ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00"

_BR_NETFILTER = Path("/proc/sys/net/bridge")
_CONNTRACK_PROBE = """
table bridge {table}_probe {{
    chain probe {{
        type filter hook forward priority -200; policy accept;
        ct state established accept
    }}
}}
delete table bridge {table}_probe
"""


async def has_bridge_conntrack(names: Names) -> bool:
    """Whether the kernel has nf_conntrack_bridge. Raises DriverError if it has no br_netfilter either."""
    with suppress(DriverError):
        await run("nft", "-f", "-", given=_CONNTRACK_PROBE.format(table=names.table))
        return True
    if not _BR_NETFILTER.exists():
        await run("modprobe", "br_netfilter", check=False)
    if not _BR_NETFILTER.exists():
        raise DriverError("the kernel has neither nf_conntrack_bridge nor br_netfilter: security groups need one")
    return False


def build_ruleset(plan: NetworkPlan, names: Names, *, bridge_conntrack: bool) -> str:
    """The nftables script. `bridge_conntrack`: the kernel has nf_conntrack_bridge."""
    marking = () if bridge_conntrack else _marking_table(plan, names)
    return "\n".join([*_bridge_table(plan, names, bridge_conntrack), *marking, ""])


def build_removal(names: Names, *, bridge_conntrack: bool) -> str:
    families = ("bridge",) if bridge_conntrack else ("bridge", "inet")
    return "\n".join(f"table {family} {names.table} {{ }}\ndelete table {family} {names.table}" for family in families)


def _replace_table(family: str, table: str) -> list[str]:
    """Delete the table and begin a new one. A table must exist to be deleted, so it is added first."""
    return [f"table {family} {table} {{", "}", f"delete table {family} {table}", f"table {family} {table} {{"]


def _chain(name: str, lines: Iterable[str], hook: str = "") -> list[str]:
    begin = [f"        type filter hook {hook}; policy accept;"] if hook else []
    return [f"    chain {name} {{", *begin, *(f"        {line}" for line in lines), "    }"]


# Connection tracking


def conntrack_zone(network_id: str) -> int:
    """The connection tracking zone of a network: networks may have overlapping addresses."""
    return 1 + int.from_bytes(hashlib.sha256(network_id.encode()).digest()[:4]) % 65535


def _marking_table(plan: NetworkPlan, names: Names) -> Iterator[str]:
    bridges = names.wildcard("b")
    yield from _replace_table("inet", names.table)
    zones = [
        f'iifname "{names.bridge(network.id)}" ct zone set {conntrack_zone(network.id)}' for network in plan.networks
    ]
    yield from _chain("zones", zones, "prerouting priority -350")
    marks = [
        f'iifname "{bridges}" meta mark set 0',
        f'iifname "{bridges}" ct state established,related meta mark set {_ESTABLISHED_MARK}',
    ]
    yield from _chain("marks", marks, "prerouting priority -150")
    yield "}"


# Rules of the bridges


def _bridge_table(plan: NetworkPlan, names: Names, bridge_conntrack: bool) -> Iterator[str]:
    groups = _GroupSets(plan.groups)
    known = "ct state established,related" if bridge_conntrack else f"meta mark {_ESTABLISHED_MARK}"
    yield from _replace_table("bridge", names.table)
    if bridge_conntrack:
        yield from _chain("zones", _bridge_zones(plan, names), "prerouting priority -350")
    ports = [(network, port) for network in plan.networks for port in network.ports]
    lines = [
        line
        for _, port in ports
        for line in (*_egress_chains(port, names, known, groups), *_ingress_chain(port, names, known, groups))
    ]
    yield from groups.sets()
    yield from lines
    yield from _chain("between_hosts", _between_hosts(plan, names))
    yield from _chain("forward", _forward(ports, names), f"forward {_PRIORITY}")
    # The host itself does not take part in its guests' networks.
    for hook, side in (("input", "iifname"), ("output", "oifname")):
        yield from _chain(hook, [f'{side} "{names.wildcard(letter)}" drop' for letter in "tgv"], f"{hook} {_PRIORITY}")
    yield "}"


def _bridge_zones(plan: NetworkPlan, names: Names) -> Iterator[str]:
    for network in plan.networks:
        taps = [names.tap(port.id) for port in network.ports]
        members = ", ".join(f'"{name}"' for name in [names.gateway_veth(network.id), names.vxlan(network.id), *taps])
        yield f"iifname {{ {members} }} ct zone set {conntrack_zone(network.id)}"


def _forward(ports: list[tuple[WiredNetwork, WiredPort]], names: Names) -> Iterator[str]:
    taps = [names.tap(port.id) for _, port in ports]
    yield from _jumps(taps, names, "iifname", "from")
    yield "jump between_hosts"
    yield from _jumps(taps, names, "oifname", "to")


def _jumps(taps: list[str], names: Names, side: str, chain: str) -> Iterator[str]:
    """Jump to the chain of the tap, and drop packets of taps without a port."""
    if not taps:
        yield f'{side} "{names.wildcard("t")}" drop'
        return
    yield f"{side} vmap {{ " + ", ".join(f'"{tap}" : jump {chain}_{tap}' for tap in taps) + " }"
    known = ", ".join(f'"{tap}"' for tap in taps)
    yield f'{side} "{names.wildcard("t")}" {side} != {{ {known} }} drop'


def _between_hosts(plan: NetworkPlan, names: Names) -> Iterator[str]:
    """Every host has its own gateway, DHCP and metadata service, so their packets must not leave the host."""
    tunnels, gates = names.wildcard("v"), names.wildcard("g")
    yield f'iifname "{tunnels}" oifname "{gates}" drop'
    yield f'iifname "{gates}" oifname "{tunnels}" ether type arp drop'
    yield f'iifname "{gates}" oifname "{tunnels}" icmpv6 type {{ 133, 134, 135, 136, 137 }} drop'
    yield f'iifname "{gates}" oifname "{tunnels}" ether daddr & 01:00:00:00:00:00 != 00:00:00:00:00:00 drop'
    yield f'oifname "{tunnels}" udp dport {{ 67, 547 }} drop'
    yield f'oifname "{tunnels}" icmpv6 type 133 drop'
    for network in plan.networks:
        tunnel = names.vxlan(network.id)
        yield f'oifname "{tunnel}" ether daddr {gateway_mac(network.id)} drop'
        held = [address for subnet in network.subnets for address in subnet.held]
        ipv4 = ", ".join([METADATA_ADDRESS, *(address for address in held if ":" not in address)])
        yield f'oifname "{tunnel}" arp daddr ip {{ {ipv4} }} drop'
        for address in held:
            if ":" in address:
                number = int(ipaddress.ip_address(address))
                yield f'oifname "{tunnel}" icmpv6 type nd-neighbor-solicit @th,64,128 {number:#x} drop'


# Egress of a port


def _egress_chains(port: WiredPort, names: Names, known: str, groups: _GroupSets) -> Iterator[str]:
    tap = names.tap(port.id)
    if not port.is_up or not port.secured:
        yield from _chain(f"from_{tap}", ["drop" if not port.is_up else "return"])
        return
    answers = _reply_rules(port, "ingress", known, groups)
    yield from _chain(f"out_{tap}", [*answers, *_permit_rules(port, "egress", "daddr", groups), "drop"])
    yield from _chain(f"from_{tap}", _antispoof_rules(port, f"out_{tap}"))


def _antispoof_rules(port: WiredPort, next_chain: str) -> Iterator[str]:
    """Drop packets from addresses that are not the port's, and packets that only the network may send."""
    own = _allowed_sources(port)
    yield f"ether saddr != {{ {', '.join(own)} }} drop"
    # RARP: QEMU announces a migrated guest to switches.
    yield "ether type 0x8035 return"
    yield "ether type ip udp sport 67 udp dport 68 drop"
    yield "ether type ip udp sport 68 udp dport 67 ip saddr 0.0.0.0 return"
    yield "icmpv6 type { 134, 137 } drop"
    yield "ether type ip6 udp sport 547 udp dport 546 drop"
    for mac, networks in own.items():
        ipv4 = [str(network) for network in networks if network.version == 4]
        ipv6 = [str(network) for network in networks if network.version == 6]
        yield f"ether saddr {mac} arp saddr ether {mac} arp saddr ip {{ {', '.join(['0.0.0.0', *ipv4])} }} return"
        if ipv4:
            yield f"ether saddr {mac} ip saddr {{ {', '.join(ipv4)} }} udp sport 68 udp dport 67 return"
            yield f"ether saddr {mac} ip saddr {{ {', '.join(ipv4)} }} goto {next_chain}"
        ipv6.append(str(_link_local(mac)))
        targets = ", ".join(_ranges(ipv6))
        yield f"ether saddr {mac} ip6 saddr :: icmpv6 type {{ 131, 132, 133, 135, 143 }} return"
        yield f"ether saddr {mac} icmpv6 type 136 @th,64,128 != {{ {targets} }} drop"
        yield f"ether saddr {mac} ip6 saddr {{ {', '.join(ipv6)} }} icmpv6 type {_NEIGHBOUR_DISCOVERY} return"
        yield f"ether saddr {mac} ip6 saddr {_link_local(mac)} udp sport 546 udp dport 547 return"
        yield f"ether saddr {mac} ip6 saddr {{ {', '.join(ipv6)} }} goto {next_chain}"
    yield "drop"


Prefix = ipaddress.IPv4Network | ipaddress.IPv6Network


def _allowed_sources(port: WiredPort) -> dict[str, list[Prefix]]:
    """The MACs that the port may use, each with its addresses."""
    own: dict[str, list[Prefix]] = {port.mac: list(map(_prefix, port.addresses))}
    for mac, prefix in port.pairs:
        own.setdefault(mac, []).append(_prefix(prefix))
    return {mac: _merged(prefixes) for mac, prefixes in own.items()}


@lru_cache(maxsize=65536)
def _prefix(text: str) -> Prefix:
    return ipaddress.ip_network(text, strict=False)


def _merged(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """nftables refuses overlapping prefixes."""
    found = list(prefixes)
    ipv4 = [prefix for prefix in found if isinstance(prefix, ipaddress.IPv4Network)]
    ipv6 = [prefix for prefix in found if isinstance(prefix, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(ipv4), *ipaddress.collapse_addresses(ipv6)]


def _link_local(mac: str) -> ipaddress.IPv6Address:
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 2
    octets[3:3] = [0xFF, 0xFE]
    return ipaddress.IPv6Address(bytes([0xFE, 0x80, *[0] * 6, *octets]))


def _ranges(prefixes: Iterable[str]) -> Iterator[str]:
    """Prefixes as numbers, for raw payload matches of nftables."""
    for prefix in prefixes:
        network = ipaddress.ip_network(prefix)
        first, last = int(network.network_address), int(network.broadcast_address)
        yield f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"


# Ingress of a port


def _ingress_chain(port: WiredPort, names: Names, known: str, groups: _GroupSets) -> Iterator[str]:
    tap = names.tap(port.id)
    if not port.is_up or not port.secured:
        yield from _chain(f"to_{tap}", ["drop" if not port.is_up else "return"])
        return
    macs = ", ".join(_allowed_sources(port))
    gate = names.wildcard("g")
    lines = [
        # The bridge floods frames with an unknown receiver: other guests must not see them.
        f"{_UNICAST} ether daddr != {{ {macs} }} drop",
        "ether type { arp, 0x8035 } return",
        f'iifname "{gate}" ether type ip udp sport 67 udp dport 68 return',
        f'iifname "{gate}" ether type ip6 udp sport 547 udp dport 546 return',
        f'iifname "{gate}" icmpv6 type 134 return',
        "icmpv6 type { 134, 137 } drop",
        f"icmpv6 type {_NEIGHBOUR_DISCOVERY} return",
        # Responses of the metadata service need no rule.
        *([] if _is_stateful(port) else [f'iifname "{gate}" ip saddr {METADATA_ADDRESS} tcp sport 80 return']),
        *_reply_rules(port, "egress", known, groups),
        *_permit_rules(port, "ingress", "saddr", groups),
        "drop",
    ]
    yield from _chain(f"to_{tap}", lines)


class _GroupSets:
    """nftables sets with the members of security groups, shared by all ports."""

    def __init__(self, groups: dict[str, list[str]]) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._members = {
            (group_id, ethertype): [
                prefix for prefix in _merged(map(_prefix, members)) if _ETHERTYPES[prefix.version] == ethertype
            ]
            for group_id, members in groups.items()
            for ethertype in _IP
        }

    def reference(self, group_id: str, ethertype: str) -> str:
        """The set of the group in nftables syntax; empty if the group has no members."""
        if not self._members.get((group_id, ethertype)):
            return ""
        return "@" + self._names.setdefault((group_id, ethertype), f"group{len(self._names)}")

    def sets(self) -> Iterator[str]:
        for key, name in self._names.items():
            kind = "ipv4_addr" if key[1] == "IPv4" else "ipv6_addr"
            members = ", ".join(map(str, self._members[key]))
            yield f"    set {name} {{ type {kind}; flags interval; elements = {{ {members} }}; }}"


def _is_stateful(port: WiredPort) -> bool:
    return all(rule.stateful for rule in port.rules)


def _reply_rules(port: WiredPort, begun: str, known: str, groups: _GroupSets) -> Iterator[str]:
    """Permit packets of established connections.

    If not all rules are stateful, a stateful rule of direction `begun` must have permitted the connection.
    """
    if _is_stateful(port):
        yield f"{known} return"
        return
    rules = [rule for rule in port.rules if rule.stateful and rule.direction == begun]
    for rule in rules:
        if match := _match(rule, "saddr" if begun == "egress" else "daddr", groups, reply=True):
            yield f"{known} {match} return"
    if rules:
        yield f"{known} icmp type {_ICMP_ERRORS} return"
        yield f"{known} icmpv6 type {_ICMPV6_ERRORS} return"


def _permit_rules(port: WiredPort, direction: str, end: str, groups: _GroupSets) -> Iterator[str]:
    for rule in port.rules:
        if rule.direction == direction and (match := _match(rule, end, groups)):
            yield f"{match} return"


def _match(rule: FirewallRule, end: str, groups: _GroupSets, *, reply: bool = False) -> str:
    """The nftables match for packets of the rule, or for replies to them; empty if the rule permits nothing."""
    family = _IP[rule.ethertype]
    terms = [f"ether type {family}"]
    if rule.group:
        group = groups.reference(rule.group, rule.ethertype)
        if not group:
            return ""
        terms.append(f"{family} {end} {group}")
    elif rule.remotes:
        remotes = _merged(map(_prefix, rule.remotes))
        terms.append(f"{family} {end} {{ {', '.join(map(str, remotes))} }}")
    if rule.protocol:
        protocol = rule.protocol
        if not protocol.isdigit() or int(protocol) > 255:
            log.warning("a rule for the unknown protocol %r permits nothing", protocol)
            return ""
        # Not "ip6 nexthdr": extension headers would hide the protocol.
        terms.append(f"meta l4proto {protocol}")
        if protocol in _ICMP and rule.port_min is not None and not reply:
            terms.append(f"{_ICMP[protocol]} type {rule.port_min}")
            if rule.port_max is not None:
                terms.append(f"{_ICMP[protocol]} code {rule.port_max}")
        elif protocol in _WITH_PORTS and rule.port_min is not None:
            last = rule.port_min if rule.port_max is None else rule.port_max
            ports = f"{rule.port_min}" if last == rule.port_min else f"{rule.port_min}-{last}"
            terms.append(f"{_WITH_PORTS[protocol]} {'sport' if reply else 'dport'} {ports}")
    return " ".join(terms)
