"""The assembly of a process: which parts it has, how they reach each other, in which order they start and stop."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova import datadir, store
from kilonova.delays import Delays
from kilonova.services import Services
from kilonova.store.url import dialect_of

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.hosts.heartbeat import ServedHosts
    from kilonova.hosts.messages import Report
    from kilonova.hosts.nats import NatsTransport
    from kilonova.hosts.remote import AllHosts, OwnHosts
    from kilonova.http import Api, App
    from kilonova.http.server import Server
    from kilonova.operations import Worker

log = logging.getLogger(__name__)

# How long running steps may go on after the process was asked to stop; a worker waits for them twice at most.
STEP_GRACE = 1.0
WARM_AFTER = 0.25

# What `endpoints.json` calls a service, and where it stands below the process's address.
ENDPOINTS = {
    "identity": "/identity/v3",
    "compute": "/compute/v2.1",
    "placement": "/placement",
    "image": "/image/v2",
    "volume": "/volume/v3",
    "network": "/network/v2.0",
}
DRIVERS = ("sim", "libvirt")
_DOMAINS = {"user_domain_name": "Default", "project_domain_name": "Default"}
# The part of each cloud's `auth` in clouds.yaml that is the same everywhere.
CLOUDS: dict[str, dict[str, str]] = {
    "kilonova": {"username": "admin", "project_name": "admin", **_DOMAINS},
    "kilonova-system": {"username": "admin", "user_domain_name": "Default", "system_scope": "all"},
    "kilonova-demo": {"username": "demo", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-admin": {"username": "demo-admin", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-manager": {"username": "demo-manager", "project_name": "demo", **_DOMAINS},
    "kilonova-demo-reader": {"username": "demo-reader", "project_name": "demo", **_DOMAINS},
}


class CannotStart(Exception):
    """For the operator: why the process cannot start, or cannot go on."""


class Roles(NamedTuple):
    """What a process does: answer requests, carry out operations, or both."""

    api: bool = True
    worker: bool = True

    @property
    def whole(self) -> bool:
        return self.api and self.worker


@asynccontextmanager
async def running(config: Config, roles: Roles = Roles(), bound: socket.socket | None = None) -> AsyncIterator[Process]:
    """A process that has started; it stops at the end of the block. Without a socket it answers only inside."""
    async with AsyncExitStack() as stack:
        process = Process(config, roles, bound)
        await process.start(stack)
        yield process


class Process:
    """`app` answers on the socket where there is one, and inside the process always: clients of services use it."""

    app: App

    def __init__(self, config: Config, roles: Roles, bound: socket.socket | None) -> None:
        self.config = config
        self.roles = roles
        self.bound = bound
        self.directory = config.data_dir
        self.delays = Delays(config.delays)
        self.services = Services()
        self.services.config = config
        self.passwords: dict[str, str] = {}
        self.endpoints: dict[str, str] = {}
        self.clouds: Path | None = None
        self.hosts: ServedHosts | None = None
        self.ready = False
        self._server: Server | None = None
        self._placement_server: Server | None = None
        self._workers: list[Worker] = []
        self._broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @property
    def host_count(self) -> int:
        return len(self.hosts.names) if self.hosts is not None else 0

    async def run_until(self, stop: asyncio.Event) -> None:
        """Raises CannotStart should a part of the process end before."""
        waiting = asyncio.ensure_future(stop.wait())
        await asyncio.wait((waiting, self._broken), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._broken.done():
            raise CannotStart(f"a part of the process has failed: {self._broken.result()}; see the log")

    # Starting: in this order. What is entered into the stack ends in reverse.

    async def start(self, stack: AsyncExitStack) -> None:
        began = time.perf_counter()
        check(self.config, self.roles)
        if self.roles.api:
            (self.directory / datadir.ENDPOINTS).unlink(missing_ok=True)
        loaded = asyncio.Event()
        opening = asyncio.create_task(self._open_database(stack, loaded))
        await asyncio.sleep(0)  # threads make the schema, then hash the passwords, while modules load here
        self._make_app()
        loaded.set()
        await opening
        self._load_policy()
        self._make_clients()
        self._make_scheduler(stack)
        await self._seed()
        if self.roles.worker:
            await self._start_hosts(stack)
        else:
            self._reach_hosts(stack)
        stack.push_async_callback(self._stop_working)
        if self.bound is not None:
            await self._listen(self.bound)
        if self.roles.worker:
            await self._start_workers(stack)
        self.ready = True
        log.info("started", extra={"seconds": round(time.perf_counter() - began, 3), **self.roles._asdict()})

    async def _open_database(self, stack: AsyncExitStack, loaded: asyncio.Event) -> None:
        url = self.config.database_url
        try:
            if dialect_of(url) != "sqlite":
                await loaded.wait()  # a server has some seconds to answer, which a slow machine takes for the modules
            await store.upgrade(url)
            db = self.services.db = self.delays.database(await store.open_database(url))
        except (store.StoreError, ValueError, OSError) as error:
            raise CannotStart(f"database: {error}") from None
        stack.push_async_callback(db.close)
        await self._identify(db)

    async def _identify(self, db: store.Database) -> None:
        """Users and their passwords, and who can read tokens."""
        from kilonova.identity.bootstrap import bootstrap, users
        from kilonova.identity.keys import key_ring
        from kilonova.identity.tokens import Validator

        if not datadir.has_passwords(self.directory) and await db.fetch_value("SELECT COUNT(*) FROM users"):
            raise CannotStart(
                f"the database has users already, but {self.directory / datadir.SECRETS} with their passwords is "
                "missing; use the data directory that the database was set up with"
            )
        try:
            self.passwords = datadir.passwords(self.directory, users())
        except ValueError as error:
            raise CannotStart(f"{self.directory / datadir.SECRETS}: {error}") from None
        await bootstrap(db, self.passwords)
        try:
            keys = key_ring(self.config)
        except ValueError as error:
            raise CannotStart(str(error)) from None
        self.services.tokens = Validator(db, keys, token_seconds=self.config.identity.token_seconds)

    def _make_app(self) -> None:
        from kilonova.console import MOUNT, WEBSOCKET
        from kilonova.console.pages import pages as novnc
        from kilonova.console.proxy import Proxy
        from kilonova.http import App
        from kilonova.telemetry.pages import pages

        services = self.services
        self.app = App(
            services,
            _apis(),
            pages(services, lambda: self.ready),
            pages={MOUNT: novnc(services.config.console)},
            sockets={f"/{MOUNT}/{WEBSOCKET}": Proxy(services)},
        )

    def _load_policy(self) -> None:
        from kilonova.policy import Policy, PolicyError

        try:
            policy = self.services.policy = Policy(Path(self.config.policy) if self.config.policy else None)
        except (PolicyError, OSError) as error:
            raise CannotStart(f"policy: {error}") from None
        for api in self.app.apis.values():
            policy.check(name for route in api.routes.values() for name in (route.policy, *route.checks) if name)

    def _make_clients(self) -> None:
        """Compute reaches the other services by their public APIs alone, also where they are in this process."""
        from kilonova.http.client import InProcess, Remote
        from kilonova.identity.bootstrap import SERVICE_USER
        from kilonova.identity.client import IdentityClient
        from kilonova.image.client import ImageClient
        from kilonova.network.client import NetworkClient
        from kilonova.volume.client import VolumeClient
        from kilonova.volume.compute import ComputeClient

        services, delayed = self.services, self.delays.caller
        services.identity = IdentityClient(
            delayed(InProcess(self.app, "/identity")), username=SERVICE_USER, password=self.passwords[SERVICE_USER]
        )
        services.image = ImageClient(delayed(InProcess(self.app, "/image")))
        services.network = NetworkClient(delayed(InProcess(self.app, "/network")))
        elsewhere = self.config.volume.url
        services.volume = VolumeClient(delayed(Remote(elsewhere) if elsewhere else InProcess(self.app, "/volume")))
        services.compute = ComputeClient(delayed(InProcess(self.app, "/compute")))

    def _make_scheduler(self, stack: AsyncExitStack) -> None:
        """Also where nothing is scheduled, for plans that are only tried. It reads no hosts before it is asked."""
        from kilonova.scheduler import Scheduler

        services, config = self.services, self.config
        try:
            services.scheduler = Scheduler(services.db, config.scheduler, down_time=config.hosts.down_seconds)
        except ValueError as error:
            raise CannotStart(f"scheduler: {error}") from None
        stack.push_async_callback(services.scheduler.close)

    async def _seed(self) -> None:
        from kilonova.seeds import seed

        await seed(self.services)

    async def _start_hosts(self, stack: AsyncExitStack) -> None:
        from kilonova.hosts.heartbeat import Heartbeat
        from kilonova.seeds import spread

        db = self.services.db
        stack.push_async_callback(self._end_comparing)
        own = self._own_hosts(stack)
        self._in_background(stack, own.run())
        elsewhere = self._hosts_elsewhere(stack, own) if self.config.messaging.url else None
        hosts = self.hosts = own if elsewhere is None else elsewhere
        self.services.hosts = self.delays.transport(hosts)
        interval = self.config.hosts.report_seconds
        heartbeat = Heartbeat(db, hosts, process_host=socket.gethostname(), interval=interval)
        if elsewhere is not None:
            elsewhere.on_change(heartbeat.wake)
        await heartbeat.beat()
        if self.config.zones:
            await spread(db, self.config.zones, own.names)
        self._in_background(stack, heartbeat.run())

    async def _end_comparing(self) -> None:
        from kilonova.hosts import reports

        await reports.close(self.services)

    def _own_hosts(self, stack: AsyncExitStack) -> OwnHosts:
        """The hosts that this process serves itself."""
        return self._machine(stack) if self.config.driver == "libvirt" else self._simulated_hosts(stack)

    def _machine(self, stack: AsyncExitStack) -> OwnHosts:
        """This machine, with real guests."""
        from kilonova.hosts import reports
        from kilonova.hosts.drivers.libvirt.embedded import LibvirtHost
        from kilonova.hosts.images import ImageService
        from kilonova.http.client import InProcess
        from kilonova.seeds import seed_tiny

        name = self.config.agent.host or socket.gethostname()
        images = ImageService(self.delays.caller(InProcess(self.app, "/image")))
        host = LibvirtHost(name, self.config, images, lambda report: reports.heard(self.services, report))
        stack.push_async_callback(host.close)
        self._in_background(stack, seed_tiny(self.services))
        return host

    def _simulated_hosts(self, stack: AsyncExitStack) -> OwnHosts:
        import apsw

        from kilonova.hosts.drivers.sim.shapes import Shapes, load
        from kilonova.hosts.drivers.sim.store import Size
        from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
        from kilonova.hosts.images import ImageService
        from kilonova.http.client import InProcess

        sim = self.config.sim
        size = Size(sim.vcpus, sim.memory_mb, sim.disk_gb)
        try:
            shapes = load(Path(sim.shape)) if sim.shape else Shapes()
            hosts = EmbeddedHosts(
                EmbeddedConfig(
                    directory=self.directory, hosts=sim.hosts, size=size, shapes=shapes, latency=sim.latency
                ),
                ImageService(self.delays.caller(InProcess(self.app, "/image"))),
            )
        except ValueError as error:
            raise CannotStart(str(error)) from None
        except apsw.Error as error:
            raise CannotStart(f"the simulated hosts' files in {self.directory}: {error}") from None
        stack.callback(hosts.close)
        return hosts

    def _hosts_elsewhere(self, stack: AsyncExitStack, own: OwnHosts) -> AllHosts:
        """Together with those of this process."""
        from kilonova.hosts import reports
        from kilonova.hosts.remote import AllHosts, RemoteHosts

        def heard(report: Report) -> None:
            if hosts.heard(report):
                reports.heard(self.services, report)

        transport = self._transport(stack, heard)
        remote = RemoteHosts(transport, seconds=reports.every(self.config.hosts.report_seconds))
        hosts = AllHosts(own, remote)
        return hosts

    def _transport(self, stack: AsyncExitStack, heard: Callable[[Report], None] | None = None) -> NatsTransport:
        """Connects in its own time: a broker that is down keeps nobody from starting."""
        from kilonova.hosts.nats import NatsTransport, Setting

        try:
            transport = NatsTransport(self.config.messaging, heard)
        except Setting as error:
            raise CannotStart(str(error)) from None
        self._in_background(stack, transport.run())
        return transport

    def _reach_hosts(self, stack: AsyncExitStack) -> None:
        """For a process that serves no hosts and only reads from those of others, if it has a broker."""
        if self.config.messaging.url:
            self.services.hosts = self.delays.transport(self._transport(stack))

    async def _listen(self, bound: socket.socket) -> None:
        from kilonova.http.cors import with_cors
        from kilonova.http.server import Server, url_of

        server = Server(with_cors(self.app, self.config.cors), bound)
        await server.start()
        self._server = server
        base = self.config.public_url.rstrip("/") or url_of(bound)
        urls = {name: base + path for name, path in ENDPOINTS.items()}
        if self.config.placement.port is not None:
            urls["placement-root"] = await self._listen_for_placement()
        self.endpoints = {"auth_url": urls["identity"], **urls}
        clouds = {name: {**auth, "password": self.passwords[auth["username"]]} for name, auth in CLOUDS.items()}
        self.clouds = datadir.write_clouds(self.directory, urls["identity"], self.config.identity.region, clouds)
        datadir.write_endpoints(self.directory, self.endpoints)

    async def _listen_for_placement(self) -> str:
        """Placement at the root of a port of its own, beside its mount: many tools expect it so."""
        from kilonova.http import App
        from kilonova.http.cors import with_cors
        from kilonova.http.server import CannotListen, Server, bind, url_of

        try:
            bound = bind(self.config.host, self.config.placement.port or 0, "--placement-port")
        except CannotListen as error:
            raise CannotStart(str(error)) from None
        app = App.at_root(self.services, self.app.apis["placement"])
        self._placement_server = Server(with_cors(app, self.config.cors), bound)
        await self._placement_server.start()
        return url_of(bound)

    async def _start_workers(self, stack: AsyncExitStack) -> None:
        import kilonova.compute.operations
        import kilonova.volume.operations  # noqa: F401 - both declare what there is to carry out
        from kilonova.compute.duties import attend
        from kilonova.network.pushing import Pusher
        from kilonova.operations import Worker
        from kilonova.operations.store import free_all
        from kilonova.volume.operations.common import LANE

        services, settings = self.services, self.config.operations
        if not self.config.volume.url:
            await self._start_exports(stack)
        if self.roles.whole and (left := await free_all(services.db, settings.lease_seconds)):
            log.info("going on with operations that an earlier process left", extra={"operations": left})
        for lane in ("", LANE):
            worker = Worker(
                services.db,
                services,
                lease=settings.lease_seconds,
                slots=settings.slots,
                sweep=settings.sweep_seconds,
                lane=lane,
                observer=services.metrics,
            )
            self._workers.append(worker)
            self._in_background(stack, worker.run())
        self._in_background(stack, attend(services))
        self._in_background(stack, Pusher(services.db, services.hosts).run())
        self._in_background(stack, self._warm())

    async def _start_exports(self, stack: AsyncExitStack) -> None:
        """Guests that reach their volumes do so through a daemon, which may have died while nobody looked."""
        from kilonova.volume.exports.keeper import Keeper

        keeper = Keeper(self.config, self.services.db)
        await keeper.recover()
        stack.push_async_callback(keeper.close)
        self._in_background(stack, keeper.watch())

    async def _warm(self) -> None:
        """What is heavy and not needed for an answer loads after the first ones."""
        await asyncio.sleep(WARM_AFTER)
        try:
            await self.services.scheduler.warm()
        except store.StoreError as error:
            log.warning("the first plan will take longer: %s", error)

    # Stopping

    async def _stop_working(self) -> None:
        """Take nothing new, and end what is under way, requests and operations at the same time."""
        self.ready = False
        stopping: list[Coroutine[Any, Any, None]] = []
        for server in (self._server, self._placement_server):
            if server is not None:
                stopping.append(server.stop())
        stopping += [worker.stop(STEP_GRACE) for worker in self._workers]
        await asyncio.gather(*stopping)
        if self.roles.whole and self.endpoints:
            # Whoever waits for the file must not find that of an earlier process.
            (self.directory / datadir.ENDPOINTS).unlink(missing_ok=True)

    def _in_background(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
        """Runs until the process stops. Should it fail before, the process cannot go on."""
        task = asyncio.create_task(work)

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not self._broken.done():
                log.critical("a part of the process has failed", exc_info=error)
                self._broken.set_result(error)

        task.add_done_callback(ended)
        stack.push_async_callback(_cancel, task)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def check(config: Config, roles: Roles) -> None:
    """What this release cannot do. Raises CannotStart."""
    if config.driver not in DRIVERS:
        raise CannotStart(f"there is no driver {config.driver!r}; those there are: {', '.join(DRIVERS)}")
    if config.driver == "libvirt" and roles.worker and not roles.whole:
        raise CannotStart("a worker has no real guests of its own: run `kilonova agent --driver libvirt` on each host")
    if config.driver == "libvirt" and roles.whole:
        from kilonova.hosts.drivers.libvirt.preflight import missing

        if lacks := missing(config):
            raise CannotStart("\n".join(lacks))
    if not roles.whole and not config.database.startswith(("postgresql://", "postgres://")):
        raise CannotStart(
            "parts of a cloud apart need PostgreSQL: give --database postgresql://…, or run `kilonova up`"
        )
    if not 0 <= config.port <= 65535:
        raise CannotStart(f"port: {config.port} is not between 0 and 65535")
    if not 0 <= (config.placement.port or 0) <= 65535:
        raise CannotStart(f"placement.port: {config.placement.port} is not between 0 and 65535")
    if not 0 <= config.delays.milliseconds < math.inf:
        raise CannotStart(f"delays.milliseconds: {config.delays.milliseconds} is not a number of milliseconds")
    if config.sim.hosts < 0:
        raise CannotStart(f"sim.hosts: {config.sim.hosts} is less than 0")
    for name, value in (
        ("identity.auth_url", config.identity.auth_url),
        ("image.url", config.image.url),
        ("network.url", config.network.url),
    ):
        if value:
            raise CannotStart(f"{name}: this release has built-in services only; leave it empty")


def _apis() -> list[Api]:
    from kilonova import compute
    from kilonova.identity.api import api as identity
    from kilonova.image.routes import api as image
    from kilonova.network.routes import api as network
    from kilonova.placement.build import build as placement
    from kilonova.volume import build as volume

    return [identity, compute.build(), placement(), image, volume(), network]
