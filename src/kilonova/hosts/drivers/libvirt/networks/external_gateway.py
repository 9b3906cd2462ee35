"""External access of networks: source NAT to the host's address, and floating IPs.

Networks may have overlapping addresses, so packets are translated twice: in the network's namespace to the unique
address of its link to the host, and on the host to the host's own address.
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
from kilonova.hosts.drivers.libvirt.networks.bridges import Links, disable_ipv6
from kilonova.hosts.drivers.libvirt.networks.commands import run, run_batch, run_json
from kilonova.hosts.drivers.libvirt.networks.names import GATEWAY, METADATA_ADDRESS, UPLINK, Names
from kilonova.hosts.messages import NetworkPlan, WiredNetwork

log = logging.getLogger(__name__)

# Addresses of the links between the host and namespaces, two each.
_LINK_NETWORK = ipaddress.ip_network("169.254.64.0/18")
_DEFAULT_ROUTE_METRIC = 1024
_MAX_LINKS = _LINK_NETWORK.num_addresses // 2


class ExternalGateway:
    def __init__(
        self, names: Names, directory: Path, interface: str, *, nat: bool, blocked_addresses: Sequence[str]
    ) -> None:
        self._names = names
        self._configured_interface = interface
        self._nat = nat
        self._blocked_addresses = blocked_addresses
        # The floating IPs that this host answers ARP for, across restarts.
        self._file = directory / "floating"
        self._namespace_rules: dict[str, str] = {}

    async def interface(self) -> str:
        """The external interface: the configured one, or that of the default route; empty if links is neither."""
        if self._configured_interface:
            return self._configured_interface
        for route in await run_json("ip", "-j", "route", "show", "default"):
            if "dev" in route and not route["dev"].startswith(self._names.prefix):
                return str(route["dev"])
        return ""

    def is_wanted(self, network: WiredNetwork) -> bool:
        return (network.nat and self._nat) or bool(network.floating)

    async def ensure(self, network: WiredNetwork, links: Links, interface: str) -> None:
        """Set up the network's link to the host and the rules of its namespace."""
        name, namespace = self._names.uplink(network.id), self._names.namespace(network.id)
        if self.is_wanted(network) and interface:
            host, own = await self._link(name, namespace, links)
            await self._route(network, name, namespace, host, own)
        elif name in links:
            await run("ip", "link", "del", name)
        await self._translate(network, namespace)

    async def _link(self, name: str, namespace: str, links: Links) -> tuple[str, str]:
        held = await self._held()
        if name in links and name in held:
            return held[name], str(ipaddress.ip_address(held[name]) + 1)
        if name in links:
            await run("ip", "link", "del", name)
        taken = set(held.values())
        free = (str(_LINK_NETWORK[2 * number]) for number in range(_MAX_LINKS))
        host = next(address for address in free if address not in taken)
        own = str(ipaddress.ip_address(host) + 1)
        await run_batch("ip", [f"link add {name} type veth peer name {UPLINK} netns {namespace}"])
        disable_ipv6(name)
        await run_batch("ip", [f"addr add {host}/31 dev {name}", f"link set {name} up"])
        await run_batch("ip", [f"addr add {own}/31 dev {UPLINK}", f"link set {UPLINK} up"], namespace)
        return host, own

    async def _held(self) -> dict[str, str]:
        """The host's address on each existing link."""
        return {
            link["ifname"]: held["local"]
            for link in await run_json("ip", "-4", "-j", "addr", "show")
            for held in link.get("addr_info", ())
            if ipaddress.ip_address(held["local"]) in _LINK_NETWORK
        }

    async def _route(self, network: WiredNetwork, name: str, namespace: str, host: str, own: str) -> None:
        # The high metric prefers a default route that was configured on a router.
        await run_batch(
            "ip", [f"route replace default via {host} dev {UPLINK} metric {_DEFAULT_ROUTE_METRIC}"], namespace
        )
        namespaces.write_setting(f"ipv4/conf/{name}/forwarding", "1")
        wanted = {floating for floating, _ in network.floating}
        shown = await run_json("ip", "-j", "route", "show", "dev", name)
        known = {route["dst"] for route in shown if "gateway" in route}
        await run_batch(
            "ip",
            [
                *(f"route del {floating}/32 dev {name}" for floating in sorted(known - wanted)),
                *(f"route replace {floating}/32 via {own} dev {name}" for floating in sorted(wanted - known)),
            ],
        )

    async def _translate(self, network: WiredNetwork, namespace: str) -> None:
        rules = _namespace_ruleset(network, masquerade=network.nat and self._nat)
        if self._namespace_rules.get(network.id) != rules:
            await run(*namespaces.nsenter_command(namespace), "nft", "-f", "-", given=rules)
            self._namespace_rules[network.id] = rules

    def forget(self, network_id: str) -> None:
        self._namespace_rules.pop(network_id, None)

    # On the host

    def ruleset(self, plan: NetworkPlan, interface: str) -> str:
        """The host's rules: guests reach destinations behind the external interface, not the host or each other."""
        uplinks, table = self._names.wildcard("u"), self._names.table
        lines = [f"table ip {table} {{", "}", f"delete table ip {table}"]
        if not interface or not any(map(self.is_wanted, plan.networks)):
            return "\n".join([*lines, ""])
        blocked = ", ".join(self._blocked_prefixes(plan))
        floating = sorted({address for network in plan.networks for address, _ in network.floating})
        to_floating = f"ip daddr {{ {', '.join(floating)} }} accept" if floating else ""
        lines += [
            f"table ip {table} {{",
            "    chain forward {",
            "        type filter hook forward priority 0; policy accept;",
            # Before established connections, so that closing a prefix ends them. Its hosts may still connect to guests.
            *([f'        iifname "{uplinks}" ct direction original ip daddr {{ {blocked} }} drop'] if blocked else []),
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
            f'        ip saddr {_LINK_NETWORK} oifname "{interface}" masquerade',
            "    }",
            "}",
        ]
        return "\n".join([*lines, ""])

    def _blocked_prefixes(self, plan: NetworkPlan) -> list[str]:
        """The operator's prefixes: those of `bridges.blocked_addresses`, and the other hosts of the VXLAN networks."""
        addresses = [*self._blocked_addresses, *(peer for network in plan.networks for peer in network.peers)]
        prefixes = [ipaddress.IPv4Network(address, strict=False) for address in addresses if ":" not in address]
        return [str(prefix) for prefix in ipaddress.collapse_addresses(prefixes)]

    async def proxy_floating_ips(self, plan: NetworkPlan, interface: str) -> None:
        """Answer ARP requests on the external interface for exactly the plan's floating IPs."""
        floating = {address for network in plan.networks for address, _ in network.floating}
        wanted = {(address, interface) for address in floating} if interface else set()
        known = self._read()
        if interface and any(map(self.is_wanted, plan.networks)):
            namespaces.write_setting(f"ipv4/conf/{interface}/forwarding", "1")
        if wanted == known:
            return
        for address, device in sorted(known - wanted):
            await run("ip", "neigh", "del", "proxy", address, "dev", device, check=False)
        await run_batch(
            "ip", [f"neigh replace proxy {address} dev {device}" for address, device in sorted(wanted - known)]
        )
        for address, device in sorted(wanted - known):
            _announce(address, device)
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


def _namespace_ruleset(network: WiredNetwork, *, masquerade: bool) -> str:
    """The input, forward and NAT rules of the network's namespace."""
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
                f'iifname "{GATEWAY}" udp dport {{ 67, 547 }} accept',
                f'iifname "{GATEWAY}" ip daddr {METADATA_ADDRESS} tcp dport 80 accept',
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
    """Without NAT only guests with a floating IP have external access."""
    fixed = ", ".join(sorted(fixed for _, fixed in network.floating))
    return [f'oifname "{UPLINK}" ip saddr != {{ {fixed} }} drop' if fixed else f'oifname "{UPLINK}" drop']


def _announce(address: str, interface: str) -> None:
    """Send a gratuitous ARP. If it fails, neighbours learn the new MAC when their ARP entry expires."""
    packed = socket.inet_aton(address)
    try:
        mac = bytes.fromhex(Path(f"/sys/class/net/{interface}/address").read_text().strip().replace(":", ""))
        frame = b"\xff" * 6 + mac + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
        frame += mac + packed + b"\x00" * 6 + packed
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind((interface, 0))
            out.send(frame)
    except (OSError, ValueError) as error:
        log.info("gratuitous ARP for %s on %s failed: %s", address, interface, error)
