"""How busy and how healthy hosts are: servers, running operations, failed builds, unreachable hosts.

Servers and operations are counted only if a configured filter or weigher names them in its `reads`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilonova.scheduler.arrays import Integers, Numbers, extended
from kilonova.store import Database

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts

SERVERS, OPERATIONS = "servers", "operations"


class HostLoad:
    def __init__(self, size: int) -> None:
        self.servers: Integers = np.zeros(size, np.int64)
        self.operations: Mapping[str, int] = {}
        """Running operations by host; without idle hosts."""
        self.failures: dict[str, int] = {}
        """Consecutive failed builds by host, as seen by this process."""
        self.unreachable: dict[str, float] = {}
        """Hosts that did not respond to this process, and until when (`time.monotonic`) that counts."""
        self._running: Numbers = np.zeros(0)
        self._running_source: Mapping[str, int] | None = None

    def operations_column(self, hosts: Hosts) -> Numbers:
        """`operations` as a column, cached until they are read again."""
        if self._running_source is not self.operations or len(self._running) != hosts.size:
            self._running = hosts.column_by_host(self.operations)
            self._running_source = self.operations
        return self._running

    def grow(self, by: int) -> None:
        self.servers = extended(self.servers, by)

    @property
    def failure_counts(self) -> Mapping[str, int]:
        """Failed builds by host; an unreachable host counts as one more."""
        return Counter(self.failures) + Counter(self.unreachable.keys()) if self.unreachable else self.failures

    def expire(self, now: float) -> None:
        if self.unreachable:
            self.unreachable = {host: until for host, until in self.unreachable.items() if until > now}

    def record_build(self, host: str, succeeded: bool) -> None:
        if succeeded:
            self.failures.pop(host, None)
            self.unreachable.pop(host, None)
        else:
            self.failures[host] = self.failures.get(host, 0) + 1


async def count_servers(db: Database, hosts: Iterable[str]) -> dict[tuple[str, str], int]:
    """Servers by host and hypervisor."""
    rows = await db.fetch(_SERVERS, sorted(set(hosts)))
    return {(row["host"], row["hypervisor_hostname"]): row["servers"] for row in rows}


async def count_operations(db: Database) -> dict[str, int]:
    """Unfinished operations by host; without idle hosts."""
    return {row["host"]: row["operations"] for row in await db.fetch(_OPERATIONS)}


def required_counts(*reads: Sequence[str]) -> frozenset[str]:
    """The counts that filters and weighers read. Raises ValueError for an unknown one."""
    names = frozenset[str]().union(*reads)
    if unknown := names - {SERVERS, OPERATIONS}:
        raise ValueError(
            f"`reads` of a filter or weigher must be {SERVERS} or {OPERATIONS}, not {', '.join(sorted(unknown))}"
        )
    return names


_SERVERS = """
SELECT host, hypervisor_hostname, COUNT(*) AS servers FROM servers
WHERE NOT deleted AND host = ANY($1) GROUP BY host, hypervisor_hostname
"""
_OPERATIONS = """
SELECT host, COUNT(*) AS operations FROM operations WHERE finished_at IS NULL AND host IS NOT NULL GROUP BY host
"""
