"""The way to the outside: NAT behind the host's own address where that is permitted, and floating addresses.

Networks may have the same addresses, so that a packet is translated twice: in the network's namespace to an address of
the link to the host, of which there are no two, and on the host to the host's own.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.bridges import Links, quiet
from kilonova.hosts.drivers.libvirt.networks.commands import batch, look, run
from kilonova.hosts.drivers.libvirt.networks.names import GATE, METADATA, UPLINK, Names
from kilonova.hosts.messages import NetworkPlan, WiredNetwork

log = logging.getLogger(__name__)

# Links between the host and namespaces: two addresses each.
_LINKS = ipaddress.ip_network("169.254.64.0/18")
_LAST_RESORT = 1024
_MOST_LINKS = _LINKS.num_addresses // 2


class Outside:
    def __init__(self, names: Names, directory: Path, interface: str, *, nat: bool, closed: Sequence[str]) -> None:
        self._names = names
        self._asked = interface
        self._nat = nat
        self._closed = closed
        # The floating addresses that this host answers for, across restarts.
        self._file = directory / "floating"
        self._inside: dict[str, str] = {}

    async def interface(self) -> str:
        """Where outside is; nothing if there is no such interface."""
        if self._asked:
            return self._asked
        for route in await look("ip", "-j", "route", "show", "default"):
            if "dev" in route and not route["dev"].startswith(self._names.prefix):
                return str(route["dev"])
        return ""

    def is_wanted(self, network: WiredNetwork) -> bool:
        return (network.nat and self._nat) or bool(network.floating)

    async def ensure(self, network: WiredNetwork, there: Links, interface: str) -> None:
        """The network's link to the host and what its namespace does with packets."""
        name, space = self._names.uplink(network.id), self._names.space(network.id)
        if self.is_wanted(network) and interface:
            host, own = await self._link(name, space, there)
            await self._route(network, name, space, host, own)
        elif name in there:
            await run("ip", "link", "del", name)
        await self._translate(network, space)

    async def _link(self, name: str, space: str, there: Links) -> tuple[str, str]:
        held = await self._held()
        if name in there and name in held:
            return held[name], str(ipaddress.ip_address(held[name]) + 1)
        if name in there:
            await run("ip", "link", "del", name)
        taken = set(held.values())
        free = (str(_LINKS[2 * number]) for number in range(_MOST_LINKS))
        host = next(address for address in free if address not in taken)
        own = str(ipaddress.ip_address(host) + 1)
        await batch("ip", [f"link add {name} type veth peer name {UPLINK} netns {space}"])
        quiet(name)
        await batch("ip", [f"addr add {host}/31 dev {name}", f"link set {name} up"])
        await batch("ip", [f"addr add {own}/31 dev {UPLINK}", f"link set {UPLINK} up"], space)
        return host, own

    async def _held(self) -> dict[str, str]:
        """The host's address of each link that there is."""
        return {
            link["ifname"]: held["local"]
            for link in await look("ip", "-4", "-j", "addr", "show")
            for held in link.get("addr_info", ())
            if ipaddress.ip_address(held["local"]) in _LINKS
        }

    async def _route(self, network: WiredNetwork, name: str, space: str, host: str, own: str) -> None:
        # A route to everything that a router was given is preferred.
        await batch("ip", [f"route replace default via {host} dev {UPLINK} metric {_LAST_RESORT}"], space)
        namespaces.write_setting(f"ipv4/conf/{name}/forwarding", "1")
        wanted = {floating for floating, _ in network.floating}
        shown = await look("ip", "-j", "route", "show", "dev", name)
        known = {route["dst"] for route in shown if "gateway" in route}
        await batch(
            "ip",
            [
                *(f"route del {floating}/32 dev {name}" for floating in sorted(known - wanted)),
                *(f"route replace {floating}/32 via {own} dev {name}" for floating in sorted(wanted - known)),
            ],
        )

    async def _translate(self, network: WiredNetwork, space: str) -> None:
        rules = _inside(network, masquerade=network.nat and self._nat)
        if self._inside.get(network.id) != rules:
            await run(*namespaces.entering(space), "nft", "-f", "-", given=rules)
            self._inside[network.id] = rules

    def forget(self, network_id: str) -> None:
        self._inside.pop(network_id, None)

    # On the host

    def ruleset(self, plan: NetworkPlan, interface: str) -> str:
        """Guests reach what is beyond the host's interface, and neither the host itself nor each other this way."""
        uplinks, table = self._names.all_of("u"), self._names.table
        lines = [f"table ip {table} {{", "}", f"delete table ip {table}"]
        if not interface or not any(map(self.is_wanted, plan.networks)):
            return "\n".join([*lines, ""])
        closed = ", ".join(self._closed_to_guests(plan))
        floating = sorted({address for network in plan.networks for address, _ in network.floating})
        to_floating = f"ip daddr {{ {', '.join(floating)} }} accept" if floating else ""
        lines += [
            f"table ip {table} {{",
            "    chain forward {",
            "        type filter hook forward priority 0; policy accept;",
            # Ahead of connections that go on, so that what is closed later ends. Who is there may reach guests.
            *([f'        iifname "{uplinks}" ct direction original ip daddr {{ {closed} }} drop'] if closed else []),
            f'        iifname "{uplinks}" ct state established,related accept',
            f'        oifname "{uplinks}" ct state established,related accept',
            *([f'        oifname "{uplinks}" {to_floating}'] if floating else []),
            f'        oifname "{uplinks}" drop',
            f'        iifname "{uplinks}" oifname "{interface}" accept',
            f'        iifname "{uplinks}" drop',
            "    }",
            "    chain input {",
            "        type filter hook input priority 0; policy accept;",
            f'        iifname "{uplinks}" ct state established,related accept',
            f'        iifname "{uplinks}" drop',
            "    }",
            "    chain leaving {",
            "        type nat hook postrouting priority 100; policy accept;",
            f'        ip saddr {_LINKS} oifname "{interface}" masquerade',
            "    }",
            "}",
        ]
        return "\n".join([*lines, ""])

    def _closed_to_guests(self, plan: NetworkPlan) -> list[str]:
        """What is the operator's: what settings name, and the hosts that networks are tunnelled to."""
        named = [*self._closed, *(peer for network in plan.networks for peer in network.peers)]
        prefixes = [ipaddress.IPv4Network(one, strict=False) for one in named if ":" not in one]
        return [str(one) for one in ipaddress.collapse_addresses(prefixes)]

    async def answer(self, plan: NetworkPlan, interface: str) -> None:
        """Answer for the floating addresses of guests on the outside interface, and for no others any more."""
        floating = {address for network in plan.networks for address, _ in network.floating}
        wanted = {(address, interface) for address in floating} if interface else set()
        known = self._read()
        if interface and any(map(self.is_wanted, plan.networks)):
            namespaces.write_setting(f"ipv4/conf/{interface}/forwarding", "1")
        if wanted == known:
            return
        for address, where in sorted(known - wanted):
            await run("ip", "neigh", "del", "proxy", address, "dev", where, check=False)
        await batch("ip", [f"neigh replace proxy {address} dev {where}" for address, where in sorted(wanted - known)])
        for address, where in sorted(wanted - known):
            _announce(address, where)
        if wanted:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_bytes(msgspec.msgpack.encode(sorted(wanted)))
        else:
            self._file.unlink(missing_ok=True)

    def _read(self) -> set[tuple[str, str]]:
        try:
            return set(msgspec.msgpack.decode(self._file.read_bytes(), type=list[tuple[str, str]]))
        except (FileNotFoundError, msgspec.DecodeError):
            return set()


def _inside(network: WiredNetwork, *, masquerade: bool) -> str:
    """What the network's namespace lets in, passes on and translates."""
    arriving = [f'iifname "{UPLINK}" ip daddr {floating} dnat to {fixed}' for floating, fixed in network.floating]
    leaving = [f'oifname "{UPLINK}" ip saddr {fixed} snat to {floating}' for floating, fixed in network.floating]
    if masquerade:
        leaving.append(f'oifname "{UPLINK}" masquerade')
    chains = {
        "input": (
            "type filter hook input priority 0; policy drop;",
            [
                'iifname "lo" accept',
                "ct state established,related accept",
                f'iifname != "{UPLINK}" meta l4proto {{ icmp, icmpv6 }} accept',
                f'iifname "{GATE}" udp dport {{ 67, 547 }} accept',
                f'iifname "{GATE}" ip daddr {METADATA} tcp dport 80 accept',
            ],
        ),
        "forward": (
            "type filter hook forward priority 0; policy accept;",
            [
                f'iifname "{UPLINK}" ct state established,related accept',
                f'iifname "{UPLINK}" ct status dnat accept',
                f'iifname "{UPLINK}" drop',
                *([] if masquerade else _only_floating(network)),
            ],
        ),
        "arriving": ("type nat hook prerouting priority -100; policy accept;", arriving),
        "leaving": ("type nat hook postrouting priority 100; policy accept;", leaving),
    }
    lines = ["table inet kilonova {", "}", "delete table inet kilonova", "table inet kilonova {"]
    for name, (hook, rules) in chains.items():
        lines += [f"    chain {name} {{", f"        {hook}", *(f"        {rule}" for rule in rules), "    }"]
    return "\n".join([*lines, "}", ""]).replace(" dnat to ", " dnat ip to ").replace(" snat to ", " snat ip to ")


def _only_floating(network: WiredNetwork) -> list[str]:
    """Without NAT nobody goes outside but those with an address there."""
    fixed = ", ".join(sorted(fixed for _, fixed in network.floating))
    return [f'oifname "{UPLINK}" ip saddr != {{ {fixed} }} drop' if fixed else f'oifname "{UPLINK}" drop']


def _announce(address: str, interface: str) -> None:
    """Tell the neighbours outside where the address is now. Where that fails they find out by asking."""
    packed = socket.inet_aton(address)
    try:
        mac = bytes.fromhex(Path(f"/sys/class/net/{interface}/address").read_text().strip().replace(":", ""))
        frame = b"\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
        frame += mac + packed + b"\x00" * 6 + packed
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((interface, 0))
            out.send(frame)
    except (OSError, ValueError) as error:
        log.info("%s is not announced on %s: %s", address, interface, error)
