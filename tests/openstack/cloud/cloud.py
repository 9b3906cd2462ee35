"""A cloud of OpenStack services without a compute service."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.openstack.cloud import content, initialise
from tests.openstack.cloud.client import Client
from tests.openstack.cloud.configuration import postgresql, write_configuration
from tests.openstack.cloud.initialise import once
from tests.openstack.cloud.install import install_missing
from tests.openstack.cloud.processes import CloudError, Processes
from tests.openstack.cloud.services import SERVICES, STORES, environ, members
from tests.openstack.cloud.settings import PASSWORD, Settings

CONTROL_TIMEOUT_SECONDS = 60


class Cloud:
    """Keystone, Glance, Neutron and Cinder with their databases.

    It outlives this process. Several objects and processes may use the same cloud.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environ()
        self._processes = Processes(self.settings.run, self.settings.log)
        self._clients: dict[tuple[str, str], Client] = {}

    # -- Start and stop

    def is_running(self) -> bool:
        return all(map(self._processes.is_running, SERVICES))

    def start(self) -> None:
        """Install, initialise and start what is missing, and wait until every service answers."""
        settings = self.settings
        initialise.make_directories(settings)
        with self._locked():
            install_missing(settings)
            write_configuration(settings)
            if settings.nfs:
                initialise.mount_nfs(settings)
            _run_all(
                self._start_postgres_services,
                self._start_neutron,
                lambda: self._start_together("epmd", "rabbitmq"),
                lambda: self._start("memcached"),
            )
            client = self.client()
            once(settings, "content", lambda _: self._create_content(client))

    def stop(self) -> None:
        """Stop every process that was started. The state stays."""
        if not self.settings.run.exists():
            return
        with self._locked():
            names = self._processes.names()
            for group in (set(names) - set(STORES), set(names) & set(STORES)):
                _run_all(*(self._stopper(name) for name in group))
            initialise.unmount_nfs(self.settings)

    def kill(self, service: str) -> None:
        """Kill a service by SIGKILL: keystone, glance, neutron, cinder, cinder-volume, rabbitmq, mariadb, postgres …"""
        for name in members(service):
            self._processes.kill(name)

    def restart(self, service: str) -> None:
        """Stop the service if it runs, start it, and wait until it answers."""
        _run_all(*(self._stopper(name) for name in members(service)))
        self._start_together(*members(service))

    @contextlib.contextmanager
    def killed(self, service: str) -> Iterator[None]:
        """Kill the service, and start it again at the end of the block."""
        self.kill(service)
        try:
            yield
        finally:
            self.restart(service)

    def _stopper(self, name: str) -> Callable[[], None]:
        return lambda: self._processes.stop(name, SERVICES[name].stop_signal)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from starting or stopping the same cloud."""
        with (self.settings.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _start(self, name: str) -> None:
        self._start_together(name)

    def _start_together(self, *names: str) -> None:
        """Start processes that do not wait for each other, then wait until all answer."""
        probes = {}
        for name in names:
            if self._processes.is_running(name):
                continue
            service = SERVICES[name]
            probes[name] = service.probe(self.settings)
            ports = [self.settings.port(port) for port in service.ports]
            self._processes.spawn(name, service.command(self.settings), environ(self.settings, name), ports)
        for name, answers in probes.items():
            self._processes.wait_for(name, answers)

    def _start_postgres_services(self) -> None:
        settings = self.settings
        once(settings, "postgres", initialise.postgres_cluster)
        (settings.state / "postgres/data/postgresql.conf").write_text(postgresql(settings))
        self._start("postgres")
        once(settings, "databases", initialise.postgres_databases)
        _run_all(self._start_keystone, self._start_glance, self._start_cinder)

    def _start_keystone(self) -> None:
        once(self.settings, "keystone", initialise.keystone_database)
        self._start("keystone")
        client = self.client()
        once(self.settings, "users", lambda _: content.create_users(client))
        once(self.settings, f"catalogue-{self.settings.port_base}", lambda _: content.create_catalogue(client))

    def _start_glance(self) -> None:
        once(self.settings, "glance", initialise.glance_database)
        self._start("glance")

    def _start_cinder(self) -> None:
        once(self.settings, "cinder", initialise.cinder_database)
        self._start_together(*members("cinder"))

    def _start_neutron(self) -> None:
        settings = self.settings
        once(settings, "mariadb", initialise.mariadb_data)
        once(settings, "ovn", initialise.ovn_databases)
        self._start_together("ovn-nb", "ovn-sb", "mariadb")
        self._start("ovn-northd")
        once(settings, "ovn-rows", initialise.ovn_rows)
        _run_all(lambda: self._start("chassis"), lambda: once(settings, "neutron", initialise.neutron_database))
        self._start("neutron")

    def _create_content(self, client: Client) -> None:
        _run_all(
            lambda: content.create_images(client),
            lambda: content.create_networks(client),
            lambda: content.create_volume_types(client),
        )

    # -- Use

    @property
    def endpoints(self) -> dict[str, str]:
        """URL by type of service: identity, image, network, block-storage."""
        return self.settings.endpoints

    @property
    def compute_url(self) -> str:
        """The address for a compute service under test.

        Neutron and Cinder keep the catalogue of their token, so a compute service should always have the same address.
        """
        return self.settings.url("compute")

    def auth(self, user: str = "admin", project: str = "admin") -> dict[str, str]:
        """Arguments for the password plug-in of keystoneauth, and for `auth` of `openstack.connect`."""
        return {
            "auth_url": self.endpoints["identity"],
            "username": user,
            "password": PASSWORD,
            "project_name": project,
            "user_domain_name": "Default",
            "project_domain_name": "Default",
        }

    def client(self, user: str = "admin", project: str = "admin") -> Client:
        """An HTTP client with a token."""
        if (user, project) not in self._clients:
            self._clients[user, project] = Client(self.settings, user, project)
        return self._clients[user, project]

    def register_compute(self, url: str | None = None) -> None:
        """Create what `kilonova register` creates, for tests without Kilonova."""
        content.register_compute(self.client(), url or self.compute_url)

    def processes(self) -> dict[str, int | None]:
        """Process id by name; None for a process that was not started or has ended."""
        return {name: self._processes.pid(name) for name in SERVICES}

    # -- Simulated hosts

    def plug_mode(self, mode: str) -> None:
        """With "auto" the ports that are bound to a host become ACTIVE, with "manual" only `plug` makes them ACTIVE."""
        if mode not in ("auto", "manual"):
            raise ValueError(f"plug mode must be auto or manual, not {mode}")
        self._control({"plug_mode": mode})

    def plug(self, port: str, host: str) -> None:
        """Simulate that the interface of the port appears on the host."""
        self._control({"plug": port, "host": host})

    def unplug(self, port: str) -> None:
        """Simulate that the interface of the port disappears. In the mode "auto" a bound port is plugged again."""
        self._control({"unplug": port})

    def set_hosts(self, *hosts: str) -> None:
        """Replace the hosts that ports can be bound to."""
        self._control({"hosts": hosts})

    def _control(self, request: dict[str, object]) -> None:
        address = ("127.0.0.1", self.settings.port("chassis"))
        with socket.create_connection(address, CONTROL_TIMEOUT_SECONDS) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("r") as lines:
                answer = json.loads(lines.readline() or "{}")
        if "error" in answer:
            raise CloudError(answer["error"])


def _run_all(*steps: Callable[[], None]) -> None:
    """Run steps at once, and raise the first error after all have ended."""
    with ThreadPoolExecutor(max(1, len(steps))) as executor:
        for future in [executor.submit(step) for step in steps]:
            future.result()
