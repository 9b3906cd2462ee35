"""Floating IPs of servers: read from the built-in network service once per page, or as stored with a real Neutron."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kilonova.compute.servers import interface_cache
from kilonova.compute.servers.server import Server
from kilonova.http import Context
from kilonova.http.client import Refused, Unreachable

log = logging.getLogger(__name__)
# Servers are shown without floating IPs if the network service does not answer in time.
NETWORK_TIMEOUT_SECONDS = 5.0


async def addresses_by_port(ctx: Context, servers: Iterable[Server]) -> dict[str, list[str]]:
    if not ctx.services.network.built_in:
        return interface_cache.floating_ips(servers)
    ports = [interface.port_id for server in servers for interface in server.nics]
    if not ports:
        return {}
    try:
        async with asyncio.timeout(NETWORK_TIMEOUT_SECONDS):
            token = await ctx.services.identity.token()
            found = await ctx.services.network.floating_ips_of_ports(ports, token)
    except (Refused, Unreachable, TimeoutError) as error:
        log.warning("servers are shown without floating addresses: %s", str(error) or "no answer in time")
        return {}
    known: dict[str, list[str]] = {}
    for each in sorted(found, key=lambda floating: (floating.fixed_ip_address or "", floating.id)):
        known.setdefault(each.port_id or "", []).append(each.floating_ip_address)
    return known
