"""Reports to the operator, on the terminal, why the host of this process is not registered yet, and when it is."""

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

    def why_absent(self) -> str: ...


class Fence(Protocol):
    @property
    def ahead(self) -> Mapping[str, str]: ...


class Registry(Protocol):
    def is_registered(self, host: str) -> bool: ...


async def report_late_host(
    hosts: LateHost, fence: Fence, registry: Registry, print_line: Callable[[str], None]
) -> None:
    """Call `print_line` with each new reason why the host is not registered, and again when it is registered."""
    (host,) = hosts.names
    await asyncio.sleep(_LATE_SECONDS)
    reported = ""
    while not registry.is_registered(host):
        reason = fence.ahead.get(host) or hosts.why_absent()
        if reason != reported:
            print_line(f"{host} is not registered yet: {reason}")
            reported = reason
        await asyncio.sleep(_POLL_SECONDS)
    if reported:
        print_line(f"{host} is registered")
