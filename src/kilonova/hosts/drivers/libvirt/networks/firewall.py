"""What guests may send and get: security groups, and nobody's address but one's own. By nftables, on the bridges.

All of it is one script, which replaces what was there in one transaction. Packets between guests, and between guests
and their network's namespace, are forwarded by a bridge, and go through what their sender may send and then through
what their receiver may get. Chains for a port return where they let something through, and drop at their end.

Connections are known to the bridge family where the kernel has nf_conntrack_bridge. Where it has not, the bridges hand
packets to the host's own hooks (br_netfilter), which know them, and leave a mark on those that belong to one.
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
from kilonova.hosts.drivers.libvirt.networks.names import METADATA, Names, gateway_mac
from kilonova.hosts.messages import Firewall, NetworkPlan, WiredNetwork, WiredPort

log = logging.getLogger(__name__)

_MARK = "0x6b6e0001"
# Ahead of br_netfilter, which goes on behind itself: what has its very priority, 0, may be passed over.
_FILTER = "priority -200"
_IP = {"IPv4": "ip", "IPv6": "ip6"}
_ETHERTYPES = {4: "IPv4", 6: "IPv6"}
_WITH_PORTS = {"6": "tcp", "17": "udp", "33": "dccp", "132": "sctp", "136": "udplite"}
_ICMP = {"1": "icmp", "58": "icmpv6"}
# Neighbour discovery without redirects, and what tells of multicast groups.
_ND = "{ 130, 131, 132, 133, 135, 136, 143 }"
# What tells that something did not arrive.
_ERRORS, _ERRORS_OF_IPV6 = "{ 3, 11, 12 }", "{ 1, 2, 3, 4 }"
_UNICAST = "ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00"

_HANDING = Path("/proc/sys/net/bridge")
_PROBE = """
table bridge {table}_probe {{
    chain probe {{
        type filter hook forward priority -200; policy accept;
        ct state established accept
    }}
}}
delete table bridge {table}_probe
"""


async def knows_connections(names: Names) -> bool:
    """Whether bridges know the connections of packets by themselves. Raises DriverError if nobody does."""
    with suppress(DriverError):
        await run("nft", "-f", "-", given=_PROBE.format(table=names.table))
        return True
    if not _HANDING.exists():
        await run("modprobe", "br_netfilter", check=False)
    if not _HANDING.exists():
        raise DriverError("the kernel has neither nf_conntrack_bridge nor br_netfilter: guests cannot be guarded")
    return False


def ruleset(plan: NetworkPlan, names: Names, *, native: bool) -> str:
    """The whole script. `native`: bridges know connections by themselves."""
    return "\n".join([*_bridge_table(plan, names, native), *([] if native else _marking_table(plan, names)), ""])


def removal(names: Names, *, native: bool) -> str:
    families = ("bridge",) if native else ("bridge", "inet")
    return "\n".join(f"table {family} {names.table} {{ }}\ndelete table {family} {names.table}" for family in families)


def _replaced(family: str, table: str) -> list[str]:
    """Begins a table anew; it has to be there to be deleted."""
    return [f"table {family} {table} {{", "}", f"delete table {family} {table}", f"table {family} {table} {{"]


def _chain(name: str, lines: Iterable[str], hook: str = "") -> list[str]:
    begin = [f"        type filter hook {hook}; policy accept;"] if hook else []
    return [f"    chain {name} {{", *begin, *(f"        {line}" for line in lines), "    }"]


# Connections


def zone(network_id: str) -> int:
    """Networks may have the same addresses: their connections are told apart by this number."""
    return 1 + int.from_bytes(hashlib.sha256(network_id.encode()).digest()[:4]) % 65535


def _marking_table(plan: NetworkPlan, names: Names) -> Iterator[str]:
    bridges = names.all_of("b")
    yield from _replaced("inet", names.table)
    zones = [f'iifname "{names.bridge(network.id)}" ct zone set {zone(network.id)}' for network in plan.networks]
    yield from _chain("zones", zones, "prerouting priority -350")
    marks = [
        f'iifname "{bridges}" meta mark set 0',
        f'iifname "{bridges}" ct state established,related meta mark set {_MARK}',
    ]
    yield from _chain("marks", marks, "prerouting priority -150")
    yield "}"


# What the bridges forward


def _bridge_table(plan: NetworkPlan, names: Names, native: bool) -> Iterator[str]:
    crowds = _Crowds(plan.groups)
    known = "ct state established,related" if native else f"meta mark {_MARK}"
    yield from _replaced("bridge", names.table)
    if native:
        yield from _chain("zones", _bridge_zones(plan, names), "prerouting priority -350")
    ports = [(network, port) for network in plan.networks for port in network.ports]
    lines = [
        line
        for _, port in ports
        for line in (*_sending(port, names, known, crowds), *_getting(port, names, known, crowds))
    ]
    yield from crowds.sets()
    yield from lines
    yield from _chain("between_hosts", _between_hosts(plan, names))
    yield from _chain("forward", _forward(ports, names), f"forward {_FILTER}")
    # The host is no member of its guests' networks.
    for hook, side in (("input", "iifname"), ("output", "oifname")):
        yield from _chain(hook, [f'{side} "{names.all_of(letter)}" drop' for letter in "tgv"], f"{hook} {_FILTER}")
    yield "}"


def _bridge_zones(plan: NetworkPlan, names: Names) -> Iterator[str]:
    for network in plan.networks:
        taps = [names.tap(port.id) for port in network.ports]
        members = ", ".join(f'"{name}"' for name in [names.gate(network.id), names.vxlan(network.id), *taps])
        yield f"iifname {{ {members} }} ct zone set {zone(network.id)}"


def _forward(ports: list[tuple[WiredNetwork, WiredPort]], names: Names) -> Iterator[str]:
    taps = [names.tap(port.id) for _, port in ports]
    if taps:
        yield "iifname vmap { " + ", ".join(f'"{tap}" : jump from_{tap}' for tap in taps) + " }"
        outgoing = ", ".join(f'"{tap}"' for tap in taps)
        yield f'iifname "{names.all_of("t")}" iifname != {{ {outgoing} }} drop'
    else:
        yield f'iifname "{names.all_of("t")}" drop'
    yield "jump between_hosts"
    if taps:
        yield "oifname vmap { " + ", ".join(f'"{tap}" : jump to_{tap}' for tap in taps) + " }"
        yield f'oifname "{names.all_of("t")}" oifname != {{ {outgoing} }} drop'
    else:
        yield f'oifname "{names.all_of("t")}" drop'


def _between_hosts(plan: NetworkPlan, names: Names) -> Iterator[str]:
    """Every host has its own gateway, DHCP and metadata for its guests: what concerns these stays on the host."""
    tunnels, gates = names.all_of("v"), names.all_of("g")
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
        old = ", ".join([METADATA, *(address for address in held if ":" not in address)])
        yield f'oifname "{tunnel}" arp daddr ip {{ {old} }} drop'
        for address in held:
            if ":" in address:
                number = int(ipaddress.ip_address(address))
                yield f'oifname "{tunnel}" icmpv6 type nd-neighbor-solicit @th,64,128 {number:#x} drop'


# What a guest sends


def _sending(port: WiredPort, names: Names, known: str, crowds: _Crowds) -> Iterator[str]:
    tap = names.tap(port.id)
    if not port.is_up or not port.secured:
        yield from _chain(f"from_{tap}", ["drop" if not port.is_up else "return"])
        return
    answers = _answers(port, "ingress", known, crowds)
    yield from _chain(f"out_{tap}", [*answers, *_permitted(port, "egress", "daddr", crowds), "drop"])
    yield from _chain(f"from_{tap}", _honest(port, f"out_{tap}"))


def _honest(port: WiredPort, onward: str) -> Iterator[str]:
    """Nothing from an address that is not the port's, and nothing that only the network itself may say."""
    own = _own(port)
    yield f"ether saddr != {{ {', '.join(own)} }} drop"
    # How QEMU tells switches that the guest has moved.
    yield "ether type 0x8035 return"
    yield "ether type ip udp sport 67 udp dport 68 drop"
    yield "ether type ip udp sport 68 udp dport 67 ip saddr 0.0.0.0 return"
    yield "icmpv6 type { 134, 137 } drop"
    yield "ether type ip6 udp sport 547 udp dport 546 drop"
    for mac, networks in own.items():
        old = [str(one) for one in networks if one.version == 4]
        new = [str(one) for one in networks if one.version == 6]
        yield f"ether saddr {mac} arp saddr ether {mac} arp saddr ip {{ {', '.join(['0.0.0.0', *old])} }} return"
        if old:
            yield f"ether saddr {mac} ip saddr {{ {', '.join(old)} }} udp sport 68 udp dport 67 return"
            yield f"ether saddr {mac} ip saddr {{ {', '.join(old)} }} goto {onward}"
        new.append(str(_link_local(mac)))
        targets = ", ".join(_ranges(new))
        yield f"ether saddr {mac} ip6 saddr :: icmpv6 type {{ 131, 132, 133, 135, 143 }} return"
        yield f"ether saddr {mac} icmpv6 type 136 @th,64,128 != {{ {targets} }} drop"
        yield f"ether saddr {mac} ip6 saddr {{ {', '.join(new)} }} icmpv6 type {_ND} return"
        yield f"ether saddr {mac} ip6 saddr {_link_local(mac)} udp sport 546 udp dport 547 return"
        yield f"ether saddr {mac} ip6 saddr {{ {', '.join(new)} }} goto {onward}"
    yield "drop"


Prefix = ipaddress.IPv4Network | ipaddress.IPv6Network


def _own(port: WiredPort) -> dict[str, list[Prefix]]:
    """The MACs it may use, each with the addresses."""
    own: dict[str, list[Prefix]] = {port.mac: list(map(_prefix, port.addresses))}
    for mac, prefix in port.pairs:
        own.setdefault(mac, []).append(_prefix(prefix))
    return {mac: _merged(prefixes) for mac, prefixes in own.items()}


@lru_cache(maxsize=65536)
def _prefix(text: str) -> Prefix:
    return ipaddress.ip_network(text, strict=False)


def _merged(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """nftables takes no overlaps."""
    found = list(prefixes)
    old = [one for one in found if isinstance(one, ipaddress.IPv4Network)]
    new = [one for one in found if isinstance(one, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(old), *ipaddress.collapse_addresses(new)]


def _link_local(mac: str) -> ipaddress.IPv6Address:
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 2
    octets[3:3] = [0xFF, 0xFE]
    return ipaddress.IPv6Address(bytes([0xFE, 0x80, *[0] * 6, *octets]))


def _ranges(prefixes: Iterable[str]) -> Iterator[str]:
    """As numbers, for what nftables has no name for."""
    for prefix in prefixes:
        one = ipaddress.ip_network(prefix)
        first, last = int(one.network_address), int(one.broadcast_address)
        yield f"{first:#x}" if first == last else f"{first:#x}-{last:#x}"


# What a guest gets


def _getting(port: WiredPort, names: Names, known: str, crowds: _Crowds) -> Iterator[str]:
    tap = names.tap(port.id)
    if not port.is_up or not port.secured:
        yield from _chain(f"to_{tap}", ["drop" if not port.is_up else "return"])
        return
    macs = ", ".join(_own(port))
    gate = names.all_of("g")
    lines = [
        # What the bridge floods because it does not know the receiver is nobody else's to read.
        f"{_UNICAST} ether daddr != {{ {macs} }} drop",
        "ether type { arp, 0x8035 } return",
        f'iifname "{gate}" ether type ip udp sport 67 udp dport 68 return',
        f'iifname "{gate}" ether type ip6 udp sport 547 udp dport 546 return',
        f'iifname "{gate}" icmpv6 type 134 return',
        "icmpv6 type { 134, 137 } drop",
        f"icmpv6 type {_ND} return",
        # The network's own answers need no rule.
        *([] if _is_stateful(port) else [f'iifname "{gate}" ip saddr {METADATA} tcp sport 80 return']),
        *_answers(port, "egress", known, crowds),
        *_permitted(port, "ingress", "saddr", crowds),
        "drop",
    ]
    yield from _chain(f"to_{tap}", lines)


class _Crowds:
    """The members of groups: sets, which all ports whose rules name a group share."""

    def __init__(self, groups: dict[str, list[str]]) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._members = {
            (group_id, ethertype): [
                one for one in _merged(map(_prefix, members)) if _ETHERTYPES[one.version] == ethertype
            ]
            for group_id, members in groups.items()
            for ethertype in _IP
        }

    def named(self, group_id: str, ethertype: str) -> str:
        """Nothing if the group has no members."""
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


def _answers(port: WiredPort, begun: str, known: str, crowds: _Crowds) -> Iterator[str]:
    """What goes on with a connection. Where not all rules are stateful, it has to have begun in this direction by one
    that is.
    """
    if _is_stateful(port):
        yield f"{known} return"
        return
    rules = [rule for rule in port.rules if rule.stateful and rule.direction == begun]
    for rule in rules:
        if words := _words(rule, "saddr" if begun == "egress" else "daddr", crowds, answer=True):
            yield f"{known} {words} return"
    if rules:
        yield f"{known} icmp type {_ERRORS} return"
        yield f"{known} icmpv6 type {_ERRORS_OF_IPV6} return"


def _permitted(port: WiredPort, direction: str, end: str, crowds: _Crowds) -> Iterator[str]:
    for rule in port.rules:
        if rule.direction == direction and (words := _words(rule, end, crowds)):
            yield f"{words} return"


def _words(rule: Firewall, end: str, crowds: _Crowds, *, answer: bool = False) -> str:
    """The rule as nftables says it, or what answers are like; nothing where it lets nothing through."""
    family = _IP[rule.ethertype]
    said = [f"ether type {family}"]
    if rule.group:
        crowd = crowds.named(rule.group, rule.ethertype)
        if not crowd:
            return ""
        said.append(f"{family} {end} {crowd}")
    elif rule.remotes:
        remotes = _merged(map(_prefix, rule.remotes))
        said.append(f"{family} {end} {{ {', '.join(map(str, remotes))} }}")
    if rule.protocol:
        protocol = rule.protocol
        if not protocol.isdigit() or int(protocol) > 255:
            log.warning("a rule for protocol %r cannot be carried out and lets nothing through", protocol)
            return ""
        # Not "ip6 nexthdr", which extension headers would hide the protocol from.
        said.append(f"meta l4proto {protocol}")
        if protocol in _ICMP and rule.port_min is not None and not answer:
            said.append(f"{_ICMP[protocol]} type {rule.port_min}")
            if rule.port_max is not None:
                said.append(f"{_ICMP[protocol]} code {rule.port_max}")
        elif protocol in _WITH_PORTS and rule.port_min is not None:
            last = rule.port_min if rule.port_max is None else rule.port_max
            ports = f"{rule.port_min}" if last == rule.port_min else f"{rule.port_min}-{last}"
            said.append(f"{_WITH_PORTS[protocol]} {'sport' if answer else 'dport'} {ports}")
    return " ".join(said)
