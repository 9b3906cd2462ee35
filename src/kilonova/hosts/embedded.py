"""Simulated hosts served by this process. A host's agent is created at its first command."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import Images
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Hardware
from kilonova.hosts.drivers.sim.rules import STEPS, Rules
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore, Size
from kilonova.hosts.journal import JOURNAL_FILE_NAME, Journal, maintain_files
from kilonova.hosts.messages import Command, HostFacts
from kilonova.hosts.messages.verbs import Answer, Verb
from kilonova.hosts.transport import DEFAULT_TIMEOUT_SECONDS, InProcess, describe_reachable

_DESCRIBE_TIMEOUT_SECONDS = 5.0


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`sizes` overrides `size` by host name or shell pattern, first match; `latency` is seconds by step.

    `hosts` is raised to the number of hosts that `shapes` defines.
    """

    directory: Path
    hosts: int = 3
    size: Size = Size()
    sizes: dict[str, Size] = {}
    shapes: Shapes = Shapes()
    latency: dict[str, float] = {}
    timeout: float = DEFAULT_TIMEOUT_SECONDS

    def __post_init__(self) -> None:
        for step, seconds in self.latency.items():
            if step not in STEPS:
                raise ValueError(f"sim.latency: there is no step {step!r}; the steps are {', '.join(STEPS)}")
            if not 0 <= seconds < math.inf:
                raise ValueError(f"sim.latency.{step}: {seconds} is not a number of seconds")

    def hardware_by_host(self) -> dict[str, Hardware]:
        names = [host_name(number) for number in range(1, max(self.hosts, self.shapes.hosts) + 1)]
        shapes = self.shapes.assign(names)
        return {name: self._hardware(name, shapes.get(name)) for name in names}

    def _hardware(self, host: str, shape: Shape | None) -> Hardware:
        sharing = self.shapes.shared_by(host, shape.name if shape else "") if self.shapes.sharing else ()
        return Hardware(self._size_of(host) if shape is None else _size_of_shape(shape), shape, sharing)

    def _size_of(self, host: str) -> Size:
        for pattern, size in self.sizes.items():
            if fnmatchcase(host, pattern):
                return size
        return self.size


class EmbeddedHosts:
    """The simulated hosts, and the transport to them. `images`: reads and writes image data for them."""

    def __init__(self, config: EmbeddedConfig, images: Images | None = None) -> None:
        self._config = config
        self._images = images
        self._hardware = config.hardware_by_host()
        self.names = list(self._hardware)
        self._journal = Journal(config.directory / JOURNAL_FILE_NAME)
        self._store = SimStore(config.directory / SIM_FILE_NAME)
        self._store.set_hosts({name: hardware.size for name, hardware in self._hardware.items()})
        self._rules = Rules(self._store)
        self._agents: dict[str, Agent] = {}
        self._transport = InProcess(self._agent, config.timeout)

    async def call(self, host: str, command: Command[Verb[Answer]], *, timeout: float | None = None) -> Answer:
        return await self._transport.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        return await describe_reachable(self, hosts, timeout=_DESCRIBE_TIMEOUT_SECONDS)

    def unreachable(self, hosts: Iterable[str]) -> list[str]:
        return self._rules.unreachable(hosts)

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        """Simulated hosts never change while the process runs."""
        return []

    async def run(self) -> None:
        await maintain_files(self._journal, self._store.path)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()
        self._journal.close()
        self._store.close()

    def _agent(self, host: str) -> Agent | None:
        agent = self._agents.get(host)
        if agent is None and host in self._hardware:
            driver = SimDriver(host, self._hardware, self._store, self._rules, self._config.latency, self._images)
            agent = self._agents[host] = Agent(host, driver, self._journal)
        return agent


def _size_of_shape(shape: Shape) -> Size:
    return Size(shape.total("VCPU", "PCPU"), shape.total("MEMORY_MB"), shape.total("DISK_GB"))


def host_name(number: int) -> str:
    """Name a host with three digits, or more when needed. Adding hosts changes no name."""
    return f"sim-{number:03d}"
