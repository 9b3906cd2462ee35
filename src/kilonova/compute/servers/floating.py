"""Floating addresses of servers. The network service keeps them, and is asked once for all servers of a page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from kilonova.http import Context
from kilonova.http.client import Refused, Unreachable
from kilonova.store import Row

log = logging.getLogger(__name__)
# Servers are shown without what the network service does not say by then: they are there while it is not.
PATIENCE = 5.0


async def of_ports(ctx: Context, rows: Sequence[Row]) -> dict[str, list[str]]:
    """The addresses by the port that they lead to. The rows have their `nics` read."""
    ports = [nic["port_id"] for row in rows for nic in row["nics"]]
    if not ports:
        return {}
    try:
        async with asyncio.timeout(PATIENCE):
            token = await ctx.services.identity.token()
            found = await ctx.services.network.floating_to(ports, token)
    except (Refused, Unreachable, TimeoutError) as error:
        log.warning("servers are shown without floating addresses: %s", str(error) or "no answer in time")
        return {}
    known: dict[str, list[str]] = {}
    for each in sorted(found, key=lambda floating: (floating["fixed_ip_address"] or "", floating["id"])):
        known.setdefault(each["port_id"], []).append(each["floating_ip_address"])
    return known
