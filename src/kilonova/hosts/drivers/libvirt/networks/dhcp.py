"""DHCP and router advertisements: one dnsmasq per network, for the ports of this host only.

dnsmasq identifies guests by MAC and keeps no leases, so it is restarted after every change. It continues without the
agent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.commands import run
from kilonova.hosts.drivers.libvirt.networks.names import GATEWAY, METADATA_ADDRESS, Names
from kilonova.hosts.messages import WiredNetwork, WiredPort, WiredSubnet

_LEASE_TIME = "86400s"
_RESOLVERS = Path("/etc/resolv.conf")
_CONFIG_FILE, _PID_FILE = "dnsmasq.conf", "dnsmasq.pid"
# Users set DHCP options of ports: names, numbers and values must not contain characters that end the line or the value.
_OPTION = re.compile(r"[a-z0-9-]{1,64}")
_VALUE = re.compile(r"[A-Za-z0-9 ._:/,@%+=~-]{0,255}")
# dnsmasq's modes by the IPv6 address mode of the subnet.
_IPV6_MODES = {"slaac": "ra-only,", "dhcpv6-stateless": "ra-stateless,", "dhcpv6-stateful": "static,"}


class Dhcp:
    def __init__(self, names: Names, directory: Path) -> None:
        self._names = names
        self._directory = directory
        self._options: dict[str, bool] = {}

    async def ensure(self, network: WiredNetwork, mtu: int) -> None:
        if not any(_is_served(subnet) for subnet in network.subnets):
            await self.remove(network.id)
            return
        wanted = await self._configuration(network, mtu)
        directory = self._network_directory(network.id)
        conf = directory / _CONFIG_FILE
        if self._pid(network.id) is not None and conf.exists() and conf.read_text() == wanted:
            return
        await self.stop(network.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        conf.write_text(wanted)
        # dnsmasq detaches itself from the agent.
        await run(*namespaces.nsenter_command(self._names.namespace(network.id)), "dnsmasq", f"--conf-file={conf}")

    def is_served(self, network: WiredNetwork) -> bool:
        """Whether dnsmasq runs if the network requires it."""
        return not any(map(_is_served, network.subnets)) or self._pid(network.id) is not None

    async def remove(self, network_id: str) -> None:
        await self.stop(network_id)
        directory = self._network_directory(network_id)
        for name in (_CONFIG_FILE, _PID_FILE):
            (directory / name).unlink(missing_ok=True)
        with suppress(OSError):
            directory.rmdir()

    async def stop(self, network_id: str) -> None:
        pid = self._pid(network_id)
        if pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            for _ in range(100):
                if self._pid(network_id) != pid:
                    return
                await asyncio.sleep(0.01)

    def _network_directory(self, network_id: str) -> Path:
        return self._directory / network_id

    def _pid(self, network_id: str) -> int | None:
        """The id of the running dnsmasq. Checks its command line, because process ids are reused."""
        directory = self._network_directory(network_id)
        try:
            pid = int((directory / _PID_FILE).read_text())
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if f"--conf-file={directory / _CONFIG_FILE}".encode() in command_line else None

    async def _configuration(self, network: WiredNetwork, mtu: int) -> str:
        """The configuration file. Users' options are tested first, so that they cannot keep dnsmasq from starting."""
        lines = [
            "port=0",
            "bind-interfaces",
            f"interface={GATEWAY}",
            "except-interface=lo",
            "leasefile-ro",
            "dhcp-authoritative",
            "no-ping",
            "no-hosts",
            "no-resolv",
            f"pid-file={self._network_directory(network.id) / _PID_FILE}",
            f"dhcp-option=option:mtu,{mtu}",
            f"dhcp-lease-max={2 * len(network.ports) + 16}",
        ]
        served = [subnet for subnet in network.subnets if _is_served(subnet)]
        lines += _advertisements(served, mtu)
        for number, subnet in enumerate(served):
            lines += _subnet(subnet, f"s{number}", nat=network.nat)
        for port in network.ports:
            lines += _hosts(port, served)
            for name, value in sorted(port.dhcp_options.items()):
                line = _option(name, value)
                if line is not None and await self._is_valid_option(line):
                    lines.append(f"dhcp-option=tag:{_tag(port)},{line}")
        return "\n".join([*lines, ""])

    async def _is_valid_option(self, option: str) -> bool:
        if option not in self._options:
            if len(self._options) > 1000:
                self._options.clear()
            try:
                await run("dnsmasq", "--test", "--conf-file=/dev/null", f"--dhcp-option={option}")
                self._options[option] = True
            except DriverError:
                self._options[option] = False
        return self._options[option]


def _is_served(subnet: WiredSubnet) -> bool:
    """Whether dnsmasq serves the subnet. IPv6 addresses without a mode come from elsewhere."""
    return subnet.dhcp and (":" not in subnet.cidr or subnet.mode in _IPV6_MODES)


def _advertisements(subnets: list[WiredSubnet], mtu: int) -> list[str]:
    """Router advertisements, with a lifetime of 0 unless this host is the gateway: one setting for the interface."""
    ipv6 = [subnet for subnet in subnets if ":" in subnet.cidr]
    is_gateway = any(subnet.gateway in subnet.held for subnet in ipv6)
    return ["enable-ra", f"ra-param={GATEWAY},mtu:{mtu},0,{1800 if is_gateway else 0}"] if ipv6 else []


def _subnet(subnet: WiredSubnet, tag: str, *, nat: bool) -> list[str]:
    network = ipaddress.ip_network(subnet.cidr)
    if network.version == 6:
        mode = _IPV6_MODES[subnet.mode]
        lines = [f"dhcp-range=set:{tag},{network.network_address},{mode}{network.prefixlen},{_LEASE_TIME}"]
        servers = [f"[{server}]" for server in subnet.dns if ":" in server]
        return [*lines, *([f"dhcp-option=tag:{tag},option6:dns-server,{','.join(servers)}"] if servers else [])]
    lines = [f"dhcp-range=set:{tag},{network.network_address},static,{network.netmask},{_LEASE_TIME}"]
    if not any(ipaddress.ip_address(address) in network for address in subnet.held):
        # dnsmasq finds the subnet by the interface's addresses, and the interface has none in this subnet.
        lines.append(f"shared-network={GATEWAY},{network.network_address}")
    lines += [f"dhcp-option=tag:{tag},{option}" for option in _options(subnet, nat=nat)]
    return lines


def _options(subnet: WiredSubnet, *, nat: bool) -> list[str]:
    routes = []
    if subnet.gateway and ipaddress.ip_address(subnet.gateway) not in ipaddress.ip_network(subnet.cidr):
        # Clients refuse a gateway that they have no route to.
        routes.append(f"{subnet.gateway}/32,0.0.0.0")
    if subnet.gateway != METADATA_ADDRESS:
        routes.append(f"{METADATA_ADDRESS}/32,{subnet.gateway if subnet.gateway in subnet.held else '0.0.0.0'}")
    routes += [f"{destination},{hop}" for destination, hop in subnet.routes if ":" not in destination + hop]
    options = []
    if subnet.gateway:
        # Clients that use the classless routes ignore the router option.
        routes.append(f"0.0.0.0/0,{subnet.gateway}")
        options.append(f"option:router,{subnet.gateway}")
    else:
        options.append("option:router")
    options.append(f"option:classless-static-route,{','.join(routes)}")
    servers = [server for server in subnet.dns if ":" not in server] or (_resolvers() if nat else [])
    options.append(f"option:dns-server,{','.join(servers)}" if servers else "option:dns-server")
    return options


def _resolvers() -> list[str]:
    """The host's DNS servers, for guests with external access whose subnet has none."""
    try:
        words = [line.split() for line in _RESOLVERS.read_text().splitlines()]
    except OSError:
        return []
    named = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver" and ":" not in line[1]]
    return [address for address in named if not _is_loopback(address)][:3]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def _hosts(port: WiredPort, subnets: list[WiredSubnet]) -> list[str]:
    lines = []
    for address in map(ipaddress.ip_address, port.addresses):
        for subnet in subnets:
            if address in ipaddress.ip_network(subnet.cidr) and subnet.mode in ("", "dhcpv6-stateful"):
                shown = f"[{address}]" if address.version == 6 else str(address)
                lines.append(f"dhcp-host={port.mac},set:{_tag(port)},{shown}")
    return lines


def _tag(port: WiredPort) -> str:
    return f"p{port.id.replace('-', '')}"


def _option(name: str, value: str) -> str | None:
    if not _OPTION.fullmatch(name) or not _VALUE.fullmatch(value):
        return None
    return f"{name},{value}" if name.isdigit() else f"option:{name},{value}"
