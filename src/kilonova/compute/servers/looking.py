"""Asking the host of a server something that changes nothing, for routes whose answer only the host knows."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.messages import Command, Read
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.http import Context
from kilonova.http.errors import Conflict, NotSupported, Unavailable
from kilonova.store import Row

# Longer than that nobody looks at an empty page.
SECONDS = 10.0


async def look(ctx: Context, row: Row, verb: Read) -> Any:
    """The answer of the server's host. Raises HostFailed where the host has an answer that only the caller knows."""
    host, hosts = row["host"], getattr(ctx.services, "hosts", None)
    if host is None:
        raise not_ready(row, "no host has it")
    if hosts is None:
        raise Unavailable("This process cannot reach hosts; it needs the section messaging of its configuration.")
    try:
        return await hosts.call(host, Command(host=host, verb=verb), timeout=SECONDS)
    except HostUnreachable:
        raise not_ready(row, "its host does not answer") from None
    except HostFailed as error:
        if error.kind == "unsupported":
            raise NotSupported("The host of the server is of a release that cannot do that.") from None
        if error.kind in ("missing guest", "not running") or error.passing:
            raise not_ready(row, error.public) from None
        raise


def not_ready(row: Row, why: str) -> Conflict:
    return Conflict(f"Instance {row['id']} is not ready: {why}")
