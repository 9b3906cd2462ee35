"""Hosts served by this very process: simulated ones, their agents made when first spoken to."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from kilonova.hosts.agent import Agent
from kilonova.hosts.drivers.base import Images
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Body
from kilonova.hosts.drivers.sim.rules import STEPS, Rules
from kilonova.hosts.drivers.sim.shapes import Shape, Shapes
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore, Size
from kilonova.hosts.journal import NAME, Journal, tend
from kilonova.hosts.messages import Command, HostFacts
from kilonova.hosts.transport import DEFAULT_TIMEOUT, HostTrouble, InProcess, describe_all

log = logging.getLogger(__name__)

_DESCRIBE_TIMEOUT = 5.0


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`sizes` gives hosts another size by name or shell pattern, first match; `latency` is seconds by step.

    With `shapes` there are at least as many hosts as it takes to show each of them.
    """

    directory: Path
    hosts: int = 3
    size: Size = Size()
    sizes: dict[str, Size] = {}
    shapes: Shapes = Shapes()
    latency: dict[str, float] = {}
    timeout: float = DEFAULT_TIMEOUT

    def __post_init__(self) -> None:
        for step, seconds in self.latency.items():
            if step not in STEPS:
                raise ValueError(f"sim.latency: there is no step {step!r}; the steps are {', '.join(STEPS)}")
            if not 0 <= seconds < math.inf:
                raise ValueError(f"sim.latency.{step}: {seconds} is not a number of seconds")

    def bodies(self) -> dict[str, Body]:
        """What each host is made of, by name."""
        names = [host_name(number) for number in range(1, max(self.hosts, self.shapes.hosts) + 1)]
        shapes = self.shapes.assign(names)
        return {name: self._body(name, shapes.get(name)) for name in names}

    def _body(self, host: str, shape: Shape | None) -> Body:
        sharing = self.shapes.shared_by(host, shape.name if shape else "") if self.shapes.sharing else ()
        return Body(self._size_of(host) if shape is None else _size_of_shape(shape), shape, sharing)

    def _size_of(self, host: str) -> Size:
        for pattern, size in self.sizes.items():
            if fnmatchcase(host, pattern):
                return size
        return self.size


class EmbeddedHosts:
    """A transport together with the hosts it reaches. `images`: how they read and write the data of images."""

    def __init__(self, config: EmbeddedConfig, images: Images | None = None) -> None:
        self._config = config
        self._images = images
        self._bodies = config.bodies()
        self.names = list(self._bodies)
        self._journal = Journal(config.directory / NAME)
        self._store = SimStore(config.directory / FILE_NAME)
        self._store.set_hosts({name: body.size for name, body in self._bodies.items()})
        self._rules = Rules(self._store)
        self._agents: dict[str, Agent] = {}
        self._transport = InProcess(self._agent, config.timeout)

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        return await self._transport.call(host, command, timeout=timeout)

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        """What registration needs of those hosts that answer."""
        asked = list(hosts)
        answers = await describe_all(self, asked, timeout=_DESCRIBE_TIMEOUT)
        found = []
        for host in asked:
            answer = answers[host]
            if isinstance(answer, HostTrouble):
                log.warning("host %s does not say what it is: %s", host, answer.message)
            else:
                found.append(answer)
        return found

    def silent(self, hosts: Iterable[str]) -> list[str]:
        """Which of the hosts are cut off by a rule."""
        return self._rules.silent(hosts)

    def outdated(self, hosts: Iterable[str]) -> list[str]:
        """None: simulated hosts stay what they were when the process started."""
        return []

    async def run(self) -> None:
        """Keeps the files small until cancelled."""
        await tend(self._journal, self._store.path)

    def close(self) -> None:
        self._journal.close()
        self._store.close()

    def _agent(self, host: str) -> Agent | None:
        agent = self._agents.get(host)
        if agent is None and host in self._bodies:
            driver = SimDriver(host, self._bodies, self._store, self._rules, self._config.latency, self._images)
            agent = self._agents[host] = Agent(host, driver, self._journal)
        return agent


def _size_of_shape(shape: Shape) -> Size:
    return Size(shape.total("VCPU", "PCPU"), shape.total("MEMORY_MB"), shape.total("DISK_GB"))


def host_name(number: int) -> str:
    """Three digits, more when needed: a host keeps its name when others are added."""
    return f"sim-{number:03d}"
