"""Hosts with networks only: each is a network namespace with a process that applies plans.

A guest is a namespace with an interface on the host's bridge.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova.hosts.drivers.libvirt.networks.names import Names
from kilonova.hosts.messages import FirewallRule, NetworkPlan, WiredNetwork, WiredPort, WiredSubnet

_TOOLS = {"dnsmasq": "dnsmasq-base", "nft": "nftables", "ip": "iproute2", "busybox": "busybox-static"}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_ENV = {**os.environ, "PATH": _PATH, "PYTHONPATH": str(Path(__file__).parents[2])}
NAMES = Names("kn")
ALLOW_ALL = [
    FirewallRule(direction=direction, ethertype=ethertype)
    for direction in ("egress", "ingress")
    for ethertype in ("IPv4", "IPv6")
]
ALLOW_EGRESS = [rule for rule in ALLOW_ALL if rule.direction == "egress"]
_DHCP_SCRIPT = """#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr flush dev "$interface"
ip addr add "$ip/$mask" dev "$interface"
set -- $staticroutes
while [ $# -gt 1 ]; do
    if [ "$2" = 0.0.0.0 ]; then ip route add "$1" dev "$interface"; else ip route add "$1" via "$2" dev "$interface"; fi
    shift 2
done
echo "$ip $mask mtu=$mtu dns=$dns router=$router" > "{out}"
"""


# Skips IPv6 duplicate address detection and the delay before router solicitations.
_INTERFACE_SETUP = """
cd /proc/sys/net/ipv6/conf/eth0
echo 0 >accept_dad
echo 0 >router_solicitation_delay
echo 1 >router_solicitation_interval
ip link set eth0 address {mac}
ip link set eth0 up
"""
_PING_COMMAND = ("busybox", "ping", "-c", "1", "-W", "1")


def require_tools() -> None:
    missing = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None})
    if os.geteuid() != 0:
        missing.append("root")
    if missing and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(missing)}, and KILONOVA_REQUIRE_ALL=1")
    if missing:
        pytest.skip(f"networks of guests need {', '.join(missing)}")


class Namespace:
    """A network namespace. A process keeps it alive, at most until the test process ends."""

    def __init__(self, enter: list[str], mounts: bool = False) -> None:
        flags = ["-n", "-m"] if mounts else ["-n"]
        end_with_parent = ["setpriv", "--pdeathsig", "KILL", "--"]
        self._process = subprocess.Popen(
            [
                *enter,
                *end_with_parent,
                "unshare",
                *flags,
                "--",
                "sh",
                "-c",
                "ip link set lo up; echo; exec sleep infinity",
            ],
            stdout=subprocess.PIPE,
            env=_ENV,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as ready:
            ready.readline()
        self.pid = self._process.pid
        self.enter = ["nsenter", "-t", str(self.pid), "-n", *(["-m"] if mounts else []), "--"]

    def execute(self, *command: str | Path, check: bool = True, seconds: float = 120.0) -> str:
        done = subprocess.run(
            [*self.enter, *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env=_ENV,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(map(str, command))}: {done.stderr or done.stdout}")
        return done.stdout

    def succeeds(self, *command: str) -> bool:
        done = subprocess.run([*self.enter, *command], capture_output=True, check=False, timeout=120, env=_ENV)
        return done.returncode == 0

    def ping(self, address: str, *options: str) -> bool:
        return self.succeeds(*_PING_COMMAND, *options, address)

    def reaches(self, address: str, *options: str) -> bool:
        """Ping the address until it replies, because replies may be late on a busy machine."""
        return bool(eventually(lambda: self.ping(address, *options)))

    def start_process(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.enter, *command], env=_ENV, text=True, **options)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(60)


def all_unreachable(*targets: tuple[Namespace, str]) -> bool:
    """Whether no namespace reaches its address. Pings in parallel, because each waits a second for a reply."""
    pings = [
        namespace.start_process(*_PING_COMMAND, address, stdout=subprocess.DEVNULL) for namespace, address in targets
    ]
    exit_codes = [ping.wait(120) for ping in pings]
    return all(exit_codes)


class Guest(Namespace):
    def __init__(self, host: Host, network: WiredNetwork, port: WiredPort) -> None:
        super().__init__(host.namespace.enter)
        self.port = port
        self._host = host
        self._directory = host.directory
        tap = NAMES.tap(port.id)
        host.execute("ip", "link", "add", tap, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        host.execute("ip", "link", "set", tap, "master", NAMES.bridge(network.id), "up")
        self.execute("sh", "-c", _INTERFACE_SETUP.format(mac=port.mac))

    def end(self) -> None:
        """Also remove the interface. The kernel would remove it later, after it has sent another packet."""
        super().end()
        self._host.execute("ip", "link", "del", NAMES.tap(self.port.id), check=False)

    def dhcp(self) -> str:
        """Run a DHCP client and return its output."""
        out, script = self._directory / f"{self.pid}.lease", self._directory / f"{self.pid}.sh"
        script.write_text(_DHCP_SCRIPT.replace("{out}", str(out)))
        script.chmod(0o755)
        options = ["-O", "staticroutes", "-O", "mtu"]
        self.execute("busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "60", "-T", "1", *options, "-s", script)
        return out.read_text().strip()

    def set_address(self, address: str, gateway: str = "") -> None:
        self.execute("ip", "addr", "add", address, "dev", "eth0")
        if gateway:
            self.execute("ip", "route", "add", "default", "via", gateway)

    def wait_for_link(self) -> None:
        """Wait until the interface has a usable IPv6 link-local address."""

        def is_ready() -> bool:
            addresses = self.execute("ip", "-6", "addr", "show", "dev", "eth0")
            return "inet6 fe80:" in addresses and "tentative" not in addresses

        assert eventually(is_ready)

    def get_metadata(self, path: str, *headers: str) -> str:
        """The response of the metadata service, with headers."""
        return self.send_metadata_request("\r\n".join([f"GET {path} HTTP/1.0", *headers, "", ""]).encode())

    def send_metadata_request(self, request: bytes) -> str:
        """The response of the metadata service to these bytes."""
        done = subprocess.run(
            [*self.enter, "busybox", "nc", "-w", "20", "169.254.169.254", "80"],
            input=request,
            capture_output=True,
            check=False,
            timeout=120,
            env=_ENV,
        )
        return done.stdout.decode(errors="replace")


class Host:
    """A host with a worker process (`network_worker`), which applies network plans."""

    def __init__(self, fabric: Fabric, number: int, directory: Path, **settings: Any) -> None:
        self.address = f"10.99.0.{10 + number}"
        self.directory = directory
        self.settings = settings
        directory.mkdir()
        self.namespace = Namespace([], mounts=True)
        self.execute("sh", "-c", "mkdir -p /run/netns && mount -t tmpfs none /run/netns")
        fabric.connect(self.namespace, f"h{number}", f"{self.address}/24")
        self.execute("ip", "route", "add", "default", "via", fabric.address)
        self.guests: list[Guest] = []
        self._worker: subprocess.Popen[str] | None = None
        self._initial_interfaces = self.interfaces()
        self.start()

    def execute(self, *command: str | Path, check: bool = True) -> str:
        return self.namespace.execute(*command, check=check)

    def start(self) -> None:
        self._log = (self.directory / "log").open("a")
        self._worker = self.namespace.start_process(
            sys.executable,
            "-m",
            "tests.virt.network_worker",
            str(self.directory / "networks"),
            self.address,
            json.dumps(self.settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._worker.stdout is not None
        assert self._worker.stdout.readline().strip() == "ready", (self.directory / "log").read_text()

    def kill(self) -> None:
        worker = self._worker
        assert worker is not None
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.kill()
        worker.wait(60)
        for file in (worker.stdin, worker.stdout, self._log):
            file.close()

    def call(self, command: str, argument: str) -> Any:
        """Send a command to the worker process and return the result."""
        worker = self._worker
        assert worker is not None
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{command} {argument}\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline() or '{"error": "the process has ended"}')

    def send_plan(
        self, *networks: WiredNetwork, read_at: float = 0.0, groups: dict[str, list[str]] | None = None
    ) -> Any:
        plan = NetworkPlan(read_at=read_at or time.time(), networks=list(networks), groups=groups or {})
        return self.call("apply", base64.b64encode(msgspec.msgpack.encode(plan)).decode())

    def apply(self, *networks: WiredNetwork, **options: Any) -> None:
        result = self.send_plan(*networks, **options)
        assert result == "applied", result

    def start_guest(self, network: WiredNetwork, port: WiredPort) -> Guest:
        guest = Guest(self, network, port)
        self.guests.append(guest)
        return guest

    def start_guests(self, network: WiredNetwork, *ports: WiredPort) -> list[Guest]:
        """Apply the network and start a guest with DHCP on each port."""
        self.apply(network)
        guests = [self.start_guest(network, port) for port in ports]
        for guest in guests:
            guest.dhcp()
        return guests

    def interfaces(self) -> set[str]:
        return {link["ifname"] for link in json.loads(self.execute("ip", "-j", "link", "show"))}

    def namespaces(self) -> list[str]:
        return self.execute("ls", "/run/netns").split()

    def dnsmasq_pids(self) -> list[str]:
        """The process ids of this host's dnsmasq servers."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
                if command and command[0].endswith("dnsmasq") and str(self.directory) in " ".join(command):
                    found.append(entry.name)
        return sorted(found)

    def clear(self) -> bool:
        """Remove guests and networks of the test. Returns whether the host is clean."""
        for guest in self.guests:
            guest.end()
        self.guests.clear()
        is_applied = self._worker is not None and self._worker.poll() is None and self.send_plan() == "applied"
        self.execute("ip", "neigh", "flush", "all", check=False)
        return (
            is_applied
            and self.interfaces() == self._initial_interfaces
            and not self.namespaces()
            and not self.dnsmasq_pids()
        )

    def end(self) -> None:
        for guest in self.guests:
            guest.end()
        if self._worker is not None and self._worker.poll() is None:
            self.kill()
        for pid in self.dnsmasq_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self.namespace.end()


class Fabric:
    """The network between hosts and the external network. Tests reuse clean hosts."""

    address = "10.99.0.1"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.namespace = Namespace([])
        self.namespace.execute("ip", "link", "add", "sw", "address", "02:00:00:00:00:01", "type", "bridge")
        self.namespace.execute("ip", "addr", "add", f"{self.address}/24", "dev", "sw")
        self.namespace.execute("ip", "link", "set", "sw", "up")
        self._initial_state = self._state()
        self._host_numbers = itertools.count(1)
        self.idle: list[Host] = []
        self.used: list[Host] = []

    def connect(self, namespace: Namespace, name: str, address: str) -> None:
        self.namespace.execute(
            "ip", "link", "add", name, "type", "veth", "peer", "name", "mgmt", "netns", str(namespace.pid)
        )
        self.namespace.execute("ip", "link", "set", name, "master", "sw", "up")
        namespace.execute("ip", "addr", "add", address, "dev", "mgmt")
        namespace.execute("ip", "link", "set", "mgmt", "up")

    def host(self, **settings: Any) -> Host:
        """A clean host. `settings` are those of the section `bridges`."""
        found = next((host for host in self.idle if host.settings == settings), None)
        if found is not None:
            self.idle.remove(found)
        else:
            number = next(self._host_numbers)
            found = Host(self, number, self._directory / f"h{number}", **settings)
        self.used.append(found)
        return found

    def clear(self) -> bool:
        """Clean up after a test. Returns whether another test may use the fabric."""
        for host in self.used:
            if host.clear():
                self.idle.append(host)
            else:
                host.end()
        self.used.clear()
        self.namespace.execute("ip", "neigh", "flush", "all")
        return self._state() == self._initial_state

    def end(self) -> None:
        for host in (*self.idle, *self.used):
            host.end()
        self.namespace.end()

    def _state(self) -> tuple[str, str]:
        """The addresses and routes of this namespace, not of the hosts."""
        return self.namespace.execute("ip", "-4", "-o", "addr"), self.namespace.execute("ip", "route").replace(
            " linkdown", ""
        )


class Fabrics:
    """Shares one fabric between tests, and replaces it if it is not clean after a test."""

    def __init__(self, directory: Path) -> None:
        require_tools()
        self._directory = directory
        self._numbers = itertools.count(1)
        self._idle: Fabric | None = None

    @contextlib.contextmanager
    def use(self) -> Iterator[Fabric]:
        fabric, self._idle = self._idle or self._new(), None
        try:
            yield fabric
            if fabric.clear():
                self._idle = fabric
        finally:
            if self._idle is None:
                fabric.end()

    def _new(self) -> Fabric:
        directory = self._directory / str(next(self._numbers))
        directory.mkdir()
        return Fabric(directory)

    def end(self) -> None:
        if self._idle is not None:
            self._idle.end()


_numbers = itertools.count(1)


def network(cidr: str = "10.1.0.0/24", **fields: Any) -> WiredNetwork:
    gateway = fields.pop("gateway", cidr.rsplit(".", 1)[0] + ".1")
    subnet = WiredSubnet(
        id=str(uuid.uuid4()), cidr=cidr, gateway=gateway, held=[gateway] if gateway else [], **fields.pop("subnet", {})
    )
    return WiredNetwork(id=str(uuid.uuid4()), vni=next(_numbers), subnets=[subnet], **fields)


def port(address: str, rules: list[FirewallRule] | None = None, **fields: Any) -> WiredPort:
    number = next(_numbers)
    return WiredPort(
        id=str(uuid.uuid4()),
        guest_id=str(uuid.uuid4()),
        mac=f"fa:16:3e:00:{number // 256:02x}:{number % 256:02x}",
        addresses=[address],
        rules=ALLOW_ALL if rules is None else rules,
        **fields,
    )


def with_ports(network: WiredNetwork, *ports: WiredPort, **fields: Any) -> WiredNetwork:
    return msgspec.structs.replace(network, ports=list(ports), **fields)


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Call `condition` until its result is true or the time is over, and return the last result."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
