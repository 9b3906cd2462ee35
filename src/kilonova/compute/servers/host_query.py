"""Reads from the host of a server, for routes such as console output and diagnostics."""

from __future__ import annotations

from kilonova.compute import host_calls
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import Answer, Query
from kilonova.hosts.transport import GuestMissing, GuestNotRunning, HostRefused, HostUnreachable, VersionTooOld
from kilonova.http import Context
from kilonova.http.errors import Conflict, NotSupported, Unavailable


async def query_host(ctx: Context, server: Server, verb: Query[Answer]) -> Answer:
    """Send a read to the server's host. Raises an HTTP error, or HostRefused for errors that the route handles."""
    if server.host is None:
        raise not_ready(server, "it has no host")
    if getattr(ctx.services, "hosts", None) is None:
        raise Unavailable("This process cannot reach hosts: configure its section [messaging].")
    try:
        return await host_calls.query(ctx.services, server.host, verb)
    except HostUnreachable:
        raise not_ready(server, "its host does not respond") from None
    except VersionTooOld:
        raise NotSupported("The agent of the server's host does not support this; upgrade it.") from None
    except HostRefused as refusal:
        if refusal.passing or isinstance(refusal, GuestMissing | GuestNotRunning):
            raise not_ready(server, refusal.public) from None
        raise


def not_ready(server: Server, why: str) -> Conflict:
    return Conflict(f"Instance {server.id} is not ready: {why}")
