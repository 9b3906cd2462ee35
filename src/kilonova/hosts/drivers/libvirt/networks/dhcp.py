"""The addresses that ports have, told to their guests: one dnsmasq per network, for the ports of this host alone.

It knows every guest by its MAC and keeps no leases, so that it is simply started anew when something changes, and goes
on when the agent ends.
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
from kilonova.hosts.drivers.libvirt.networks.names import GATE, METADATA, Names
from kilonova.hosts.messages import WiredNetwork, WiredPort, WiredSubnet

_LEASE = "86400s"
_RESOLVERS = Path("/etc/resolv.conf")
_CONF, _PID = "dnsmasq.conf", "dnsmasq.pid"
# Options that people may give their ports: known by name or number, and nothing that could end the line or the value.
_OPTION = re.compile(r"[a-z0-9-]{1,64}")
_VALUE = re.compile(r"[A-Za-z0-9 ._:/,@%+=~-]{0,255}")
# The word that each way of IPv6 has for itself.
_MODES = {"slaac": "ra-only,", "dhcpv6-stateless": "ra-stateless,", "dhcpv6-stateful": "static,"}


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
        where = self._where(network.id)
        conf = where / _CONF
        if self._pid(network.id) is not None and conf.exists() and conf.read_text() == wanted:
            return
        await self.stop(network.id)
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        conf.write_text(wanted)
        # It leaves the agent's session and goes on without it.
        await run(*namespaces.entering(self._names.space(network.id)), "dnsmasq", f"--conf-file={conf}")

    def is_served(self, network: WiredNetwork) -> bool:
        """Whether what shall run runs."""
        return not any(map(_is_served, network.subnets)) or self._pid(network.id) is not None

    async def remove(self, network_id: str) -> None:
        await self.stop(network_id)
        where = self._where(network_id)
        for name in (_CONF, _PID):
            (where / name).unlink(missing_ok=True)
        with suppress(OSError):
            where.rmdir()

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

    def _where(self, network_id: str) -> Path:
        return self._directory / network_id

    def _pid(self, network_id: str) -> int | None:
        """Of the process, if it is alive and really ours: numbers come again."""
        where = self._where(network_id)
        try:
            pid = int((where / _PID).read_text())
            said = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if f"--conf-file={where / _CONF}".encode() in said else None

    async def _configuration(self, network: WiredNetwork, mtu: int) -> str:
        """What people gave their ports must not keep dnsmasq from starting: it is tried before."""
        lines = [
            "port=0",
            "bind-interfaces",
            f"interface={GATE}",
            "except-interface=lo",
            "leasefile-ro",
            "dhcp-authoritative",
            "no-ping",
            "no-hosts",
            "no-resolv",
            f"pid-file={self._where(network.id) / _PID}",
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
                if line is not None and await self._is_fine(line):
                    lines.append(f"dhcp-option=tag:{_tag(port)},{line}")
        return "\n".join([*lines, ""])

    async def _is_fine(self, option: str) -> bool:
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
    """IPv6 of no known mode is somebody else's to give."""
    return subnet.dhcp and (":" not in subnet.cidr or subnet.mode in _MODES)


def _advertisements(subnets: list[WiredSubnet], mtu: int) -> list[str]:
    """An interface has one kind of them. Guests whose gateway is elsewhere are not led here."""
    new = [subnet for subnet in subnets if ":" in subnet.cidr]
    is_gateway = any(subnet.gateway in subnet.held for subnet in new)
    return ["enable-ra", f"ra-param={GATE},mtu:{mtu},0,{1800 if is_gateway else 0}"] if new else []


def _subnet(subnet: WiredSubnet, tag: str, *, nat: bool) -> list[str]:
    network = ipaddress.ip_network(subnet.cidr)
    if network.version == 6:
        mode = _MODES[subnet.mode]
        lines = [f"dhcp-range=set:{tag},{network.network_address},{mode}{network.prefixlen},{_LEASE}"]
        servers = [f"[{server}]" for server in subnet.dns if ":" in server]
        return [*lines, *([f"dhcp-option=tag:{tag},option6:dns-server,{','.join(servers)}"] if servers else [])]
    lines = [f"dhcp-range=set:{tag},{network.network_address},static,{network.netmask},{_LEASE}"]
    if not any(ipaddress.ip_address(address) in network for address in subnet.held):
        # The interface has no address of the subnet, which is how dnsmasq would know that it is meant.
        lines.append(f"shared-network={GATE},{network.network_address}")
    lines += [f"dhcp-option=tag:{tag},{option}" for option in _options(subnet, nat=nat)]
    return lines


def _options(subnet: WiredSubnet, *, nat: bool) -> list[str]:
    routes = [f"{METADATA}/32,{subnet.gateway if subnet.gateway in subnet.held else '0.0.0.0'}"]
    routes += [f"{destination},{hop}" for destination, hop in subnet.routes if ":" not in destination + hop]
    options = []
    if subnet.gateway:
        # Whoever reads the list of routes does not look at the option for the router.
        routes.append(f"0.0.0.0/0,{subnet.gateway}")
        options.append(f"option:router,{subnet.gateway}")
    else:
        options.append("option:router")
    options.append(f"option:classless-static-route,{','.join(routes)}")
    servers = [server for server in subnet.dns if ":" not in server] or (_resolvers() if nat else [])
    options.append(f"option:dns-server,{','.join(servers)}" if servers else "option:dns-server")
    return options


def _resolvers() -> list[str]:
    """The host's own, for guests that may go outside and are told of no others."""
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
