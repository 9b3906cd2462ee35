"""Hypervisor hosts on one machine, each with its own namespaces (network, mount, PID, UTS) and libvirtd.

    with temporary_site() as site:              # a bridge that connects the hosts and this machine
        one, two = site.host("one"), site.host("two")
        agent = one.start_process([...])        # a process on the host
        one.cut_power()                         # ends all processes and the network of the host
        one.power_on()

Paths are the same on the hosts and outside. `site.directory` is short, because paths of sockets are limited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import micro_guest
from tests.support.certificates import Authority

_TOOLS = {
    "libvirtd": "libvirt-daemon-system",
    "virtlogd": "libvirt-daemon-system",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-storage-daemon": "qemu-system-common",
    "qemu-img": "qemu-utils",
    "dnsmasq": "dnsmasq-base",
    "nft": "nftables",
    "ip": "iproute2",
    "genisoimage": "genisoimage",
    "nats-server": "nats-server",
    "as": "binutils",
}
_MAX_SITES = 100
_POWER_TIMEOUT_SECONDS = 60.0

_LIBVIRTD = """
host_uuid = "{uuid}"
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
auth_unix_rw = "none"
auth_unix_ro = "none"
listen_addr = "{address}"
auth_tcp = "none"
log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
"""
_LIBVIRTD_TCP = """
listen_tls = 0
listen_tcp = 1
"""
# Only TLS, with client certificates.
_LIBVIRTD_TLS = """
listen_tls = 1
listen_tcp = 0
ca_file = "{directory}/ca-cert.pem"
cert_file = "{directory}/server-cert.pem"
key_file = "{directory}/server-key.pem"
"""
# Without security drivers and cgroups, which do not work in a container.
_QEMU = """
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "logd"
migration_address = "{address}"
migration_host = "{address}"
"""
# One directory for all certificates of QEMU.
_QEMU_TLS = """
default_tls_x509_cert_dir = "{directory}"
default_tls_x509_verify = 1
"""
# Console logs are rotated early, so that tests can check it.
_VIRTLOGD = """
max_size = {size}
max_backups = 3
"""
CONSOLE_LOG_BYTES = 32768
_INIT = """#!/bin/sh
# The first process of the host. Its children end with it.
set -e
mount --make-rprivate /
hostname {name}
for pair in etc:/etc/libvirt run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
    mkdir -p "${{pair#*:}}"
    mount --bind "{directory}/${{pair%%:*}}" "${{pair#*:}}"
done
mkdir -p /run/netns
mount -t tmpfs none /run/netns
rm -rf {directory}/run/*
virtlogd -p /run/libvirt/virtlogd.pid &
libvirtd --listen -p /run/libvirt/libvirtd.pid &
touch {directory}/started
while :; do wait || :; sleep 0.2; done
"""


def find_missing_tools(further: Mapping[str, str] | None = None) -> list[str]:
    """The missing requirements of hosts with real guests. `further`: packages of further tools, by tool."""
    tools = {**_TOOLS, **(further or {})}
    missing_tools = sorted({package for tool, package in tools.items() if shutil.which(tool, path=_PATH) is None})
    if not Path("/usr/share/OVMF").exists():
        missing_tools.append("ovmf")
    if os.geteuid() != 0:
        missing_tools.append("root")
    try:
        import libvirt  # noqa: F401
    except ImportError:
        missing_tools.append("libvirt-python")
    return missing_tools


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def require_tools(further: Mapping[str, str] | None = None) -> None:
    """Skip the test if a requirement is missing; fail it with KILONOVA_REQUIRE_ALL=1."""
    missing_tools = find_missing_tools(further)
    if missing_tools and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(missing_tools)}, and KILONOVA_REQUIRE_ALL=1")
    if missing_tools:
        pytest.skip(f"real guests need {', '.join(missing_tools)}")


_MAC = "02:00:00:00:00:01"


class Site:
    """A bridge with hosts. This machine has the first address of the network."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.directory = directory
        self.bridge = f"ktst{number}"
        self.address = f"10.{100 + number}.0.1"
        self.hosts: dict[str, Host] = {}
        # If set before hosts are created, it issues a certificate for each.
        self.authority: Authority | None = None

    def host(self, name: str) -> Host:
        """Create a host and power it on."""
        host = self.hosts[name] = Host(self, name, len(self.hosts) + 11)
        host.power_on()
        return host

    def micro_image(self, word: str = "micro", fill_mb: int = 0, power_button: bool = False) -> Path:
        """The file of a micro guest's image, created at first use. See `micro_guest` for the parameters."""
        path = self.directory / f"{word}-{fill_mb}{'-power-button' if power_button else ''}.raw"
        if not path.exists():
            path.write_bytes(micro_guest.image(word, fill_mb, power_button))
        return path

    def open(self) -> None:
        self.close()
        # Without a fixed MAC address the bridge has that of a host, and loses it when the host loses power.
        _run("ip", "link", "add", self.bridge, "address", _MAC, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")

    def close(self) -> None:
        for host in self.hosts.values():
            host.cut_power()
        namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for namespace in re.findall(rf"^({self.bridge}-\S+)", namespaces, re.MULTILINE):
            _run("ip", "netns", "del", namespace)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


class Host:
    def __init__(self, site: Site, name: str, number: int) -> None:
        self.site = site
        self.name = name
        self.address = f"10.{100 + site.number}.0.{number}"
        self.directory = site.directory / name
        self.namespace = f"{site.bridge}-{name}"
        self.instances = self.directory / "instances"
        self._link = f"{site.bridge}-{number}"
        self._number = number
        self._uuid = str(uuid.uuid4())
        self._outer: subprocess.Popen[bytes] | None = None
        self._processes: list[Process] = []
        self.init_pid = 0

    @property
    def uri(self) -> str:
        """The URI of its libvirt, for all processes on this machine."""
        return f"qemu+unix:///system?socket={self.directory}/run/libvirt-sock"

    @property
    def is_on(self) -> bool:
        return self._outer is not None and self._outer.poll() is None

    def power_on(self) -> None:
        self._connect_network()
        for name in ("etc/qemu", "run", "lib", "log", "cache", "instances"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        libvirtd, qemu = _LIBVIRTD.format(uuid=self._uuid, address=self.address), _QEMU.format(address=self.address)
        if self.site.authority is not None:
            self.site.authority.issue(self.certificates, self.address)
            libvirtd += _LIBVIRTD_TLS.format(directory=self.certificates)
            qemu += _QEMU_TLS.format(directory=self.certificates)
        else:
            libvirtd += _LIBVIRTD_TCP
        (self.directory / "etc/libvirtd.conf").write_text(libvirtd)
        (self.directory / "etc/qemu.conf").write_text(qemu)
        (self.directory / "etc/virtlogd.conf").write_text(_VIRTLOGD.format(size=CONSOLE_LOG_BYTES))
        (self.directory / "started").unlink(missing_ok=True)
        init = self.directory / "init"
        init.write_text(_INIT.format(name=self.name, directory=self.directory))
        init.chmod(0o700)
        unshare_options = ["-m", "-u", "-i", "-p", "--fork", "--kill-child=KILL", "--mount-proc"]
        with (self.directory / "init.log").open("ab") as log:
            self._outer = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "unshare", *unshare_options, str(init)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _PATH},
                start_new_session=True,
            )
        wait_until(lambda: (self.directory / "started").exists(), f"host {self.name} starts")
        self.init_pid = int(_children(self._outer.pid)[0])
        wait_until(self._is_responding, f"libvirt of host {self.name} responds")

    @property
    def certificates(self) -> Path:
        """The directory of the certificates, if the site has an authority."""
        return self.directory / "pki"

    def cut_power(self) -> None:
        """End all processes and the network of the host."""
        if self._outer is not None:
            if self.init_pid and self.is_on:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init_pid, signal.SIGKILL)
            for process in self._processes:
                process.continue_outer()
                process.outer.wait(_POWER_TIMEOUT_SECONDS)
            self._processes.clear()
            self._outer.wait(_POWER_TIMEOUT_SECONDS)
            self._outer = None
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)

    def start_process(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, log: str = ""
    ) -> Process:
        """Start a process on the host. Its output goes to a file in the host's directory."""
        name = log or Path(command[0]).name
        with (self.directory / f"{name}.out").open("ab") as out:
            outer = subprocess.Popen(
                [*self._enter(), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PATH": _PATH, **(env or {})},
            )
        process = Process(outer, self.directory / f"{name}.out")
        self._processes.append(process)
        return process

    def execute(self, *command: str | Path, check: bool = True, seconds: float = 60.0) -> str:
        """Run a command on the host and return its output."""
        done = subprocess.run(
            [*self._enter(), *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env={**os.environ, "PATH": _PATH},
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {' '.join(map(str, command))}: {done.stderr or done.stdout}")
        return done.stdout

    def kill_libvirt(self) -> None:
        """Kill libvirtd; guests continue to run."""
        for pid in self._libvirt_pids():
            os.kill(int(pid), signal.SIGKILL)
        # A new libvirtd can start only after the old one has ended.
        wait_until(lambda: not self._libvirt_pids(), f"libvirt of host {self.name} has ended")

    def _libvirt_pids(self) -> list[str]:
        return [pid for pid in _children(self.init_pid) if _process_name(pid) == "libvirtd"]

    def start_libvirt(self) -> None:
        self.execute("libvirtd", "--listen", "-d", "-p", "/run/libvirt/libvirtd.pid")
        wait_until(self._is_responding, f"libvirt of host {self.name} responds again")

    def domains(self) -> dict[str, bool]:
        """The names of the host's domains, and whether they run."""
        named = self.execute("virsh", "list", "--all", "--name").split()
        running = set(self.execute("virsh", "list", "--name").split())
        return {name: name in running for name in named}

    def guest_processes(self) -> list[str]:
        """The QEMU processes of the host, including those unknown to libvirt."""
        return [
            line
            for line in self.execute("ps", "-ww", "-eo", "args").splitlines()
            if line.startswith("/usr/bin/qemu-system")
        ]

    def listening_sockets(self, program: str) -> list[str]:
        """The TCP sockets on which processes of this name listen."""
        return [line for line in self.execute("ss", "-Hltnp").splitlines() if f'"{program}' in line]

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.init_pid), "-m", "-u", "-i", "-n", "-p", "--"]

    def _connect_network(self) -> None:
        # A killed test run may have left the link, with processes in a namespace without a name.
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)
        _run("ip", "netns", "add", self.namespace)
        inside = ["ip", "-n", self.namespace]
        _run(*inside, "link", "set", "lo", "up")
        # Always the same MAC address, so that ARP caches stay valid after a power cycle.
        mac = f"02:00:00:00:{self.site.number:02x}:{self._number:02x}"
        host_end = ["mgmt", "address", mac, "netns", self.namespace]
        _run("ip", "link", "add", *host_end, "type", "veth", "peer", "name", self._link)
        _run("ip", "link", "set", self._link, "master", self.site.bridge, "up")
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "mgmt")
        _run(*inside, "link", "set", "mgmt", "up")

    def _is_responding(self) -> bool:
        import libvirt

        libvirt.registerErrorHandler(lambda *_: None, None)
        try:
            libvirt.open(self.uri).close()
            # libvirt needs virtlogd for every start of a guest, but does not wait for it.
            with socket.socket(socket.AF_UNIX) as logs:
                logs.connect(str(self.directory / "run/virtlogd-sock"))
        except (libvirt.libvirtError, OSError):
            return False
        return True


class Process:
    """A process on a host. `outer` is the `nsenter` process on this machine, which waits for it."""

    def __init__(self, outer: subprocess.Popen[bytes], output_file: Path) -> None:
        self.outer = outer
        self.output_file = output_file
        wait_until(lambda: bool(_children(outer.pid)) or outer.poll() is not None, "a process starts on the host")
        self.pid = int((_children(outer.pid) or ["0"])[0])

    def alive(self) -> bool:
        return self.outer.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._send(number)
        self.outer.wait(_POWER_TIMEOUT_SECONDS)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        self._send(signal.SIGTERM)
        return self.outer.wait(_POWER_TIMEOUT_SECONDS)

    def continue_outer(self) -> None:
        """Continue `outer`, which stops together with the process on the host and then would not see its end."""
        if self.alive():
            self.outer.send_signal(signal.SIGCONT)

    def _send(self, number: int) -> None:
        # The PID of an ended process may be reused, and 0 would be our own process group.
        if self.pid and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self.continue_outer()


@contextlib.contextmanager
def temporary_site() -> Iterator[Site]:
    """A site whose number is unique on this machine, so that test runs can be concurrent."""
    require_tools()
    for number in range(_MAX_SITES):
        with Path(f"/tmp/kilonova-site-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            directory = Path(tempfile.mkdtemp(prefix=f"kt{number}-", dir="/tmp"))
            site = Site(number, directory)
            try:
                site.open()
                yield site
            finally:
                site.close()
                shutil.rmtree(directory, ignore_errors=True)
            return
    raise AssertionError("there is no free number for a site")


def wait_until(condition: Any, description: str, seconds: float = 300.0, interval_seconds: float = 0.0) -> Any:
    """Call `condition` until its result is true, and return the result. By default the interval grows."""
    began = time.monotonic()
    while not (found := condition()):
        if time.monotonic() > began + seconds:
            raise AssertionError(f"not within {seconds:g} s: {description}")
        if interval_seconds:
            time.sleep(interval_seconds)
        else:
            sleep_before_retry(began)
    return found


def sleep_before_retry(began: float) -> None:
    """Sleep before the next poll. The pause grows with the time since `began`."""
    time.sleep(min(0.05 + 0.1 * (time.monotonic() - began), 0.5))


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


def _process_name(pid: str) -> str:
    """The name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH})
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")


@cache
def linux_image() -> Path:
    """The image of `kilonova image tiny`, built once per machine and version of the builder."""
    from kilonova import tiny

    path = Path(tempfile.gettempdir()) / f"kilonova-tiny-{tiny.fingerprint()}.qcow2"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            tiny.build(path)
    return path
