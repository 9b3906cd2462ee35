"""Assembles an agent process: one host with its driver, its journal, and its connection to the control plane."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.background_tasks import BackgroundTasks
from kilonova.encryption import problems_of_agent
from kilonova.startup_checks import DRIVERS, CannotStart

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from kilonova.config import Agent as AgentSettings
    from kilonova.config import Config
    from kilonova.hosts.drivers.base import Driver, Images

log = logging.getLogger(__name__)

# How long the process waits for commands under way when it stops.
COMMAND_GRACE_SECONDS = 2.0


def host_name(config: Config) -> str:
    return config.agent.host or socket.gethostname()


def check(config: Config) -> None:
    """Check the agent's settings. Raises CannotStart."""
    if not config.messaging.url:
        raise CannotStart("messaging.url is not set: an agent reaches its control plane by a NATS server")
    if not config.agent.image_url:
        raise CannotStart(
            "agent.image_url is not set: give the URL of the image service, such as https://cloud:8774/image"
        )
    if config.driver not in DRIVERS:
        raise CannotStart(f"driver: {config.driver!r} is not one of {', '.join(DRIVERS)}")
    if not config.insecure and (problems := problems_of_agent(config)):
        raise CannotStart("\n".join(problems))


class DriverSetup(NamedTuple):
    """A driver with its background work, its SQLite files, and whether its simulated host is cut off."""

    driver: Driver
    close: Callable[[], Coroutine[Any, Any, None]]
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    files: tuple[Path, ...] = ()
    is_cut_off: Callable[[], bool] = lambda: False


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[AgentProcess]:
    """Run an agent for the duration of the block. Its guests keep running afterwards."""
    async with AsyncExitStack() as stack:
        process = AgentProcess(config)
        await process.start(stack)
        yield process


class AgentProcess:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.host = host_name(config)
        self.background = BackgroundTasks("agent")

    async def start(self, stack: AsyncExitStack) -> None:
        from kilonova.hosts.agent import Agent
        from kilonova.hosts.images import ImageService
        from kilonova.hosts.journal import JOURNAL_FILE_NAME, Journal, maintain_files
        from kilonova.hosts.nats import NatsAgent, SettingError
        from kilonova.hosts.reports import Reporter, report_interval
        from kilonova.http.client import Remote
        from kilonova.injected_delays import Delays

        config = self.config
        check(config)
        for problem in problems_of_agent(config):
            log.warning("insecure: %s", problem)
        journal = Journal(config.data_dir / JOURNAL_FILE_NAME)
        stack.callback(journal.close)
        caller = Remote(config.agent.image_url.rstrip("/"), tls=image_tls(config.agent))
        stack.push_async_callback(caller.close)
        setup = _make_driver(config, self.host, ImageService(Delays(config.delays).caller(caller)))
        stack.push_async_callback(setup.close)
        agent = Agent(self.host, setup.driver, journal)
        try:
            service = NatsAgent(config.messaging, agent)
        except SettingError as error:
            raise CannotStart(str(error)) from None
        interval = report_interval(config.hosts.report_seconds)
        reporter = Reporter(self.host, setup.driver, service.report, interval, setup.is_cut_off)
        service.connection.on_connected = reporter.wake
        if setup.run is not None:
            self.background.start(stack, setup.run())
        self.background.start(stack, maintain_files(journal, *setup.files))
        stack.push_async_callback(_finish_commands, agent, service)
        self.background.start(stack, service.run())
        self.background.start(stack, reporter.run())
        log.info("started", extra={"host": self.host, "driver": config.driver})


def image_tls(settings: AgentSettings) -> ssl.SSLContext | None:
    """How to verify the image service; None if it uses plain HTTP. Raises CannotStart."""
    from kilonova.certificates import UnusableCertificate, client_context

    if not settings.image_url.startswith("https:"):
        return None
    try:
        context = client_context(settings.image_ca_file, "agent.image_ca_file")
        if settings.ca_file and not settings.image_ca_file:
            context.load_verify_locations(settings.ca_file)
    except UnusableCertificate as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"agent.ca_file: {settings.ca_file} cannot be used: {error}") from None
    return context


async def _finish_commands(agent: Any, service: Any) -> None:
    """Wait for commands under way, then exit without cancelling the rest.

    Cancelling a command would stop the hypervisor's work on the guest. The caller repeats the command and finds the
    work done, as after a kill.
    """
    agent.close()
    until = asyncio.get_running_loop().time() + COMMAND_GRACE_SECONDS
    while agent.busy and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.02)
    if agent.busy:
        log.warning("stopped during commands: callers repeat them")
        logging.shutdown()
        os._exit(0)
    await service.close()


# Drivers


def _make_driver(config: Config, host: str, images: Images) -> DriverSetup:
    return (
        _make_libvirt_driver(config, host, images)
        if config.driver == "libvirt"
        else _make_sim_driver(config, host, images)
    )


def _make_sim_driver(config: Config, host: str, images: Images) -> DriverSetup:
    """One simulated host. Its guests are in its own `sim.db`, which `kilonova sim` can read."""
    from kilonova.hosts.drivers.sim.driver import SimDriver
    from kilonova.hosts.drivers.sim.facts import Hardware
    from kilonova.hosts.drivers.sim.rules import Rules
    from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore, Size

    sim = config.sim
    hardware = Hardware(Size(sim.vcpus, sim.memory_mb, sim.disk_gb))
    store = SimStore(config.data_dir / SIM_FILE_NAME)
    store.set_hosts({host: hardware.size})
    rules = Rules(store)

    async def close() -> None:
        store.close()

    driver = SimDriver(host, {host: hardware}, store, rules, sim.latency, images)
    return DriverSetup(driver, close, files=(store.path,), is_cut_off=lambda: bool(rules.unreachable([host])))


def _make_libvirt_driver(config: Config, host: str, images: Images) -> DriverSetup:
    from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver

    driver = LibvirtDriver(host, config, images)
    return DriverSetup(driver, driver.close, driver.run)
