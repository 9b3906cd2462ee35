"""Reads from the host of a server, for routes such as console output and diagnostics."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Read
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.http import Context
from kilonova.http.errors import Conflict, NotSupported, Unavailable
from kilonova.store import Row

# A user waits for the response.
QUERY_TIMEOUT_SECONDS = 10.0


async def query_host(ctx: Context, row: Row, verb: Read) -> Any:
    """Send a read to the server's host. Raises an HTTP error, or HostFailed for errors that the route handles."""
    host, hosts = row["host"], getattr(ctx.services, "hosts", None)
    if host is None:
        raise not_ready(row, "it has no host")
    if hosts is None:
        raise Unavailable("This process cannot reach hosts: configure its section [messaging].")
    try:
        return await hosts.call(host, Command(host=host, verb=verb), timeout=QUERY_TIMEOUT_SECONDS)
    except HostUnreachable:
        raise not_ready(row, "its host does not respond") from None
    except HostFailed as error:
        if error.kind == "unsupported":
            raise NotSupported("The agent of the server's host does not support this; upgrade it.") from None
        if error.kind in ("missing guest", "not running") or error.passing:
            raise not_ready(row, error.public) from None
        raise


def not_ready(row: Row, why: str) -> Conflict:
    return Conflict(f"Instance {row['id']} is not ready: {why}")
