"""Periodic task: read all interfaces again from a real Neutron, in case it could not tell of a change.

A run takes as long as `network.refresh_seconds`: pauses between its pages spread the requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from kilonova.compute.operations.detach_interface import DetachInterface, DetachInterfaceParams
from kilonova.compute.servers import interface_cache
from kilonova.compute.servers.server import Interface, Server
from kilonova.http.client import Refused, Unreachable
from kilonova.identity.client import IdentityError
from kilonova.ids import new_id
from kilonova.operations import begin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kilonova.services import Services

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
_PAGE_SIZE = 50
# So many ports of a page may be deleted by users without their events having arrived.
_FEW_PORTS = 2
_WITH_INTERFACES = "NOT deleted AND nics <> '[]'"
_PAGE = f"SELECT * FROM servers WHERE id > $1 AND {_WITH_INTERFACES} ORDER BY id LIMIT {_PAGE_SIZE}"


async def run(services: Services, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    seconds = services.config.network.refresh_seconds
    if services.network.built_in or seconds <= 0:
        return
    number = await services.db.fetch_value(f"SELECT COUNT(*) FROM servers WHERE {_WITH_INTERFACES}")
    pause = seconds / max(1, math.ceil(number / _PAGE_SIZE))
    last = ""
    while page := Server.decode_all(await services.db.fetch(_PAGE, last)):
        last = page[-1].id
        try:
            missing = await interface_cache.refresh(services, page)
            if _is_plausible(len(missing), sum(len(server.nics) for server in page)):
                for server, interface in missing:
                    await _detach(services, server, interface)
        except (Refused, Unreachable, IdentityError) as error:
            log.warning("interfaces are not read again now: %s", error)
        await sleep(pause)


def _is_plausible(missing: int, of: int) -> bool:
    """Whether so many ports may have been deleted. Else the service user has probably lost its role in Neutron."""
    if missing <= max(_FEW_PORTS, of // 10):
        return True
    log.error("%d of %d ports are not visible in the network service: no interface is detached", missing, of)
    return False


async def _detach(services: Services, server: Server, interface: Interface) -> None:
    """Detach an interface whose port is deleted. Neutron told of it, but the event got lost."""
    async with services.db.transaction() as tx:
        row = await tx.fetch_one("SELECT * FROM servers WHERE id = $1 AND NOT deleted FOR UPDATE", server.id)
        now = Server.decode_optional(row)
        busy = "SELECT 1 FROM operations WHERE server_id = $1 AND finished_at IS NULL LIMIT 1"
        if now is None or not now.find_interface(interface.port_id) or await tx.fetch_value(busy, server.id):
            return
        log.info("port %s of server %s is deleted: detaching its interface", interface.port_id, server.id)
        await begin(
            tx,
            DetachInterface,
            params=DetachInterfaceParams(interface.port_id),
            server_id=server.id,
            project_id=server.project_id,
            user_id=server.user_id,
            request_id=f"req-{new_id()}",
            host=server.host,
        )
