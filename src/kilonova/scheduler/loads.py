"""How busy hosts are: servers they have, operations that run there, builds that failed lately, and who did not answer.

The first two are read only if a configured filter or weigher says so in its `reads`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilonova.scheduler.stock import Integers, Numbers, longer
from kilonova.store import Database

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts

SERVERS, OPERATIONS = "servers", "operations"


class Loads:
    def __init__(self, size: int) -> None:
        self.servers: Integers = np.zeros(size, np.int64)
        self.operations: Mapping[str, int] = {}
        """By host; most hosts are idle and not in it."""
        self.failures: dict[str, int] = {}
        """Builds that failed in a row, by host, as this process remembers them."""
        self.unheard: dict[str, float] = {}
        """Hosts that did not answer this process, and until when (`time.monotonic`) that counts."""
        self._running: Numbers = np.zeros(0)
        self._running_of: Mapping[str, int] | None = None

    def running(self, hosts: Hosts) -> Numbers:
        """`operations` as a column, worked out once for each time that they were read."""
        if self._running_of is not self.operations or len(self._running) != hosts.size:
            self._running = hosts.spread(self.operations)
            self._running_of = self.operations
        return self._running

    def grow(self, by: int) -> None:
        self.servers = longer(self.servers, by)

    @property
    def troubles(self) -> Mapping[str, int]:
        """Failures by host, no answer being one more."""
        return Counter(self.failures) + Counter(self.unheard.keys()) if self.unheard else self.failures

    def expire(self, now: float) -> None:
        if self.unheard:
            self.unheard = {host: until for host, until in self.unheard.items() if until > now}

    def built(self, host: str, succeeded: bool) -> None:
        if succeeded:
            self.failures.pop(host, None)
            self.unheard.pop(host, None)
        else:
            self.failures[host] = self.failures.get(host, 0) + 1


async def count_servers(db: Database, hosts: Iterable[str]) -> dict[tuple[str, str], int]:
    """Servers by host and hypervisor."""
    rows = await db.fetch(_SERVERS, sorted(set(hosts)))
    return {(row["host"], row["hypervisor_hostname"]): row["servers"] for row in rows}


async def count_operations(db: Database) -> dict[str, int]:
    """Operations that have begun and not ended, by host; those of idle hosts are none."""
    return {row["host"]: row["operations"] for row in await db.fetch(_OPERATIONS)}


def wanted(*reads: Sequence[str]) -> frozenset[str]:
    """What filters and weighers together want to be read. Raises ValueError for what nobody can read."""
    names = frozenset[str]().union(*reads)
    if unknown := names - {SERVERS, OPERATIONS}:
        raise ValueError(
            f"a filter or weigher reads {', '.join(sorted(unknown))}; there are {SERVERS} and {OPERATIONS}"
        )
    return names


_SERVERS = """
SELECT host, hypervisor_hostname, COUNT(*) AS servers FROM servers
WHERE NOT deleted AND host = ANY($1) GROUP BY host, hypervisor_hostname
"""
_OPERATIONS = """
SELECT host, COUNT(*) AS operations FROM operations WHERE finished_at IS NULL AND host IS NOT NULL GROUP BY host
"""
