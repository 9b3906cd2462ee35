"""Hosts that have nothing but networks: namespaces of their own, and a process that makes what plans say.

A guest is a namespace too, plugged in where a guest's interface would be.
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
from kilonova.hosts.messages import Firewall, NetworkPlan, WiredNetwork, WiredPort, WiredSubnet

_TOOLS = {"dnsmasq": "dnsmasq-base", "nft": "nftables", "ip": "iproute2", "busybox": "busybox-static"}
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_ENV = {**os.environ, "PATH": _PATH, "PYTHONPATH": str(Path(__file__).parents[2])}
NAMES = Names("kn")
ANYTHING = [
    Firewall(direction=direction, ethertype=ethertype)
    for direction in ("egress", "ingress")
    for ethertype in ("IPv4", "IPv6")
]
OUTWARD = [rule for rule in ANYTHING if rule.direction == "egress"]
_LEASE = """#!/bin/sh
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


# It does not wait for others who might have its addresses of IPv6, nor before it asks for a router.
_CARD = """
cd /proc/sys/net/ipv6/conf/eth0
echo 0 >accept_dad
echo 0 >router_solicitation_delay
echo 1 >router_solicitation_interval
ip link set eth0 address {mac}
ip link set eth0 up
"""
_PING = ("busybox", "ping", "-c", "1", "-W", "1")


def require() -> None:
    lacking = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None})
    if os.geteuid() != 0:
        lacking.append("root")
    if lacking and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(lacking)}, and KILONOVA_REQUIRE_ALL=1")
    if lacking:
        pytest.skip(f"networks of guests need {', '.join(lacking)}")


class Space:
    """A network namespace, which lives as long as a process in it, which ends with the test process at the latest."""

    def __init__(self, enter: list[str], mounts: bool = False) -> None:
        flags = ["-n", "-m"] if mounts else ["-n"]
        dies = ["setpriv", "--pdeathsig", "KILL", "--"]
        self._process = subprocess.Popen(
            [*enter, *dies, "unshare", *flags, "--", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
            env=_ENV,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as ready:
            ready.readline()
        self.pid = self._process.pid
        self.enter = ["nsenter", "-t", str(self.pid), "-n", *(["-m"] if mounts else []), "--"]

    def do(self, *command: str | Path, check: bool = True, seconds: float = 120.0) -> str:
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

    def works(self, *command: str) -> bool:
        done = subprocess.run([*self.enter, *command], capture_output=True, check=False, timeout=120, env=_ENV)
        return done.returncode == 0

    def ping(self, address: str, *options: str) -> bool:
        return self.works(*_PING, *options, address)

    def reaches(self, address: str, *options: str) -> bool:
        """Soon: one answer may be late where the machine is busy."""
        return bool(soon(lambda: self.ping(address, *options)))

    def start(self, *command: str, **kept: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.enter, *command], env=_ENV, text=True, **kept)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait(60)


def nobody_reaches(*tries: tuple[Space, str]) -> bool:
    """All at once, as each waits a second for an answer."""
    pings = [space.start(*_PING, address, stdout=subprocess.DEVNULL) for space, address in tries]
    ends = [ping.wait(120) for ping in pings]
    return all(ends)


class Guest(Space):
    def __init__(self, host: Host, network: WiredNetwork, port: WiredPort) -> None:
        super().__init__(host.space.enter)
        self.port = port
        self._host = host
        self._directory = host.directory
        tap = NAMES.tap(port.id)
        host.do("ip", "link", "add", tap, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        host.do("ip", "link", "set", tap, "master", NAMES.bridge(network.id), "up")
        self.do("sh", "-c", _CARD.format(mac=port.mac))

    def end(self) -> None:
        """And its interface, which the kernel would remove later, after it had spoken once more."""
        super().end()
        self._host.do("ip", "link", "del", NAMES.tap(self.port.id), check=False)

    def dhcp(self) -> str:
        """What it was told."""
        out, script = self._directory / f"{self.pid}.lease", self._directory / f"{self.pid}.sh"
        script.write_text(_LEASE.replace("{out}", str(out)))
        script.chmod(0o755)
        options = ["-O", "staticroutes", "-O", "mtu"]
        self.do("busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "60", "-T", "1", *options, "-s", script)
        return out.read_text().strip()

    def address(self, address: str, gateway: str = "") -> None:
        self.do("ip", "addr", "add", address, "dev", "eth0")
        if gateway:
            self.do("ip", "route", "add", "default", "via", gateway)

    def wait_for_link(self) -> None:
        """Until it has an address of IPv6 of its own to ask from, which nobody else has."""

        def is_ready() -> bool:
            said = self.do("ip", "-6", "addr", "show", "dev", "eth0")
            return "inet6 fe80:" in said and "tentative" not in said

        assert soon(is_ready)

    def asks(self, path: str, *headers: str) -> str:
        """The whole answer of the metadata service."""
        return self.says("\r\n".join([f"GET {path} HTTP/1.0", *headers, "", ""]).encode())

    def says(self, words: bytes) -> str:
        done = subprocess.run(
            [*self.enter, "busybox", "nc", "-w", "20", "169.254.169.254", "80"],
            input=words,
            capture_output=True,
            check=False,
            timeout=120,
            env=_ENV,
        )
        return done.stdout.decode(errors="replace")


class Host:
    def __init__(self, fabric: Fabric, number: int, directory: Path, **settings: Any) -> None:
        self.address = f"10.99.0.{10 + number}"
        self.directory = directory
        self.settings = settings
        directory.mkdir()
        self.space = Space([], mounts=True)
        self.do("sh", "-c", "mkdir -p /run/netns && mount -t tmpfs none /run/netns")
        fabric.plug(self.space, f"h{number}", f"{self.address}/24")
        self.do("ip", "route", "add", "default", "via", fabric.address)
        self.guests: list[Guest] = []
        self._worker: subprocess.Popen[str] | None = None
        self._bare = self.interfaces()
        self.start()

    def do(self, *command: str | Path, check: bool = True) -> str:
        return self.space.do(*command, check=check)

    def start(self) -> None:
        self._log = (self.directory / "log").open("a")
        self._worker = self.space.start(
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

    def ask(self, verb: str, given: str) -> Any:
        worker = self._worker
        assert worker is not None
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{verb} {given}\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline() or '{"error": "the process has ended"}')

    def tell(self, *networks: WiredNetwork, read_at: float = 0.0, groups: dict[str, list[str]] | None = None) -> Any:
        plan = NetworkPlan(read_at=read_at or time.time(), networks=list(networks), groups=groups or {})
        return self.ask("apply", base64.b64encode(msgspec.msgpack.encode(plan)).decode())

    def apply(self, *networks: WiredNetwork, **said_of_it: Any) -> None:
        said = self.tell(*networks, **said_of_it)
        assert said == "applied", said

    def guest(self, network: WiredNetwork, port: WiredPort) -> Guest:
        guest = Guest(self, network, port)
        self.guests.append(guest)
        return guest

    def start_guests(self, network: WiredNetwork, *ports: WiredPort) -> list[Guest]:
        """Apply the network and start a guest on each port, with its address from DHCP."""
        self.apply(network)
        guests = [self.guest(network, port) for port in ports]
        for guest in guests:
            guest.dhcp()
        return guests

    def interfaces(self) -> set[str]:
        return {link["ifname"] for link in json.loads(self.do("ip", "-j", "link", "show"))}

    def namespaces(self) -> list[str]:
        return self.do("ls", "/run/netns").split()

    def servers(self) -> list[str]:
        """The dnsmasq processes of this host."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                said = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
                if said and said[0].endswith("dnsmasq") and str(self.directory) in " ".join(said):
                    found.append(entry.name)
        return sorted(found)

    def clear(self) -> bool:
        """Take everything away that a test has made; whether the host then is as it was."""
        for guest in self.guests:
            guest.end()
        self.guests.clear()
        is_told = self._worker is not None and self._worker.poll() is None and self.tell() == "applied"
        self.do("ip", "neigh", "flush", "all", check=False)
        return is_told and self.interfaces() == self._bare and not self.namespaces() and not self.servers()

    def end(self) -> None:
        for guest in self.guests:
            guest.end()
        if self._worker is not None and self._worker.poll() is None:
            self.kill()
        for pid in self.servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        self.space.end()


class Fabric:
    """What hosts are plugged into, and what is outside of them. Hosts that one test leaves as they were, others use."""

    address = "10.99.0.1"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.space = Space([])
        self.space.do("ip", "link", "add", "sw", "address", "02:00:00:00:00:01", "type", "bridge")
        self.space.do("ip", "addr", "add", f"{self.address}/24", "dev", "sw")
        self.space.do("ip", "link", "set", "sw", "up")
        self._bare = self._state()
        self._made = itertools.count(1)
        self.idle: list[Host] = []
        self.used: list[Host] = []

    def plug(self, space: Space, name: str, address: str) -> None:
        self.space.do("ip", "link", "add", name, "type", "veth", "peer", "name", "mgmt", "netns", str(space.pid))
        self.space.do("ip", "link", "set", name, "master", "sw", "up")
        space.do("ip", "addr", "add", address, "dev", "mgmt")
        space.do("ip", "link", "set", "mgmt", "up")

    def host(self, **settings: Any) -> Host:
        """`settings`: of its bridges."""
        found = next((host for host in self.idle if host.settings == settings), None)
        if found is not None:
            self.idle.remove(found)
        else:
            number = next(self._made)
            found = Host(self, number, self._directory / f"h{number}", **settings)
        self.used.append(found)
        return found

    def clear(self) -> bool:
        """After a test. Whether another one may use it."""
        for host in self.used:
            if host.clear():
                self.idle.append(host)
            else:
                host.end()
        self.used.clear()
        self.space.do("ip", "neigh", "flush", "all")
        return self._state() == self._bare

    def end(self) -> None:
        for host in (*self.idle, *self.used):
            host.end()
        self.space.end()

    def _state(self) -> tuple[str, str]:
        """Addresses and routes, whether or not a host is plugged in."""
        return self.space.do("ip", "-4", "-o", "addr"), self.space.do("ip", "route").replace(" linkdown", "")


class Fabrics:
    """One fabric for the tests of a run. After a test that leaves it changed, the next one gets a new one."""

    def __init__(self, directory: Path) -> None:
        require()
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


def network(cidr: str = "10.1.0.0/24", **said: Any) -> WiredNetwork:
    gateway = said.pop("gateway", cidr.rsplit(".", 1)[0] + ".1")
    subnet = WiredSubnet(
        id=str(uuid.uuid4()), cidr=cidr, gateway=gateway, held=[gateway] if gateway else [], **said.pop("subnet", {})
    )
    return WiredNetwork(id=str(uuid.uuid4()), vni=next(_numbers), subnets=[subnet], **said)


def port(address: str, rules: list[Firewall] | None = None, **said: Any) -> WiredPort:
    number = next(_numbers)
    return WiredPort(
        id=str(uuid.uuid4()),
        guest_id=str(uuid.uuid4()),
        mac=f"fa:16:3e:00:{number // 256:02x}:{number % 256:02x}",
        addresses=[address],
        rules=ANYTHING if rules is None else rules,
        **said,
    )


def with_ports(network: WiredNetwork, *ports: WiredPort, **said: Any) -> WiredNetwork:
    return msgspec.structs.replace(network, ports=list(ports), **said)


def soon(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found
