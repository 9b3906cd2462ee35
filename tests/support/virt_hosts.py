"""Hypervisor hosts on one machine: each has namespaces of its own (network, mounts, processes, names) and a libvirtd.

    with site() as place:                       # a switch that the hosts and this machine are plugged into
        one, two = place.host("one"), place.host("two")
        agent = one.run([...])                  # a process on the host
        one.cut_power()                         # every process of the host is gone at once, and so is its network
        one.power_on()

Paths are the same on the hosts and outside. `place.directory` is short, as sockets' paths have to be.
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
_MOST_SITES = 100
_POWER_SECONDS = 60.0

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
# By TLS to those who have a certificate, and by nothing else.
_LIBVIRTD_TLS = """
listen_tls = 1
listen_tcp = 0
ca_file = "{directory}/ca-cert.pem"
cert_file = "{directory}/server-cert.pem"
key_file = "{directory}/server-key.pem"
"""
# Without security drivers and cgroups, which need more of a machine than a container has.
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
# One directory for all that QEMU has certificates for.
_QEMU_TLS = """
default_tls_x509_cert_dir = "{directory}"
default_tls_x509_verify = 1
"""
# Consoles are cut early, so that tests see it.
_VIRTLOGD = """
max_size = {size}
max_backups = 3
"""
CONSOLE_BYTES = 32768
_INIT = """#!/bin/sh
# The first process of the host. What it starts dies with it.
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


def missing() -> list[str]:
    """What lacks for hosts with real guests."""
    lacking = sorted({package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None})
    if not Path("/usr/share/OVMF").exists():
        lacking.append("ovmf")
    if os.geteuid() != 0:
        lacking.append("root")
    try:
        import libvirt  # noqa: F401
    except ImportError:
        lacking.append("libvirt-python")
    return lacking


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def require() -> None:
    """Skip the test where something lacks; where everything is required, fail it."""
    lacking = missing()
    if lacking and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(lacking)}, and KILONOVA_REQUIRE_ALL=1")
    if lacking:
        pytest.skip(f"real guests need {', '.join(lacking)}")


_MAC = "02:00:00:00:00:01"


class Site:
    """A switch with hosts on it. This machine has the first address of the network."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.directory = directory
        self.bridge = f"ktst{number}"
        self.address = f"10.{100 + number}.0.1"
        self.hosts: dict[str, Host] = {}
        # Set before hosts are made, it gives each of them certificates.
        self.authority: Authority | None = None

    def host(self, name: str) -> Host:
        """A host, switched on."""
        host = self.hosts[name] = Host(self, name, len(self.hosts) + 11)
        host.power_on()
        return host

    def micro_image(self, word: str = "micro", full: int = 0, obeys: bool = False) -> Path:
        path = self.directory / f"{word}-{full}{'-obeys' if obeys else ''}.raw"
        if not path.exists():
            path.write_bytes(micro_guest.image(word, full, obeys))
        return path

    def open(self) -> None:
        self.close()
        # Else it has the MAC of one of its hosts, and nobody finds it any more when that one loses power.
        _run("ip", "link", "add", self.bridge, "address", _MAC, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")

    def close(self) -> None:
        for host in self.hosts.values():
            host.cut_power()
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for space in re.findall(rf"^({self.bridge}-\S+)", left, re.MULTILINE):
            _run("ip", "netns", "del", space)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


class Host:
    def __init__(self, site: Site, name: str, number: int) -> None:
        self.site = site
        self.name = name
        self.address = f"10.{100 + site.number}.0.{number}"
        self.directory = site.directory / name
        self.space = f"{site.bridge}-{name}"
        self.instances = self.directory / "instances"
        self._link = f"{site.bridge}-{number}"
        self._number = number
        self._uuid = str(uuid.uuid4())
        self._outer: subprocess.Popen[bytes] | None = None
        self._others: list[Process] = []
        self.init = 0

    @property
    def uri(self) -> str:
        """Its libvirt, from everywhere on this machine."""
        return f"qemu+unix:///system?socket={self.directory}/run/libvirt-sock"

    @property
    def is_on(self) -> bool:
        return self._outer is not None and self._outer.poll() is None

    def power_on(self) -> None:
        self._lay_cable()
        for part in ("etc/qemu", "run", "lib", "log", "cache", "instances"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        libvirtd, qemu = _LIBVIRTD.format(uuid=self._uuid, address=self.address), _QEMU.format(address=self.address)
        if self.site.authority is not None:
            self.site.authority.issue(self.certificates, self.address)
            libvirtd += _LIBVIRTD_TLS.format(directory=self.certificates)
            qemu += _QEMU_TLS.format(directory=self.certificates)
        else:
            libvirtd += _LIBVIRTD_TCP
        (self.directory / "etc/libvirtd.conf").write_text(libvirtd)
        (self.directory / "etc/qemu.conf").write_text(qemu)
        (self.directory / "etc/virtlogd.conf").write_text(_VIRTLOGD.format(size=CONSOLE_BYTES))
        (self.directory / "started").unlink(missing_ok=True)
        init = self.directory / "init"
        init.write_text(_INIT.format(name=self.name, directory=self.directory))
        init.chmod(0o700)
        spaces = ["-m", "-u", "-i", "-p", "--fork", "--kill-child=KILL", "--mount-proc"]
        with (self.directory / "init.log").open("ab") as log:
            self._outer = subprocess.Popen(
                ["ip", "netns", "exec", self.space, "unshare", *spaces, str(init)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _PATH},
                start_new_session=True,
            )
        _until(lambda: (self.directory / "started").exists(), f"host {self.name} starts")
        self.init = int(_children(self._outer.pid)[0])
        _until(self._answers, f"libvirt of host {self.name} answers")

    @property
    def certificates(self) -> Path:
        """Where they are, if the site has an authority."""
        return self.directory / "pki"

    def cut_power(self) -> None:
        """Nothing of the host goes on: no process, no network."""
        if self._outer is not None:
            if self.init and self.is_on:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init, signal.SIGKILL)
            for other in self._others:
                other.let_go()
                other.outer.wait(_POWER_SECONDS)
            self._others.clear()
            self._outer.wait(_POWER_SECONDS)
            self._outer = None
        subprocess.run(["ip", "netns", "del", self.space], capture_output=True, check=False)

    def run(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, log: str = "") -> Process:
        """A process on the host. What it writes goes to a file in the host's directory."""
        name = log or Path(command[0]).name
        with (self.directory / f"{name}.out").open("ab") as out:
            outer = subprocess.Popen(
                [*self._enter(), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PATH": _PATH, **(env or {})},
            )
        made = Process(outer, self.directory / f"{name}.out")
        self._others.append(made)
        return made

    def do(self, *command: str | Path, check: bool = True, seconds: float = 60.0) -> str:
        """Run a command on the host to its end; what it has written."""
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
        """Guests go on without it."""
        for pid in self._libvirts():
            os.kill(int(pid), signal.SIGKILL)
        # Before that a new one could not take its place.
        _until(lambda: not self._libvirts(), f"libvirt of host {self.name} is gone")

    def _libvirts(self) -> list[str]:
        return [pid for pid in _children(self.init) if _name(pid) == "libvirtd"]

    def start_libvirt(self) -> None:
        self.do("libvirtd", "--listen", "-d", "-p", "/run/libvirt/libvirtd.pid")
        _until(self._answers, f"libvirt of host {self.name} answers again")

    def domains(self) -> dict[str, bool]:
        """The names of its domains, and whether they run."""
        named = self.do("virsh", "list", "--all", "--name").split()
        running = set(self.do("virsh", "list", "--name").split())
        return {name: name in running for name in named}

    def guest_processes(self) -> list[str]:
        """The QEMU processes of the host, whatever libvirt knows of them."""
        return [
            line for line in self.do("ps", "-ww", "-eo", "args").splitlines() if line.startswith("/usr/bin/qemu-system")
        ]

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--"]

    def _lay_cable(self) -> None:
        # One of a run that was killed may still be there, with processes in a namespace that has no name any more.
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)
        _run("ip", "netns", "add", self.space)
        inside = ["ip", "-n", self.space]
        _run(*inside, "link", "set", "lo", "up")
        # Always the same, so that others find the host at once when it is back.
        card = f"02:00:00:00:{self.site.number:02x}:{self._number:02x}"
        inside_end = ["mgmt", "address", card, "netns", self.space]
        _run("ip", "link", "add", *inside_end, "type", "veth", "peer", "name", self._link)
        _run("ip", "link", "set", self._link, "master", self.site.bridge, "up")
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "mgmt")
        _run(*inside, "link", "set", "mgmt", "up")

    def _answers(self) -> bool:
        import libvirt

        libvirt.registerErrorHandler(lambda *_: None, None)
        try:
            libvirt.open(self.uri).close()
            # Which libvirt needs for every guest that starts, and does not wait for.
            with socket.socket(socket.AF_UNIX) as logs:
                logs.connect(str(self.directory / "run/virtlogd-sock"))
        except (libvirt.libvirtError, OSError):
            return False
        return True


class Process:
    """`outer` waits in this machine's namespaces for the one that runs on the host."""

    def __init__(self, outer: subprocess.Popen[bytes], out: Path) -> None:
        self.outer = outer
        self.out = out
        _until(lambda: bool(_children(outer.pid)) or outer.poll() is not None, "a process starts on the host")
        self.pid = int((_children(outer.pid) or ["0"])[0])

    def alive(self) -> bool:
        return self.outer.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._send(number)
        self.outer.wait(_POWER_SECONDS)

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self._send(signal.SIGTERM)
        return self.outer.wait(_POWER_SECONDS)

    def let_go(self) -> None:
        """`outer` stops when the one on the host is stopped, and would not see that one end."""
        if self.alive():
            self.outer.send_signal(signal.SIGCONT)

    def _send(self, number: int) -> None:
        # Of one that has ended the number may be another's by now; and 0, of one never seen, would be all of ours.
        if self.pid and self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            self.let_go()


@contextlib.contextmanager
def site() -> Iterator[Site]:
    """Numbers are taken machine-wide, so that several test runs do not meet."""
    require()
    for number in range(_MOST_SITES):
        with Path(f"/tmp/kilonova-site-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            directory = Path(tempfile.mkdtemp(prefix=f"kt{number}-", dir="/tmp"))
            place = Site(number, directory)
            try:
                place.open()
                yield place
            finally:
                place.close()
                shutil.rmtree(directory, ignore_errors=True)
            return
    raise AssertionError("there is no free number for a site")


def until(look: Any, what: str, seconds: float = 300.0, every: float = 0.0) -> Any:
    """What `look` answers as soon as that is true. `every`: how often it is looked, unless less and less often."""
    began = time.monotonic()
    while not (found := look()):
        if time.monotonic() > began + seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        if every:
            time.sleep(every)
        else:
            pause(began)
    return found


def pause(began: float) -> None:
    """Before looking again for what was waited for since then. Looking costs more than what takes long can lose."""
    time.sleep(min(0.05 + 0.1 * (time.monotonic() - began), 0.5))


_until = until


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


def _name(pid: str) -> str:
    """Of a process; nothing if it has ended meanwhile."""
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
    """The tiny Linux that `kilonova image tiny` builds, made once per machine and release of the builder."""
    from kilonova import tiny

    where = Path(tempfile.gettempdir()) / f"kilonova-tiny-{tiny.fingerprint()}.qcow2"
    with where.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not where.exists():
            tiny.build(where)
    return where
