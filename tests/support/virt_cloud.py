"""A cloud of real hosts on one machine: a control plane here, and on each host of a site an agent with libvirt.

with real_cloud(tmp_path, hosts=("one", "two")) as cloud:
    server = cloud.boot("web", cloud.micro)
    cloud.says(server, r"TICK 00002")
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kilonova.hosts.registry import COMPUTE, CONDUCTOR
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.process import KILONOVA, Client, Cloud
from tests.support.virt_hosts import Host, Process, Site, pause, site, until

# However busy the machine is: a test that is to fail has time for it.
BOOT_SECONDS = 300.0
_TOML = dict[str, dict[str, Any]]
T = TypeVar("T")


class RealCloud:
    def __init__(
        self,
        place: Site,
        data: Path,
        names: Sequence[str],
        *,
        shared: bool,
        more: _TOML,
        apart_on: str = "",
        steady: bool = False,
    ) -> None:
        self.site = place
        self.data = data
        self.shared = shared
        self.more = more
        self.steady = steady
        self.hosts: dict[str, Host] = {name: place.host(name) for name in names}
        self.agents: dict[str, Process] = {}
        self.nats_port = free_port(place.address)
        self.api_port = free_port(place.address)
        options = ("--config", str(self._control_file()), *(("--database", apart_on) if apart_on else ()))
        command = ("api",) if apart_on else ("up",)
        self.control = Cloud(data, *options, "--port", str(self.api_port), command=command)
        self.workers = [Cloud(data, *options, command=("worker",)) for _ in range(2 if apart_on else 0)]
        self._nats: subprocess.Popen[bytes] | None = None
        self._images: dict[str, str] = {}
        self._clients: dict[tuple[str, str], Client] = {}

    # Starting and stopping

    def start(self) -> None:
        self.start_nats()
        self.control.start()
        for worker in self.workers:
            worker.start()
        for name in self.hosts:
            self.start_agent(name)
        for name in self.hosts:
            self.wait_host(name, "up")

    def start_nats(self) -> None:
        log = self.site.directory / "nats.log"
        self._nats = subprocess.Popen(
            ["nats-server", "-a", self.site.address, "-p", str(self.nats_port), "-l", str(log)],
            stdin=subprocess.DEVNULL,
        )

    def kill_nats(self) -> None:
        if self._nats is not None:
            self._nats.kill()
            self._nats.wait()

    def start_agent(self, name: str) -> Process:
        host = self.hosts[name]
        file = host.directory / "agent.toml"
        file.write_text(_toml(self._agent_settings(host)))
        agent = self.agents[name] = host.run([KILONOVA, "agent", "--config", file], log="agent")
        return agent

    def kill_agent(self, name: str) -> None:
        self.agents.pop(name).kill()

    def kill_control(self) -> None:
        self.control.kill()
        self.hang_up()

    def hang_up(self) -> None:
        """New clients are made when needed: connections may be dead, or idle for too long."""
        self._clients.clear()

    def stop(self) -> None:
        """Everything, also where something does not end: agents first."""
        with contextlib.ExitStack() as ends:
            ends.callback(self.kill_exports)
            ends.callback(self.kill_nats)
            for process in (self.control, *self.workers):
                ends.callback(process.kill)
            for agent in self.agents.values():
                ends.callback(agent.kill)

    def cut_power(self, name: str) -> None:
        """Of the whole host, its agent and its guests."""
        self.hosts[name].cut_power()
        self.agents.pop(name, None)

    def power_on(self, name: str) -> None:
        self.hosts[name].power_on()
        self.start_agent(name)

    # What there is

    def client(self, cloud: str = "kilonova", version: str = "2.96") -> Client:
        if (cloud, version) not in self._clients:
            self._clients[cloud, version] = self.control.client(cloud, version)
        return self._clients[cloud, version]

    def image(self, name: str, data: bytes, disk_format: str = "raw", **properties: str) -> str:
        """The id of an image of this name, made when first asked for."""
        if name not in self._images:
            client = self.client()
            wanted = {"name": name, "disk_format": disk_format, "container_format": "bare", "visibility": "public"}
            made = client.post("image", "/images", {**wanted, **properties}).json()["id"]
            kind = {"Content-Type": "application/octet-stream"}
            stored = client.request("PUT", "image", f"/images/{made}/file", content=data, headers=kind)
            assert stored.status == 204, stored.body
            self._images[name] = made
        return self._images[name]

    def micro(self, word: str = "micro", full: int = 0) -> str:
        return self.image(f"{word}-{full}", self.site.micro_image(word, full).read_bytes())

    def flavor(self, name: str, ram: int = 64, disk: int = 1, vcpus: int = 1, **more: Any) -> str:
        client = self.client()
        found = client.get("compute", "/flavors").json()["flavors"]
        for flavor in found:
            if flavor["name"] == name:
                return str(flavor["id"])
        wanted = {"name": name, "ram": ram, "vcpus": vcpus, "disk": disk, **more}
        return str(client.post("compute", "/flavors", {"flavor": wanted}).json()["flavor"]["id"])

    def boot(self, name: str, image: str | None, *, wait: bool = True, **more: Any) -> str:
        """A server, ACTIVE."""
        server: dict[str, Any] = {"name": name, "flavorRef": self.flavor("micro"), "networks": "none", **more}
        if image is not None:
            server["imageRef"] = image
        answer = self.client().post("compute", "/servers", {"server": server})
        assert answer.status == 202, answer.body
        made: str = answer.json()["server"]["id"]
        if wait:
            self.wait(made, "ACTIVE")
        return made

    def show(self, server: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client().get("compute", f"/servers/{server}").json()["server"]
        return shown

    def host_of(self, server: str) -> str:
        return str(self.show(server)["OS-EXT-SRV-ATTR:host"])

    def act(self, server: str, action: str, body: Any = None, version: str = "2.96") -> None:
        answer = self.client(version=version).post("compute", f"/servers/{server}/action", {action: body})
        assert answer.status in (200, 202), answer.body

    def wait(self, server: str, status: str, seconds: float = BOOT_SECONDS) -> dict[str, Any]:
        """Until the server has the status and nothing happens to it."""

        def look() -> dict[str, Any] | None:
            shown = self.show(server)
            if shown["status"] == "ERROR" and status != "ERROR":
                raise AssertionError(f"{server}: {shown.get('fault')}")
            idle = shown["OS-EXT-STS:task_state"] is None
            return shown if shown["status"] == status and idle else None

        found: dict[str, Any] = until(look, f"server {server} is {status}", seconds)
        return found

    def wait_gone(self, server: str, seconds: float = BOOT_SECONDS) -> None:
        until(lambda: self.client().get("compute", f"/servers/{server}").status == 404, f"{server} is gone", seconds)

    def wait_host(self, name: str, state: str, seconds: float = BOOT_SECONDS) -> None:
        def look() -> bool:
            services = self.client().get("compute", f"/os-services?host={name}&binary=nova-compute").json()["services"]
            return any(service["state"] == state for service in services)

        until(look, f"host {name} is {state}", seconds)

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Of the control plane (SQLite): a test makes time pass for what is written there."""
        path = self.data / "kilonova.db"
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
            yield db

    def wait_down(self, name: str) -> None:
        """Until the host, which reports no more, counts as down.

        As soon as a heartbeat leaves it out, its last one is moved back in the database: nobody has to wait for
        `down_seconds`, which may be so long that a host of a busy machine is never down by mistake.
        """
        seen = "SELECT max(last_seen_at) FROM services WHERE program = ? AND host = coalesce(?, host)"
        with self.database() as db:

            def is_left_out() -> bool:
                (process,), (host,) = (db.execute(seen, of).fetchone() for of in ((CONDUCTOR, None), (COMPUTE, name)))
                return bool(process > host)

            until(is_left_out, f"no heartbeat tells of host {name}")
            aged = "UPDATE services SET last_seen_at = last_seen_at - 3600 WHERE program = ? AND host = ?"
            db.execute(aged, (COMPUTE, name))
        self.wait_host(name, "down")

    # What guests say

    def console(self, server: str) -> str:
        answer = self.client().post("compute", f"/servers/{server}/action", {"os-getConsoleOutput": {}})
        return str(answer.json()["output"]).replace("\r", "") if answer.status == 200 else ""

    def says(self, server: str, pattern: str, seconds: float = BOOT_SECONDS) -> re.Match[str]:
        """The first match on the server's console, waited for."""
        return self.told(
            server, lambda said: re.search(pattern, said, re.MULTILINE), f"{server} says {pattern}", seconds
        )

    def said(self, server: str) -> str:
        """All that is on its console; waited for, as its host may not answer just now."""
        found: str = until(lambda: self.console(server), f"{server} has said something")
        return found

    def told(self, server: str, look: Callable[[str], T | None], what: str, seconds: float = BOOT_SECONDS) -> T:
        """What `look` finds in all that is on the server's console, waited for."""
        began = time.monotonic()
        while not (found := look(said := self.console(server))):
            assert time.monotonic() < began + seconds, f"not within {seconds:g} s: {what}, but\n{said[-2000:]}"
            pause(began)
        return found

    def ticks(self, server: str) -> list[int]:
        """All that it has counted to its end: what it says arrives in pieces."""
        return [int(number) for number in re.findall(r"TICK (\d{5})", self.said(server))]

    def runs(self, server: str) -> list[str]:
        """The hosts on which a QEMU of the server's guest runs, whoever knows of it."""
        return [name for name, host in self.hosts.items() if host.is_on and _has(host.guest_processes(), server)]

    def leftovers(self) -> dict[str, list[str]]:
        """What guests have left on the hosts: domains, files, network devices and spaces, processes."""
        found: dict[str, list[str]] = {}
        for name, host in self.hosts.items():
            left = [f"domain {domain}" for domain in host.domains()]
            left += [f"file {path.name}" for path in self.instances(name).iterdir() if _is_guest(path.name)]
            devices = re.findall(r"^(tap\S+|kn\S+|kv\S+)", host.do("ip", "-br", "link"), re.MULTILINE)
            left += [f"device {device}" for device in devices]
            left += [f"space {space}" for space in host.do("ip", "netns", "list").splitlines()]
            left += ["qemu" for _ in host.guest_processes()]
            left += ["dnsmasq" for line in host.do("ps", "-eo", "comm").splitlines() if line == "dnsmasq"]
            if left:
                found[name] = left
        return found

    def wait_clean(self, seconds: float = BOOT_SECONDS) -> None:
        """Until guests have left nothing."""
        began = time.monotonic()
        while left := self.leftovers():
            assert time.monotonic() < began + seconds, left
            pause(began)

    def instances(self, name: str) -> Path:
        return self.site.directory / "shared" if self.shared else self.hosts[name].instances

    # Configuration

    def _control_file(self) -> Path:
        settings: _TOML = {
            "": {"host": self.site.address},
            "messaging": {"url": self._nats_url},
            "sim": {"hosts": 0},
            "volume": {"nbd_address": self.site.address},
            "hosts": {"report_seconds": 1.0, "down_seconds": 60.0 if self.steady else 8.0},
            "operations": {
                "host_seconds": 30.0 if self.steady else 5.0,
                "lease_seconds": 5.0,
                "sweep_seconds": 1.0,
            },
            # The micro guest does not obey.
            "compute": {"shutdown_seconds": 0.5, "resize_on_same_host": False},
        }
        if self.site.authority is not None:
            files = self.site.authority.issue(self.site.directory / "pki", self.site.address)
            settings["volume"]["nbd_tls"] = str(files)
        file = self.site.directory / "control.toml"
        file.write_text(
            _toml(_merged(settings, {name: values for name, values in self.more.items() if "@" not in name}))
        )
        return file

    def _agent_settings(self, host: Host) -> _TOML:
        instances = self.instances(host.name)
        instances.mkdir(parents=True, exist_ok=True)
        settings: _TOML = {
            "": {"data": str(host.directory / "agent"), "driver": "libvirt"},
            "messaging": {"url": self._nats_url},
            "hosts": {"report_seconds": 1.0},
            "agent": {
                "host": host.name,
                "address": host.address,
                "image_url": f"http://{self.site.address}:{self.api_port}/image",
                "disk_secret": "between the hosts of one test",
                "instances": str(instances),
            },
            "libvirt": {
                "virt_type": "qemu",
                "vnc_listen": host.address,
                "vnc_address": host.address,
                "reserved_memory_mb": 0,
                "cache_mode": "writeback",
            },
        }
        if self.site.authority is not None:
            files = self.site.authority.issue(host.directory / "agent-pki", host.address)
            settings["agent"] |= {
                "ca_file": str(files / "ca-cert.pem"),
                "cert_file": str(files / "server-cert.pem"),
                "key_file": str(files / "server-key.pem"),
            }
            # Hosts have one file system here, so that all of them may be this machine's client.
            uri = f"qemu+tls://{{address}}/system?pkipath={self.site.directory / 'pki'}"
            settings["libvirt"] |= {"migration_uri": uri, "migration_tls": True, "nbd_tls": True}
        for section in ("libvirt", "bridges", "agent"):
            settings = _merged(settings, {section: self.more.get(section, {})})
            settings = _merged(settings, {section: self.more.get(f"{section}@{host.name}", {})})
        return settings

    @property
    def _nats_url(self) -> str:
        return f"nats://{self.site.address}:{self.nats_port}"

    def kill_exports(self) -> None:
        """The daemon that exports volumes outlives the control plane."""
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(int((self.data / "exports/pid").read_text()), signal.SIGKILL)


@contextlib.contextmanager
def real_cloud(
    data: Path,
    *,
    hosts: Sequence[str] = ("one", "two"),
    shared: bool = False,
    more: _TOML | None = None,
    apart_on: str = "",
    secure: bool = False,
    steady: bool = False,
) -> Iterator[RealCloud]:
    """`shared`: whether the hosts have one directory for the disks of guests. `more`: further configuration; that of
    the section `libvirt@one` is the host's alone.

    `apart_on`: the database on which an API and two workers are processes of their own. `secure`: with certificates,
    by which volumes, disks and guests travel. `steady`: no host is ever given up for being slow, as on a busy machine
    it may be; else that is soon.
    """
    with site() as place:
        place.authority = Authority() if secure else None
        cloud = RealCloud(place, data, hosts, shared=shared, more=more or {}, apart_on=apart_on, steady=steady)
        try:
            cloud.start()
            yield cloud
        finally:
            _keep_logs(cloud)  # always, as what shares a cloud fails without its knowledge
            cloud.stop()


def _keep_logs(cloud: RealCloud) -> None:
    """Beside the data, which tests leave behind."""
    for name, host in cloud.hosts.items():
        for file in (
            host.directory / "agent.out",
            host.directory / "agent/kilonova.log",
            host.directory / "log/libvirtd.log",
        ):
            if file.exists():
                shutil.copy(file, cloud.data.parent / f"{name}-{file.name}")


def _has(processes: Sequence[str], server: str) -> bool:
    return any(server in process for process in processes)


def _is_guest(name: str) -> bool:
    return re.match(r"[0-9a-f]{8}-|\.gone-", name) is not None


def _merged(settings: _TOML, more: _TOML) -> _TOML:
    return {key: {**settings.get(key, {}), **more.get(key, {})} for key in {**settings, **more}}


def _toml(settings: _TOML) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in settings.get("", {}).items()]
    for section, values in settings.items():
        if section:
            lines += ["", f"[{section}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
