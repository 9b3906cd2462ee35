"""A cloud with real hosts on one machine: a control plane, and an agent with libvirt on each host of a site.

with real_cloud(tmp_path, hosts=("one", "two")) as cloud:
    server = cloud.boot("web", cloud.micro_image())
    cloud.wait_for_output(server, r"TICK 00002")
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
from tests.support.cloud_process import KILONOVA, Client, CloudProcess
from tests.support.ports import free_port
from tests.support.virt_hosts import Host, Process, Site, sleep_before_retry, temporary_site, wait_until

# Long enough for a busy machine.
BOOT_SECONDS = 300.0
_TOML = dict[str, dict[str, Any]]
T = TypeVar("T")


class RealCloud:
    def __init__(
        self,
        site: Site,
        data: Path,
        names: Sequence[str],
        *,
        shared_storage: bool,
        settings: _TOML,
        workers_database_url: str = "",
        long_timeouts: bool = False,
    ) -> None:
        self.site = site
        self.data = data
        self.shared_storage = shared_storage
        self.settings = settings
        self.long_timeouts = long_timeouts
        self.hosts: dict[str, Host] = {name: site.host(name) for name in names}
        self.agents: dict[str, Process] = {}
        self.nats_port = free_port(site.address)
        self.api_port = free_port(site.address)
        options = ["--config", str(self._control_file())]
        if workers_database_url:
            options += ["--database", workers_database_url]
        command = ("api",) if workers_database_url else ("up",)
        self.control = CloudProcess(data, *options, "--port", str(self.api_port), command=command)
        workers = 2 if workers_database_url else 0
        self.workers = [CloudProcess(data, *options, command=("worker",)) for _ in range(workers)]
        self._nats: subprocess.Popen[bytes] | None = None
        self._images: dict[str, str] = {}
        self._clients: dict[tuple[str, str], Client] = {}

    # Processes

    def start(self) -> None:
        self.start_nats()
        self.control.start()
        for worker in self.workers:
            worker.start()
        for name in self.hosts:
            self.start_agent(name)
        for name in self.hosts:
            self.wait_for_host(name, "up")

    def start_nats(self) -> None:
        log = self.site.directory / "nats.log"
        command = ["nats-server", "-a", self.site.address, "-p", str(self.nats_port), "-l", str(log)]
        if self.site.authority is not None:
            files = {"tlscacert": "ca-cert.pem", "tlscert": "server-cert.pem", "tlskey": "server-key.pem"}
            command += ["--tlsverify", *(f"--{name}={self._pki / file}" for name, file in files.items())]
        self._nats = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def kill_nats(self) -> None:
        if self._nats is not None:
            self._nats.kill()
            self._nats.wait()

    def start_agent(self, name: str) -> Process:
        host = self.hosts[name]
        file = host.directory / "agent.toml"
        file.write_text(_toml(self._agent_settings(host)))
        agent = self.agents[name] = host.start_process([KILONOVA, "agent", "--config", file], log="agent")
        return agent

    def kill_agent(self, name: str) -> None:
        self.agents.pop(name).kill()

    def kill_control(self) -> None:
        self.control.kill()
        self.drop_clients()

    def drop_clients(self) -> None:
        """Drop the clients, whose connections may be closed or idle for too long."""
        self._clients.clear()

    def stop(self) -> None:
        """Stop all processes, agents first, even if one fails to end."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.kill_exports)
            stack.callback(self.kill_nats)
            for process in (self.control, *self.workers):
                stack.callback(process.kill)
            for agent in self.agents.values():
                stack.callback(agent.kill)

    def cut_power(self, name: str) -> None:
        """Cut the power of a host with its agent and guests."""
        self.hosts[name].cut_power()
        self.agents.pop(name, None)

    def power_on(self, name: str) -> None:
        self.hosts[name].power_on()
        self.start_agent(name)

    # Resources

    def client(self, cloud: str = "kilonova", version: str = "2.96") -> Client:
        if (cloud, version) not in self._clients:
            self._clients[cloud, version] = self.control.client(cloud, version)
        return self._clients[cloud, version]

    def image(self, name: str, data: bytes, disk_format: str = "raw", **properties: str) -> str:
        """The id of the image of this name, created at first use."""
        if name not in self._images:
            client = self.client()
            body = {"name": name, "disk_format": disk_format, "container_format": "bare", "visibility": "public"}
            image_id = client.post("image", "/images", {**body, **properties}).json()["id"]
            headers = {"Content-Type": "application/octet-stream"}
            answer = client.request("PUT", "image", f"/images/{image_id}/file", content=data, headers=headers)
            assert answer.status == 204, answer.body
            self._images[name] = image_id
        return self._images[name]

    def micro_image(self, word: str = "micro", fill_mb: int = 0) -> str:
        """The id of the image of a micro guest."""
        return self.image(f"{word}-{fill_mb}", self.site.micro_image(word, fill_mb).read_bytes())

    def flavor(self, name: str, ram: int = 64, disk: int = 1, vcpus: int = 1, **keys: Any) -> str:
        """The id of the flavor of this name, created at first use."""
        client = self.client()
        for flavor in client.get("compute", "/flavors").json()["flavors"]:
            if flavor["name"] == name:
                return str(flavor["id"])
        body = {"name": name, "ram": ram, "vcpus": vcpus, "disk": disk, **keys}
        return str(client.post("compute", "/flavors", {"flavor": body}).json()["flavor"]["id"])

    def boot(self, name: str, image: str | None, *, wait: bool = True, **keys: Any) -> str:
        """Create a server; by default wait until it is ACTIVE."""
        server: dict[str, Any] = {"name": name, "flavorRef": self.flavor("micro"), "networks": "none", **keys}
        if image is not None:
            server["imageRef"] = image
        answer = self.client().post("compute", "/servers", {"server": server})
        assert answer.status == 202, answer.body
        server_id: str = answer.json()["server"]["id"]
        if wait:
            self.wait(server_id, "ACTIVE")
        return server_id

    def show(self, server: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client().get("compute", f"/servers/{server}").json()["server"]
        return shown

    def host_of(self, server: str) -> str:
        return str(self.show(server)["OS-EXT-SRV-ATTR:host"])

    def server_action(self, server: str, action: str, body: Any = None, version: str = "2.96") -> None:
        answer = self.client(version=version).post("compute", f"/servers/{server}/action", {action: body})
        assert answer.status in (200, 202), answer.body

    def wait(self, server: str, status: str, seconds: float = BOOT_SECONDS) -> dict[str, Any]:
        """Wait until the server has the status and no task state."""

        def show_if_reached() -> dict[str, Any] | None:
            shown = self.show(server)
            if shown["status"] == "ERROR" and status != "ERROR":
                raise AssertionError(f"{server}: {shown.get('fault')}")
            is_idle = shown["OS-EXT-STS:task_state"] is None
            return shown if shown["status"] == status and is_idle else None

        found: dict[str, Any] = wait_until(show_if_reached, f"server {server} is {status}", seconds)
        return found

    def wait_until_deleted(self, server: str, seconds: float = BOOT_SECONDS) -> None:
        wait_until(
            lambda: self.client().get("compute", f"/servers/{server}").status == 404,
            f"server {server} is deleted",
            seconds,
        )

    def wait_for_host(self, name: str, state: str, seconds: float = BOOT_SECONDS) -> None:
        """Wait until the host's compute service is "up" or "down"."""

        def has_state() -> bool:
            services = self.client().get("compute", f"/os-services?host={name}&binary=nova-compute").json()["services"]
            return any(service["state"] == state for service in services)

        wait_until(has_state, f"host {name} is {state}", seconds)

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """The control plane's database (SQLite), in which a test can change timestamps."""
        path = self.data / "kilonova.db"
        with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
            yield db

    def wait_until_down(self, name: str) -> None:
        """Wait until a host that does not report any more is down.

        `down_seconds` is long, because hosts of a busy machine report late. To avoid this wait, the host's last report
        is set back in the database, after a heartbeat that does not include the host.
        """
        query = "SELECT max(last_seen_at) FROM services WHERE program = ? AND host = coalesce(?, host)"
        with self.database() as db:

            def has_newer_heartbeat() -> bool:
                (heartbeat_at,) = db.execute(query, (CONDUCTOR, None)).fetchone()
                (host_seen_at,) = db.execute(query, (COMPUTE, name)).fetchone()
                return bool(heartbeat_at > host_seen_at)

            wait_until(has_newer_heartbeat, f"a heartbeat does not include host {name}")
            set_back = "UPDATE services SET last_seen_at = last_seen_at - 3600 WHERE program = ? AND host = ?"
            db.execute(set_back, (COMPUTE, name))
        self.wait_for_host(name, "down")

    # Guests

    def console(self, server: str) -> str:
        """The output on the console; empty if its host does not respond."""
        answer = self.client().post("compute", f"/servers/{server}/action", {"os-getConsoleOutput": {}})
        return str(answer.json()["output"]).replace("\r", "") if answer.status == 200 else ""

    def wait_for_output(self, server: str, pattern: str, seconds: float = BOOT_SECONDS) -> re.Match[str]:
        """Wait until the server's console matches the pattern."""
        description = f"the console of {server} matches {pattern}"
        return self.wait_for_console(
            server, lambda output: re.search(pattern, output, re.MULTILINE), description, seconds
        )

    def console_output(self, server: str) -> str:
        """The output on the console, once there is any: the host may not respond at first."""
        found: str = wait_until(lambda: self.console(server), f"the console of {server} has output")
        return found

    def wait_for_console(
        self, server: str, search: Callable[[str], T | None], description: str, seconds: float = BOOT_SECONDS
    ) -> T:
        """Wait until `search` finds something in the console's output, and return it."""
        began = time.monotonic()
        while not (found := search(output := self.console(server))):
            assert time.monotonic() < began + seconds, f"not within {seconds:g} s: {description}, but\n{output[-2000:]}"
            sleep_before_retry(began)
        return found

    def ticks(self, server: str) -> list[int]:
        """The numbers that the micro guest has written completely."""
        return [int(number) for number in re.findall(r"TICK (\d{5})", self.console_output(server))]

    def hosts_running(self, server: str) -> list[str]:
        """The hosts on which a QEMU process of the server's guest runs."""
        powered_on = [host for host in self.hosts.values() if host.is_on]
        return [host.name for host in powered_on if any(server in process for process in host.guest_processes())]

    def guest_resources(self) -> dict[str, list[str]]:
        """Domains, files, network devices, namespaces and processes of guests on the hosts."""
        found: dict[str, list[str]] = {}
        for name, host in self.hosts.items():
            resources = [f"domain {domain}" for domain in host.domains()]
            files = [path.name for path in self.instances_path(name).iterdir()]
            resources += [f"file {file}" for file in files if _is_guest_file(file)]
            devices = re.findall(r"^(tap\S+|kn\S+|kv\S+)", host.execute("ip", "-br", "link"), re.MULTILINE)
            resources += [f"device {device}" for device in devices]
            resources += [f"namespace {namespace}" for namespace in host.execute("ip", "netns", "list").splitlines()]
            resources += ["qemu" for _ in host.guest_processes()]
            resources += ["dnsmasq" for line in host.execute("ps", "-eo", "comm").splitlines() if line == "dnsmasq"]
            if resources:
                found[name] = resources
        return found

    def wait_until_clean(self, seconds: float = BOOT_SECONDS) -> None:
        """Wait until the hosts have no resources of guests."""
        began = time.monotonic()
        while resources := self.guest_resources():
            assert time.monotonic() < began + seconds, resources
            sleep_before_retry(began)

    def instances_path(self, name: str) -> Path:
        return self.site.directory / "shared" if self.shared_storage else self.hosts[name].instances

    # Configuration

    def _control_file(self) -> Path:
        settings: _TOML = {
            "": {"host": self.site.address},
            "messaging": {"url": self._nats_url},
            "sim": {"hosts": 0},
            "volume": {"nbd_address": self.site.address},
            "hosts": {"report_seconds": 1.0, "down_seconds": 60.0 if self.long_timeouts else 8.0},
            "operations": {
                "host_timeout_seconds": 30.0 if self.long_timeouts else 5.0,
                "lease_seconds": 5.0,
                "poll_seconds": 1.0,
            },
            # The micro guest ignores the power button.
            "compute": {"shutdown_timeout_seconds": 0.5, "resize_on_same_host": False},
        }
        if self.site.authority is not None:
            files = self.site.authority.issue(self._pki, self.site.address)
            settings["volume"]["nbd_tls"] = str(files)
            settings["messaging"] |= _certificate_settings(files)
            names = {"tls_ca": "ca_file", "tls_cert": "cert_file", "tls_key": "key_file"}
            settings[""] |= {name: _certificate_settings(files)[file] for name, file in names.items()}
        else:
            settings[""]["insecure"] = True
        file = self.site.directory / "control.toml"
        file.write_text(
            _toml(_merge(settings, {name: values for name, values in self.settings.items() if "@" not in name}))
        )
        return file

    def _agent_settings(self, host: Host) -> _TOML:
        instances = self.instances_path(host.name)
        instances.mkdir(parents=True, exist_ok=True)
        settings: _TOML = {
            "": {"data": str(host.directory / "agent"), "driver": "libvirt"},
            "messaging": {"url": self._nats_url},
            "hosts": {"report_seconds": 1.0},
            "agent": {
                "host": host.name,
                "address": host.address,
                "image_url": f"{self._scheme}://{self.site.address}:{self.api_port}/image",
                "instances_path": str(instances),
            },
            "libvirt": {
                "virt_type": "qemu",
                "reserved_memory_mb": 0,
                "cache_mode": "writeback",
            },
        }
        if self.site.authority is not None:
            files = self.site.authority.issue(host.directory / "agent-pki", host.address)
            settings["agent"] |= _certificate_settings(files)
            settings["messaging"] |= _certificate_settings(files)
            # The hosts share a file system, so all of them can use this machine's client certificate.
            uri = f"qemu+tls://{{address}}/system?pkipath={self._pki}"
            settings["libvirt"] |= {"migration_uri": uri, "migration_tls": True, "nbd_tls": True}
        else:
            settings[""]["insecure"] = True
        for section in ("libvirt", "bridges", "agent"):
            settings = _merge(settings, {section: self.settings.get(section, {})})
            settings = _merge(settings, {section: self.settings.get(f"{section}@{host.name}", {})})
        return _merge(settings, {"": self.settings.get(f"@{host.name}", {})})

    @property
    def _pki(self) -> Path:
        return self.site.directory / "pki"

    @property
    def _scheme(self) -> str:
        return "http" if self.site.authority is None else "https"

    @property
    def _nats_url(self) -> str:
        return f"nats://{self.site.address}:{self.nats_port}"

    def kill_exports(self) -> None:
        """Kill the daemon that exports volumes, which continues after the control plane has ended."""
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(int((self.data / "exports/pid").read_text()), signal.SIGKILL)


@contextlib.contextmanager
def real_cloud(
    data: Path,
    *,
    hosts: Sequence[str] = ("one", "two"),
    shared_storage: bool = False,
    settings: _TOML | None = None,
    workers_database_url: str = "",
    tls: bool = False,
    long_timeouts: bool = False,
) -> Iterator[RealCloud]:
    """Run a control plane and hosts.

    `shared_storage`: the hosts share a directory for the disks of guests. `settings`: further settings; the section
    `libvirt@one` is only for the host `one`, and `@one` has its settings without a section. `workers_database_url`: run
    the API and two workers as separate processes on this database. `tls`: use TLS everywhere, without the setting
    `insecure`. `long_timeouts`: a slow host does not count as unreachable.
    """
    with temporary_site() as site:
        site.authority = Authority() if tls else None
        cloud = RealCloud(
            site,
            data,
            hosts,
            shared_storage=shared_storage,
            settings=settings or {},
            workers_database_url=workers_database_url,
            long_timeouts=long_timeouts,
        )
        try:
            cloud.start()
            yield cloud
        finally:
            _copy_logs(cloud)  # always, because tests that share the cloud may have failed
            cloud.stop()


def _copy_logs(cloud: RealCloud) -> None:
    """Copy the hosts' logs next to the data directory, which is kept after a test."""
    for name, host in cloud.hosts.items():
        for file in (
            host.directory / "agent.out",
            host.directory / "agent/kilonova.log",
            host.directory / "log/libvirtd.log",
        ):
            if file.exists():
                shutil.copy(file, cloud.data.parent / f"{name}-{file.name}")


def _certificate_settings(files: Path) -> dict[str, Any]:
    names = {"ca_file": "ca-cert.pem", "cert_file": "server-cert.pem", "key_file": "server-key.pem"}
    return {name: str(files / file) for name, file in names.items()}


def _is_guest_file(name: str) -> bool:
    return re.match(r"[0-9a-f]{8}-|\.gone-", name) is not None


def _merge(settings: _TOML, overrides: _TOML) -> _TOML:
    return {key: {**settings.get(key, {}), **overrides.get(key, {})} for key in {**settings, **overrides}}


def _toml(settings: _TOML) -> str:
    lines = [f"{key} = {_toml_value(value)}" for key, value in settings.get("", {}).items()]
    for section, values in settings.items():
        if section:
            lines += ["", f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
