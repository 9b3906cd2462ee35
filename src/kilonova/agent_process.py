"""The assembly of an agent's process: one host, its driver, its journal, and the way to the control plane."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.process import DRIVERS, CannotStart

if TYPE_CHECKING:
    from pathlib import Path

    from kilonova.config import Config
    from kilonova.hosts.drivers.base import Driver, Images

log = logging.getLogger(__name__)

# How long commands under way may go on after the process was asked to stop.
GRACE = 2.0


def host_of(config: Config) -> str:
    return config.agent.host or socket.gethostname()


def check(config: Config) -> None:
    """What keeps an agent from working, as far as its settings show it. Raises CannotStart."""
    if not config.messaging.url:
        raise CannotStart("messaging.url is not set: an agent reaches its control plane by a NATS server")
    if not config.agent.image_url:
        raise CannotStart(
            "agent.image_url is not set: it is where the image service is, such as http://cloud:8774/image"
        )
    if config.driver not in DRIVERS:
        raise CannotStart(f"there is no driver {config.driver!r}; those there are: {', '.join(DRIVERS)}")
    if config.driver == "libvirt":
        from kilonova.hosts.drivers.libvirt.preflight import missing

        if lacks := missing(config):
            raise CannotStart("\n".join(lacks))


class Made(NamedTuple):
    """A driver, how it ends, what goes on beside its commands, its files, and whether the host plays dead."""

    driver: Driver
    close: Callable[[], Coroutine[Any, Any, None]]
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    files: tuple[Path, ...] = ()
    quiet: Callable[[], bool] = lambda: False


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[AgentProcess]:
    """An agent that has started; it stops at the end of the block, and its guests go on."""
    async with AsyncExitStack() as stack:
        process = AgentProcess(config)
        await process.start(stack)
        yield process


class AgentProcess:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.host = host_of(config)
        self._broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self, stack: AsyncExitStack) -> None:
        from kilonova.delays import Delays
        from kilonova.hosts.agent import Agent
        from kilonova.hosts.images import ImageService
        from kilonova.hosts.journal import NAME, Journal, tend
        from kilonova.hosts.nats import NatsAgent, Setting
        from kilonova.hosts.reports import Reporter, every
        from kilonova.http.client import Remote

        config = self.config
        check(config)
        journal = Journal(config.data_dir / NAME)
        stack.callback(journal.close)
        caller = Remote(config.agent.image_url.rstrip("/"))
        stack.push_async_callback(caller.close)
        made = _make(config, self.host, ImageService(Delays(config.delays).caller(caller)))
        stack.push_async_callback(made.close)
        agent = Agent(self.host, made.driver, journal)
        try:
            service = NatsAgent(config.messaging, agent)
        except Setting as error:
            raise CannotStart(str(error)) from None
        reporter = Reporter(
            self.host, made.driver, service.report, every(config.hosts.report_seconds), quiet=made.quiet
        )
        service.link.on_connected = reporter.wake
        if made.run is not None:
            self._in_background(stack, made.run())
        self._in_background(stack, tend(journal, *made.files))
        stack.push_async_callback(_let_end, agent, service)
        self._in_background(stack, service.run())
        self._in_background(stack, reporter.run())
        log.info("started", extra={"host": self.host, "driver": config.driver})

    async def run_until(self, stop: asyncio.Event) -> None:
        """Raises CannotStart should a part of the process end before."""
        waiting = asyncio.ensure_future(stop.wait())
        await asyncio.wait((waiting, self._broken), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._broken.done():
            raise CannotStart(f"a part of the agent has failed: {self._broken.result()}; see the log")

    def _in_background(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not self._broken.done():
                log.critical("a part of the agent has failed", exc_info=error)
                self._broken.set_result(error)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task.add_done_callback(ended)
        stack.push_async_callback(cancel)


async def _let_end(agent: Any, service: Any) -> None:
    """Commands under way may end. One that does not is left as a kill would leave it: to cancel it would stop what the
    hypervisor does for the guest, while whoever asked will ask again and find the work.
    """
    until = asyncio.get_running_loop().time() + GRACE
    while agent.busy and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.02)
    if agent.busy:
        log.warning("stopped in the middle of commands, which go on without the agent or are found again")
        logging.shutdown()
        os._exit(0)
    await service.close()


# Drivers


def _make(config: Config, host: str, images: Images) -> Made:
    return _libvirt(config, host, images) if config.driver == "libvirt" else _simulated(config, host, images)


def _simulated(config: Config, host: str, images: Images) -> Made:
    """One simulated host. Its guests are in its own `sim.db`, so that `kilonova sim` works there too."""
    from kilonova.hosts.drivers.sim.driver import SimDriver
    from kilonova.hosts.drivers.sim.facts import Body
    from kilonova.hosts.drivers.sim.rules import Rules
    from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore, Size

    sim = config.sim
    body = Body(Size(sim.vcpus, sim.memory_mb, sim.disk_gb))
    store = SimStore(config.data_dir / FILE_NAME)
    store.set_hosts({host: body.size})
    rules = Rules(store)

    async def close() -> None:
        store.close()

    driver = SimDriver(host, {host: body}, store, rules, sim.latency, images)
    return Made(driver, close, files=(store.path,), quiet=lambda: bool(rules.silent([host])))


def _libvirt(config: Config, host: str, images: Images) -> Made:
    from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver

    driver = LibvirtDriver(host, config, images)
    return Made(driver, driver.close, driver.run)
