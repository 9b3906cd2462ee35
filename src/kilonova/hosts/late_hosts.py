"""Tells the operator on the terminal that a host of this process is not registered yet, why, and when it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

# A host that is registered earlier is not mentioned.
_LATE_SECONDS = 2.0
_POLL_SECONDS = 0.25


class LateHost(Protocol):
    """The only host of a transport."""

    names: list[str]

    def why_absent(self, host: str) -> str: ...


class Fence(Protocol):
    @property
    def ahead(self) -> Mapping[str, str]: ...


class Registry(Protocol):
    def is_registered(self, host: str) -> bool: ...


async def tell_of_late_host(hosts: LateHost, fence: Fence, registry: Registry, tell: Callable[[str], None]) -> None:
    """Call `tell` with each new reason why the host is not there, and when it is there."""
    (host,) = hosts.names
    await asyncio.sleep(_LATE_SECONDS)
    told = ""
    while not registry.is_registered(host):
        reason = fence.ahead.get(host) or hosts.why_absent(host)
        if reason != told:
            tell(f"{host} is not there yet: {reason}")
            told = reason
        await asyncio.sleep(_POLL_SECONDS)
    if told:
        tell(f"{host} is there")
