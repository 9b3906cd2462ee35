"""Checks changes of a server's pinned zone: it can be removed, or set to the zone of the server's host."""

from __future__ import annotations

from kilonova.compute.servers.server import Server
from kilonova.compute.zones import model as zones
from kilonova.http import Context
from kilonova.http.errors import Conflict
from kilonova.store import Transaction


async def check(ctx: Context, tx: Transaction, server: Server, wanted: str | None) -> None:
    """Allow no pin, the present one, or for an unpinned server the zone of its host."""
    pin = server.pinned_zone
    if wanted is None or wanted == pin:
        return
    if pin is not None:
        raise Conflict(f"Instance {server.id} is pinned to the availability zone {pin}. Unpin it first.")
    current = await _zone(ctx, tx, server)
    if wanted != current:
        where = f"in the availability zone {current}" if current else "in no availability zone"
        raise Conflict(f"Instance {server.id} cannot be pinned to {wanted}: it is {where}.")


async def _zone(ctx: Context, tx: Transaction, server: Server) -> str | None:
    """The zone of the server's host; None without a host."""
    host = server.host
    if host is None:
        return None
    return (await zones.zone_of_hosts(tx, [host], ctx.services.config.scheduler.default_zone))[host]
