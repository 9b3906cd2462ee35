"""Views of floating IPs, with details of the ports that they lead to."""

from __future__ import annotations

from collections.abc import Sequence

from kilonova.http import Context
from kilonova.network import resources
from kilonova.network.floating_ips.model import FloatingIp
from kilonova.network.ports.model import Port, load_details
from kilonova.network.ports.status import with_current_status
from kilonova.store import Reader


async def views(ctx: Context, reader: Reader, floating_ips: Sequence[FloatingIp]) -> list[dict[str, object]]:
    port_ids = [floating.port_id for floating in floating_ips if floating.port_id]
    ports: dict[str | None, Port] = {}
    if port_ids:
        rows = await reader.fetch("SELECT * FROM ports WHERE id = ANY($1)", port_ids)
        details = await load_details(reader, Port.decode_all(rows))
        ports = {each.port.id: each.port for each in await with_current_status(ctx, reader, details)}
    return [_view(floating, ports.get(floating.port_id)) for floating in floating_ips]


def _view(floating: FloatingIp, port: Port | None) -> dict[str, object]:
    return {
        "id": floating.id,
        "status": floating.status,
        "floating_network_id": floating.floating_network_id,
        "floating_ip_address": floating.floating_ip_address,
        "port_id": floating.port_id,
        "fixed_ip_address": floating.fixed_ip_address,
        "router_id": floating.router_id,
        "port_details": port and _port_details(port),
        **resources.standard_view(floating),
    }


def _port_details(port: Port) -> dict[str, object]:
    return {
        "name": port.name,
        "network_id": port.network_id,
        "mac_address": port.mac_address,
        "admin_state_up": port.admin_state_up,
        "status": port.status,
        "device_id": port.device_id,
        "device_owner": port.device_owner,
    }
