"""Limits the connections of a process, in total and per address."""

from __future__ import annotations

import logging
import resource
import time
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from kilonova.http.origin import group_of

if TYPE_CHECKING:
    from kilonova.config import Api

log = logging.getLogger(__name__)

# More descriptors than this slow down programs that close all of them.
MAX_FILE_DESCRIPTORS = 65536
# Which part of the idle connections is closed to make room, so that the search for them is rare.
CLOSED_PART = 20


class Connection(Protocol):
    # None during a request.
    idle_since: float | None

    def close_idle(self) -> None: ...


class ConnectionLimits:
    """Counts open connections. With `maximum` or `per_address` 0 their number is unlimited."""

    def __init__(self, maximum: int = 0, per_address: int = 0) -> None:
        self.maximum = maximum
        self.per_address = per_address
        self.count = 0
        self._by_address: Counter[str] = Counter()
        # Connections that make room and are not closed yet.
        self._closing = 0
        self._search_again_at = 0.0

    def admit(self, address: str, open_connections: Collection[Connection]) -> bool:
        """Count a new connection, unless there are too many. Idle connections make room for it."""
        if self.per_address:
            group = group_of(address)
            if self._by_address[group] >= self.per_address:
                return False
            self._by_address[group] += 1
        self.count += 1
        if self.maximum and self.count - self._closing > self.maximum and not self._make_room(open_connections):
            self.release(address)
            return False
        return True

    def _make_room(self, connections: Collection[Connection]) -> bool:
        """Close those that have been idle longest. If none is idle, search again after a second."""
        if time.monotonic() < self._search_again_at:
            return False
        idle = [(since, connection) for connection in connections if (since := connection.idle_since) is not None]
        log.warning("too many connections", extra={"connections": self.count, "idle": len(idle)})
        if not idle:
            self._search_again_at = time.monotonic() + 1
            return False
        idle.sort(key=lambda each: each[0])
        chosen = idle[: len(idle) // CLOSED_PART + 1]
        for _, connection in chosen:
            connection.close_idle()
        self._closing += len(chosen)
        return True

    def release(self, address: str) -> None:
        self.count -= 1
        self._closing = max(0, self._closing - 1)
        if self.per_address:
            group = group_of(address)
            self._by_address[group] -= 1
            if not self._by_address[group]:
                del self._by_address[group]


def limits_of(settings: Api) -> ConnectionLimits:
    """The limits of this process. By default, half of the file descriptors: a request may need another one."""
    descriptors = raise_file_descriptors()
    maximum = settings.max_connections or descriptors // 2
    log.info("connections are limited", extra={"file_descriptors": descriptors, "connections": maximum})
    if maximum >= descriptors:
        log.warning(
            "api.max_connections is not below the file descriptors; raise their hard limit (ulimit -Hn, LimitNOFILE)",
            extra={"file_descriptors": descriptors, "connections": maximum},
        )
    return ConnectionLimits(maximum, settings.max_connections_per_address)


def raise_file_descriptors() -> int:
    """Raise the limit of file descriptors as far as the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_FILE_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
