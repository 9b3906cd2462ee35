"""Assembles a control-plane process: creates its parts, connects them, starts and stops them in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova import datadir, store
from kilonova.background_tasks import BackgroundTasks
from kilonova.clock_sync import ClockSync
from kilonova.injected_delays import Delays
from kilonova.reload import Reloads
from kilonova.services import Services
from kilonova.startup_checks import CannotStart, Roles, check, unencrypted
from kilonova.store.url import dialect_of

if TYPE_CHECKING:
    from kilonova.api_servers import ApiServers
    from kilonova.config import Config
    from kilonova.hosts.drivers.libvirt.embedded import LibvirtHost
    from kilonova.hosts.fence import FencedHosts
    from kilonova.hosts.heartbeat import ServedHosts
    from kilonova.hosts.messages import Report
    from kilonova.hosts.nats import NatsTransport
    from kilonova.hosts.remote import AllHosts, LocalHosts
    from kilonova.hosts.reports import ReportQueue
    from kilonova.http import Api, App
    from kilonova.identity.token_keys import KeyRing
    from kilonova.operations import Worker
    from kilonova.store.incarnation import Mark

log = logging.getLogger(__name__)

# How long a worker waits for running steps when the process stops; it waits twice at most.
STEP_GRACE_SECONDS = 1.0
WARM_UP_DELAY_SECONDS = 0.25


@asynccontextmanager
async def running(
    config: Config,
    roles: Roles = Roles(),
    bound: socket.socket | None = None,
    print_line: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Process]:
    """Run a process for the duration of the block. Without a socket only its own clients reach its APIs.

    `print_line` gets a line for the operator if the host of the process is not registered in time, and when it is.
    """
    async with AsyncExitStack() as stack:
        process = Process(config, roles, bound, print_line)
        await process.start(stack)
        yield process


class Process:
    """`app` serves the socket, if there is one, and the clients inside the process."""

    app: App
    token_keys: KeyRing

    def __init__(
        self, config: Config, roles: Roles, bound: socket.socket | None, print_line: Callable[[str], None]
    ) -> None:
        self.config = config
        self.roles = roles
        self.bound = bound
        self.print_line = print_line
        self.directory = config.data_dir
        self.delays = Delays(config.delays)
        self.services = Services()
        self.services.config = config
        self.passwords: dict[str, str] = {}
        self.servers: ApiServers | None = None
        self.hosts: ServedHosts | None = None
        self.ready = False
        self._mark: Mark
        self._fence: FencedHosts
        self._reports: ReportQueue
        self._workers: list[Worker] = []
        self.background = BackgroundTasks("process")
        # Run on SIGHUP.
        self.reloads = Reloads()

    @property
    def host_count(self) -> int:
        return len(self.hosts.names) if self.hosts is not None else 0

    # Start, in this order. The stack stops everything in reverse order.

    async def start(self, stack: AsyncExitStack) -> None:
        began = time.perf_counter()
        check(self.config, self.roles)
        for problem in unencrypted(self.config, self.roles):
            log.warning("insecure: %s", problem)
        self._open_audit_log(stack)
        if self.roles.api:
            (self.directory / datadir.ENDPOINTS).unlink(missing_ok=True)
        if self.bound is not None:
            self.servers = self._make_servers()
        loaded = asyncio.Event()
        opening = asyncio.create_task(self._open_database(stack, loaded))
        await asyncio.sleep(0)  # threads create the schema and hash passwords while this thread loads modules
        self._make_app()
        loaded.set()
        await opening
        self._load_policy()
        self._make_clients(stack)
        self._make_scheduler(stack)
        await self._seed()
        if self.roles.worker:
            await self._start_hosts(stack)
        else:
            self._connect_to_hosts(stack)
        stack.push_async_callback(self._stop_work)
        if self.bound is not None and self.servers is not None:
            await self._listen(self.servers, self.bound)
        if self.roles.worker:
            await self._start_workers(stack)
        self.ready = True
        log.info("started", extra={"seconds": round(time.perf_counter() - began, 3), **self.roles._asdict()})

    def _open_audit_log(self, stack: AsyncExitStack) -> None:
        from kilonova.telemetry.audit import AuditLog

        settings = self.config.audit
        if settings.enabled:
            audit = AuditLog(settings.file or str(self.directory / "audit.log"), reads=settings.reads)
            try:
                audit.reopen()
            except OSError as error:
                raise CannotStart(f"audit.file: {error.filename}: {error.strerror}") from None
            self.services.audit = audit
            stack.callback(audit.close)

    async def _open_database(self, stack: AsyncExitStack, loaded: asyncio.Event) -> None:
        from kilonova.store import incarnation

        url = self.config.database_url
        try:
            if dialect_of(url) != "sqlite":
                await loaded.wait()  # on a slow machine, loading modules takes longer than the connection's timeout
            await store.upgrade(url)
            db = self.services.db = self.delays.database(await store.open_database(url))
            await store.check(db)
            self._mark = await incarnation.set_up(db)
        except (store.StoreError, ValueError, OSError) as error:
            raise CannotStart(f"database: {error}") from None
        stack.push_async_callback(db.close)
        time_source = ClockSync(db, report_seconds=self.config.hosts.report_seconds)
        await time_source.start()
        self.background.start(stack, time_source.run())
        await self._set_up_identity(db)

    async def _set_up_identity(self, db: store.Database) -> None:
        """Create the tickets of hosts; for the built-in service, the users with their passwords and the validator."""
        from kilonova.identity.token_keys import credential_key_ring, key_ring
        from kilonova.identity.token_provider import TokenProvider
        from kilonova.image.tickets import image_tickets

        built_in = self.config.is_built_in("identity")
        if built_in:
            await self._create_users(db)
        try:
            keys = key_ring(self.config)
            self.services.image_tickets = image_tickets(key_ring(self.config).source)
            self.services.credential_keys = credential_key_ring(self.config) if built_in else None
        except (OSError, ValueError) as error:
            raise CannotStart(f"keys: {error}") from None
        self.token_keys = keys
        self.reloads.add("token keys", keys.reload)
        if built_in:
            self.services.tokens = TokenProvider(db, keys, token_seconds=self.config.identity.token_seconds)

    async def _create_users(self, db: store.Database) -> None:
        from kilonova.identity.seed import seed, user_names

        if not datadir.has_passwords(self.directory) and await db.fetch_value("SELECT COUNT(*) FROM users"):
            raise CannotStart(
                f"the database has users already, but {self.directory / datadir.SECRETS} with their passwords is "
                "missing; use the data directory that the database was set up with"
            )
        try:
            self.passwords = datadir.load_passwords(self.directory, user_names())
        except ValueError as error:
            raise CannotStart(f"{self.directory / datadir.SECRETS}: {error}") from None
        await seed(db, self.passwords)

    def _make_app(self) -> None:
        from kilonova.compute import metrics as compute_metrics
        from kilonova.compute.consoles.novnc_files import novnc_pages
        from kilonova.compute.consoles.proxy import Proxy
        from kilonova.compute.consoles.tokens import MOUNT, WEBSOCKET
        from kilonova.hosts import metrics as host_metrics
        from kilonova.http import App
        from kilonova.http.monitoring_endpoints import monitoring_endpoints
        from kilonova.operations import metrics as operation_metrics

        services = self.services
        gauge_sources = (operation_metrics.gauges, host_metrics.gauges, compute_metrics.gauges)
        self.app = App(
            services,
            _apis(services.config),
            monitoring_endpoints(services, lambda: self.ready, gauge_sources),
            pages={MOUNT: novnc_pages(services.config.console)},
            sockets={f"/{MOUNT}/{WEBSOCKET}": Proxy(services)},
        )

    def _load_policy(self) -> None:
        from kilonova.policy import Policy, PolicyError

        try:
            policy = self.services.policy = Policy(Path(self.config.policy) if self.config.policy else None)
        except (PolicyError, OSError) as error:
            raise CannotStart(f"policy: {error}") from None
        if self.config.policy:
            self.reloads.add("policy", policy.reload)
        for api in self.app.apis.values():
            policy.check(name for route in api.routes.values() for name in (route.policy, *route.checks) if name)

    def _make_clients(self, stack: AsyncExitStack) -> None:
        from kilonova.certificates import UnusableCertificate
        from kilonova.companions import make_clients
        from kilonova.compute.status import ComputeStatus
        from kilonova.identity.client import RemoteValidator
        from kilonova.identity.seed import SERVICE_USER

        services, config = self.services, self.config
        try:
            make_clients(services, self.app, self.passwords.get(SERVICE_USER, ""), self.delays.caller, stack)
        except UnusableCertificate as error:
            raise CannotStart(str(error)) from None
        self.token_keys.listen(services.identity.forget)
        if not config.is_built_in("identity"):
            services.tokens = RemoteValidator(services.identity, config.identity.token_cache_seconds)
        services.compute_status = ComputeStatus(services.db, config)

    def _make_scheduler(self, stack: AsyncExitStack) -> None:
        """Create the scheduler. API-only processes need it for dry runs. It loads hosts at the first request."""
        from kilonova.scheduler import Scheduler

        services, config = self.services, self.config
        try:
            services.scheduler = Scheduler(services.db, config.scheduler, down_seconds=config.hosts.down_seconds)
        except ValueError as error:
            raise CannotStart(f"scheduler: {error}") from None
        stack.push_async_callback(services.scheduler.close)

    async def _seed(self) -> None:
        from kilonova.seeds import seed

        await seed(self.services)

    async def _start_hosts(self, stack: AsyncExitStack) -> None:
        from kilonova.compute import power_state_sync
        from kilonova.compute.pending_cleanups import find_pending_cleanups
        from kilonova.hosts.fence import FencedHosts
        from kilonova.hosts.heartbeat import Heartbeat
        from kilonova.hosts.late_hosts import report_late_host
        from kilonova.hosts.reports import ReportQueue
        from kilonova.seeds import spread_hosts

        db = self.services.db
        self._reports = ReportQueue(partial(power_state_sync.sync, self.services))
        stack.push_async_callback(self._reports.close)
        libvirt = self._libvirt_host(stack) if self.config.driver == "libvirt" else None
        local: LocalHosts = libvirt or self._simulated_hosts(stack)
        self.background.start(stack, local.run())
        all_hosts = self._with_remote_hosts(stack, local) if self.config.messaging.url else None
        fence = self._fence = FencedHosts(local if all_hosts is None else all_hosts, db, self._mark)
        hosts = self.hosts = fence
        self.services.hosts = self.delays.transport(hosts)
        heartbeat = Heartbeat(
            db,
            hosts,
            process_host=socket.gethostname(),
            interval=self.config.hosts.report_seconds,
            find_cleanups=find_pending_cleanups,
        )
        if all_hosts is not None:
            all_hosts.on_change(heartbeat.wake)
        if libvirt is not None:
            libvirt.on_change = heartbeat.wake
            self.background.start(stack, report_late_host(libvirt, fence, heartbeat, self.print_line))
        await heartbeat.beat()
        if reason := next((fence.ahead[host] for host in local.names if host in fence.ahead), ""):
            raise CannotStart(reason)
        if self.config.zones:
            await spread_hosts(db, self.config.zones, local.names)
        self.background.start(stack, heartbeat.run())

    def _libvirt_host(self, stack: AsyncExitStack) -> LibvirtHost:
        """Return this machine as a host with real guests."""
        from kilonova.hosts.drivers.libvirt.embedded import LibvirtHost
        from kilonova.hosts.images import ImageService
        from kilonova.http.client import InProcess
        from kilonova.seeds import seed_tiny_image

        name = self.config.agent.host or socket.gethostname()
        images = ImageService(self.delays.caller(InProcess(self.app, "/image")))
        host = LibvirtHost(name, self.config, images, self._reports.put)
        stack.push_async_callback(host.close)
        self.background.start(stack, seed_tiny_image(self.services))
        return host

    def _simulated_hosts(self, stack: AsyncExitStack) -> LocalHosts:
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
            raise CannotStart(f"cannot open the simulated hosts' files in {self.directory}: {error}") from None
        stack.callback(hosts.close)
        return hosts

    def _with_remote_hosts(self, stack: AsyncExitStack, local: LocalHosts) -> AllHosts:
        from kilonova.hosts.remote import AllHosts, RemoteHosts
        from kilonova.hosts.reports import report_interval

        def on_report(report: Report) -> None:
            if hosts.receive_report(report):
                self._reports.put(report)

        transport = self._nats_transport(stack, on_report)
        remote = RemoteHosts(transport, report_seconds=report_interval(self.config.hosts.report_seconds))
        hosts = AllHosts(local, remote)
        return hosts

    def _nats_transport(
        self, stack: AsyncExitStack, on_report: Callable[[Report], None] | None = None
    ) -> NatsTransport:
        """Connect in the background, so that the process starts even if the broker is down."""
        from kilonova.hosts.nats import NatsTransport, SettingError

        try:
            transport = NatsTransport(self.config.messaging, on_report)
        except SettingError as error:
            raise CannotStart(str(error)) from None
        self.background.start(stack, transport.run())
        return transport

    def _connect_to_hosts(self, stack: AsyncExitStack) -> None:
        """Give an API-only process read access to hosts, if there is a broker."""
        if self.config.messaging.url:
            self.services.hosts = self.delays.transport(self._nats_transport(stack))

    def _make_servers(self) -> ApiServers:
        from kilonova.api_servers import ApiServers
        from kilonova.certificates import UnusableCertificate

        try:
            return ApiServers(self.config, self.reloads)
        except UnusableCertificate as error:
            raise CannotStart(str(error)) from None

    async def _valid_passwords(self) -> dict[str, str]:
        """The generated passwords, without those of users who have changed theirs."""
        from kilonova.identity.seed import users_with_other_passwords

        changed = await users_with_other_passwords(self.services.db, self.passwords)
        if changed:
            log.info("passwords differ from %s: %s", datadir.SECRETS, ", ".join(sorted(changed)))
        return {name: password for name, password in self.passwords.items() if name not in changed}

    async def _listen(self, servers: ApiServers, bound: socket.socket) -> None:
        from kilonova.http.server import CannotListen

        try:
            await servers.start(self.app, bound, await self._valid_passwords())
        except CannotListen as error:
            raise CannotStart(str(error)) from None

    async def _start_workers(self, stack: AsyncExitStack) -> None:
        import kilonova.compute.operations
        import kilonova.share.operations
        import kilonova.volume.operations  # noqa: F401 - all register kinds of operations
        from kilonova.compute.periodic import run_tasks
        from kilonova.network.host_sync import HostSync
        from kilonova.operations import Worker
        from kilonova.operations.store import end_all_leases
        from kilonova.volume.operations.common import LANE

        services, settings = self.services, self.config.operations
        if self.config.is_built_in("volume"):
            await self._start_exports(stack)
        if self.roles.whole and (unfinished := await end_all_leases(services.db, settings.lease_seconds)):
            log.info("resuming operations of an earlier process", extra={"operations": unfinished})
        for lane in ("", LANE):
            worker = Worker(
                services.db,
                services,
                lease=settings.lease_seconds,
                slots=settings.slots,
                sweep=settings.poll_seconds,
                lane=lane,
                observer=services.metrics,
                audit=services.audit,
                on_lease=self._fence.leased,
            )
            self._workers.append(worker)
            self.background.start(stack, worker.run())
        self.background.start(stack, run_tasks(services))
        if self.config.is_built_in("network"):
            self.background.start(stack, HostSync(services.db, services.hosts).run())
        self.background.start(stack, self._warm_up())

    async def _start_exports(self, stack: AsyncExitStack) -> None:
        """Start the volume exports. Their daemon may have died since the last start."""
        from kilonova.volume.exports.manager import ExportManager

        exports = ExportManager(self.config, self.services.db)
        await exports.recover()
        stack.push_async_callback(exports.close)
        self.background.start(stack, exports.watch())

    async def _warm_up(self) -> None:
        """Load the scheduler's modules and hosts once the process has started."""
        await asyncio.sleep(WARM_UP_DELAY_SECONDS)
        try:
            await self.services.scheduler.warm()
        except store.StoreError as error:
            log.warning("the scheduler was not warmed up: %s", error)

    # Stop

    async def _stop_work(self) -> None:
        """Accept no new requests and operations, and finish those under way."""
        self.ready = False
        stopping = [worker.stop(STEP_GRACE_SECONDS) for worker in self._workers]
        if self.servers is not None:
            stopping.append(self.servers.stop())
        await asyncio.gather(*stopping)
        if self.roles.whole and self.servers is not None:
            # A script that waits for the file must not find the one of an earlier process.
            (self.directory / datadir.ENDPOINTS).unlink(missing_ok=True)


def _apis(config: Config) -> list[Api]:
    """Compute, placement and the built-in services. Hosts get images here, even if another service has them."""
    from kilonova import compute, identity, image, network, share
    from kilonova.placement.build import build as placement
    from kilonova.volume import build as volume

    build_functions = {"identity": identity.build, "volume": volume, "network": network.build, "share": share.build}
    served = [build() for name, build in build_functions.items() if config.serves(name)]
    return [compute.build(), placement(), image.build(for_hosts_only=not config.serves("image")), *served]
